"""From features to scores: preconditioners, each with every damping at the price of one, and rules for the damping."""

from dtrak.kernels.damping import Damping
from dtrak.kernels.ridge import Kernel, decompose

__all__ = ["Damping", "Kernel", "decompose"]
