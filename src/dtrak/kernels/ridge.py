"""τ(x) = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ for every λ at the price of one, without ever inverting anything.

With the singular value decomposition Φ = U diag(√s) Vᵀ, e = ΦV = U diag(√s) and b(x) = Vᵀφ(x):

    τ(x)_n = Σ_r b_r(x) e_nr / (s_r + λ),        ‖φ_n‖² = Σ_r e_nr²,        ‖(ΦᵀΦ + λI)⁻¹φ_n‖² = Σ_r e_nr² / (s_r + λ)²

Only the smaller Gram matrix is decomposed, in float64: ΦᵀΦ = V diag(s) Vᵀ when k ≤ N (primal), ΦΦᵀ = U diag(s) Uᵀ when
N < k (dual), where b(x) = eᵀΦφ(x) / s. Directions in which the training features do not reach add nothing and are left
out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import DtrakError
from dtrak.kernels.preconditioner import EVERY, Array, Rows

ROWS_AT_ONCE = 32  # of float64 temporaries, which then stay in the cache


@dataclass(frozen=True, eq=False)
class RidgeKernel:
    """The decomposed training features Φ [N, k], of rank r: the preconditioner with G = ΦᵀΦ."""

    eigenvalues: Array  # s [r], positive, rising
    train: Array  # e [N, r]
    directions: Array | None  # V [k, r] in the primal form
    features: Rows

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def images(self) -> int:
        """How many training images have a feature: those that were left out count for nothing."""
        return int((self.norms() > 0).sum())

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """b [Q, r] of the query features [Q, k]."""
        wide = queries.astype(np.float64)
        if self.directions is not None:
            return np.asarray(wide @ self.directions)
        products = np.empty((len(wide), len(self.features)))  # Φφ(x)
        for rows, block in self.features.blocks():
            products[:, rows.start : rows.stop] = wide @ _wide(block).T
        return np.asarray(products @ self.train / self.eigenvalues)

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """b [B, r] of training images, which is e."""
        return np.asarray(self.train[rows])

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """τ [Q, N] for an absolute λ, from the coordinates of the queries."""
        return np.asarray((coordinates / (self.eigenvalues + damping)) @ self.train[train].T, dtype=np.float32)

    def self_influence(self, damping: float, train: slice = EVERY) -> Array:
        """τ(x^n)_n = Σ_r e_nr² / (s_r + λ), [N]: the leverage of each training image, from 0 to 1."""
        return self._squares(1 / (self.eigenvalues + damping), train)

    def norms(self, train: slice = EVERY) -> Array:
        """‖φ_n‖, [N]."""
        return np.sqrt(self._squares(np.ones_like(self.eigenvalues), train))

    def preconditioned_norms(self, damping: float, train: slice = EVERY) -> Array:
        """‖(ΦᵀΦ + λI)⁻¹φ_n‖, [N]."""
        return np.sqrt(self._squares((self.eigenvalues + damping) ** -2, train))

    def _squares(self, weights: Array, train: slice) -> Array:
        """Σ_r e_nr² w_r, [N]."""
        chosen = self.train[train]
        starts = range(0, len(chosen), ROWS_AT_ONCE)
        return np.concatenate([chosen[start : start + ROWS_AT_ONCE] ** 2 @ weights for start in starts])


def decompose(features: Rows) -> RidgeKernel:
    """Read the features Φ [N, k] in blocks and decompose the smaller of ΦᵀΦ and ΦΦᵀ."""
    count, dim = len(features), features.dim
    primal = dim <= count
    gram = _inner_gram(features) if primal else _outer_gram(features)
    nothing = None if primal else np.flatnonzero(np.diag(gram) == 0)  # images that were left out
    eigenvalues, vectors = eigen(gram, max(count, dim))
    if not primal:
        vectors *= np.sqrt(eigenvalues)
        vectors[nothing] = 0  # and not the rounding of others
        return RidgeKernel(eigenvalues, vectors, None, features)
    train = np.empty((count, len(eigenvalues)))
    for rows, block in features.blocks():
        np.matmul(_wide(block), vectors, out=train[rows.start : rows.stop])
    return RidgeKernel(eigenvalues, train, vectors, features)


def eigen(gram: Array, size: int) -> tuple[Array, Array]:
    """The eigenvalues of a Gram matrix that are more than rounding, rising, and their vectors; it is used up.

    `size` is the larger side of the features that it was made of.
    """
    eigenvalues, vectors = scipy.linalg.eigh(gram, overwrite_a=True, check_finite=False, driver="evd")
    noise = eigenvalues[-1] * np.finfo(np.float64).eps * size
    first = int(np.searchsorted(eigenvalues, noise, side="right"))
    if first == len(eigenvalues):
        raise DtrakError("every training feature is zero: these parameters do not answer to the objective")
    return eigenvalues[first:], vectors[:, first:]


def _inner_gram(features: Rows) -> Array:
    """ΦᵀΦ [k, k]."""
    gram = np.zeros((features.dim, features.dim), order="F")
    for _, block in features.blocks():
        wide = _wide(block)
        gram += wide.T @ wide
    return gram


def _outer_gram(features: Rows) -> Array:
    """ΦΦᵀ [N, N], of which only the lower half is filled, as `eigh` reads no other."""
    gram = np.zeros((len(features), len(features)), order="F")
    for rows, block in features.blocks():
        wide = _wide(block)
        for others, other in features.blocks():
            if others.start > rows.start:
                break
            gram[rows.start : rows.stop, others.start : others.stop] = wide @ _wide(other).T
    return gram


def _wide(block: Tensor) -> Array:
    return np.asarray(block.numpy(), dtype=np.float64)
