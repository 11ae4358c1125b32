"""Compute scores from features: preconditioners, which are fitted once for all dampings, and rules for the damping.

To add a preconditioner, write a function that fits it, and add a line to `PRECONDITIONERS`.
"""

from dtrak.kernels.damping import Damping
from dtrak.kernels.preconditioner import ArrayRows, Fit, Preconditioner, Rows
from dtrak.kernels.ridge import RidgeKernel, decompose
from dtrak.registry import Registry

PRECONDITIONERS: Registry[Fit] = Registry("preconditioner", "dtrak.preconditioners", {"ridge": decompose})

__all__ = ["PRECONDITIONERS", "ArrayRows", "Damping", "Preconditioner", "RidgeKernel", "Rows", "decompose"]
