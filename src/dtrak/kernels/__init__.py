"""Compute scores from features: kernels, which are fitted once for all dampings, and rules for the damping.

To add a kernel, write a function that fits it to rows, and add a line to `KERNELS`.
"""

from dtrak.contracts import Fit, Kernel, Rows
from dtrak.kernels.damping import Damping
from dtrak.kernels.ridge import Ridge
from dtrak.kernels.rows import ArrayRows, CopyRows
from dtrak.registry import Registry

KERNELS: Registry[Fit] = Registry("kernel", "dtrak.preconditioners", {"ridge": Ridge.of})

__all__ = ["KERNELS", "ArrayRows", "CopyRows", "Damping", "Kernel", "Ridge", "Rows"]
