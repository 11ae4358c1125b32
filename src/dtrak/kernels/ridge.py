"""Compute τ(x) = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ for any λ from one decomposition, without inverting a matrix.

With the singular value decomposition Φ = U diag(√s) Vᵀ, e = ΦV = U diag(√s) and b(x) = Vᵀφ(x):

    τ(x)_n = Σ_r b_r(x) e_nr / (s_r + λ),        ‖φ_n‖² = Σ_r e_nr²,        ‖(ΦᵀΦ + λI)⁻¹φ_n‖² = Σ_r e_nr² / (s_r + λ)²

Only the smaller Gram matrix is decomposed, in float64: ΦᵀΦ = V diag(s) Vᵀ if k ≤ N (primal), ΦΦᵀ = U diag(s) Uᵀ if
N < k (dual), where b(x) = eᵀΦφ(x) / s. Directions in which all training features are zero add nothing and are left out.
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

ROWS_AT_ONCE = 32  # the float64 results for so many rows stay in the CPU's cache


@dataclass(frozen=True, eq=False)
class RidgeKernel:
    """The preconditioner with G = ΦᵀΦ, made from the decomposed training features Φ [N, k] of rank r."""

    eigenvalues: Array  # s [r], positive, in rising order
    train: Array  # e [N, r]
    directions: Array | None  # V [k, r] in the primal form, None in the dual form
    features: Rows

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def images(self) -> int:
        """Return how many training images have a feature. Images that were left out have zeros and do not count."""
        return int((self.norms() > 0).sum())

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """Return b [Q, r] of the query features [Q, k]."""
        wide = queries.astype(np.float64)
        if self.directions is not None:
            return np.asarray(wide @ self.directions)
        products = np.empty((len(wide), len(self.features)))  # Φφ(x)
        for rows, block in self.features.blocks():
            products[:, rows.start : rows.stop] = wide @ _wide(block).T
        return np.asarray(products @ self.train / self.eigenvalues)

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return b [B, r] of the training images `rows`, which equals their rows of e."""
        return np.asarray(self.train[rows])

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """Return τ [Q, N] for an absolute λ, from the coordinates of the queries."""
        return np.asarray((coordinates / (self.eigenvalues + damping)) @ self.train[train].T, dtype=np.float32)

    def self_influence(self, damping: float, train: slice = EVERY) -> Array:
        """Return τ(x^n)_n = Σ_r e_nr² / (s_r + λ), [N], the leverage of each training image, from 0 to 1."""
        return self._squares(1 / (self.eigenvalues + damping), train)

    def norms(self, train: slice = EVERY) -> Array:
        """Return ‖φ_n‖, [N]."""
        return np.sqrt(self._squares(np.ones_like(self.eigenvalues), train))

    def preconditioned_norms(self, damping: float, train: slice = EVERY) -> Array:
        """Return ‖(ΦᵀΦ + λI)⁻¹φ_n‖, [N]."""
        return np.sqrt(self._squares((self.eigenvalues + damping) ** -2, train))

    def _squares(self, weights: Array, train: slice) -> Array:
        """Return Σ_r e_nr² w_r, [N]."""
        chosen = self.train[train]
        starts = range(0, len(chosen), ROWS_AT_ONCE)
        return np.concatenate([chosen[start : start + ROWS_AT_ONCE] ** 2 @ weights for start in starts])


def decompose(features: Rows) -> RidgeKernel:
    """Read the features Φ [N, k] in blocks, and decompose the smaller of ΦᵀΦ and ΦΦᵀ."""
    count, dim = len(features), features.dim
    primal = dim <= count
    gram = _inner_gram(features) if primal else _outer_gram(features)
    left_out = None if primal else np.flatnonzero(np.diag(gram) == 0)  # images whose features are zeros
    eigenvalues, vectors = eigen(gram, max(count, dim))
    if not primal:
        vectors *= np.sqrt(eigenvalues)
        vectors[left_out] = 0  # instead of rounding errors
        return RidgeKernel(eigenvalues, vectors, None, features)
    train = np.empty((count, len(eigenvalues)))
    for rows, block in features.blocks():
        np.matmul(_wide(block), vectors, out=train[rows.start : rows.stop])
    return RidgeKernel(eigenvalues, train, vectors, features)


def eigen(gram: Array, size: int) -> tuple[Array, Array]:
    """Return the eigenvalues of a Gram matrix that are above rounding errors, in rising order, and their vectors.

    The matrix is overwritten. `size` is the larger side of the features that it was made of.
    """
    eigenvalues, vectors = scipy.linalg.eigh(gram, overwrite_a=True, check_finite=False, driver="evd")
    noise = eigenvalues[-1] * np.finfo(np.float64).eps * size
    first = int(np.searchsorted(eigenvalues, noise, side="right"))
    if first == len(eigenvalues):
        raise DtrakError("every training feature is zero: the objective does not depend on these parameters")
    return eigenvalues[first:], vectors[:, first:]


def _inner_gram(features: Rows) -> Array:
    """Return ΦᵀΦ [k, k]."""
    gram = np.zeros((features.dim, features.dim), order="F")
    for _, block in features.blocks():
        wide = _wide(block)
        gram += wide.T @ wide
    return gram


def _outer_gram(features: Rows) -> Array:
    """Return ΦΦᵀ [N, N]. Only its lower half is filled, because `eigh` reads only that."""
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
