"""Compute how a query's output changes if a training image is left out of a linear regression.

The regression of outputs y_n on features φ_n, with damping λ, has residuals r_n. Without image n, the query's output is
less by

    φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n · r_n / (1 − h_n),        h_n = φ_nᵀ (ΦᵀΦ + λI)⁻¹ φ_n, the leverage of image n

This is exact; no regression is computed again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtrak.kernels.preconditioner import EVERY, Array, Rows
from dtrak.kernels.ridge import RidgeKernel, decompose

LEAST = 1e-6  # the least 1 − h_n; rounding errors can make it zero if λ is tiny


@dataclass(frozen=True, eq=False)
class LeaveOneOutKernel(RidgeKernel):
    """The kernel ΦᵀΦ, whose scores are changes of the query's output."""

    residuals: Array  # r [N]

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """Return the changes [Q, N] for an absolute λ, from the coordinates of the queries."""
        left = np.clip(1 - self.self_influence(damping, train), LEAST, None)
        changes = super().scores(coordinates, damping, train) * (self.residuals[train] / left)
        return np.asarray(changes, dtype=np.float32)


def fit_leave_one_out(features: Rows, residuals: NDArray[np.floating]) -> LeaveOneOutKernel:
    """Fit the kernel on features Φ [N, k] and residuals [N]."""
    fitted = decompose(features)
    wide = np.asarray(residuals, dtype=np.float64)
    return LeaveOneOutKernel(fitted.eigenvalues, fitted.directions, fitted.dual, fitted.images, features, wide)
