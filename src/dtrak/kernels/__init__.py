"""From features to scores: preconditioners, each with every damping at the price of one, and rules for the damping.

Adding a preconditioner is a function that fits it, and a line in `PRECONDITIONERS`.
"""

from dtrak.kernels.damping import Damping
from dtrak.kernels.preconditioner import ArrayRows, Fit, Preconditioner, Rows
from dtrak.kernels.ridge import RidgeKernel, decompose
from dtrak.registry import Registry

PRECONDITIONERS: Registry[Fit] = Registry("preconditioner", "dtrak.preconditioners", {"ridge": decompose})

__all__ = ["PRECONDITIONERS", "ArrayRows", "Damping", "Preconditioner", "RidgeKernel", "Rows", "decompose"]
