"""τ(x) = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ for every λ at the price of one, without ever inverting anything.

With the singular value decomposition Φ = U diag(√s) Vᵀ, e = ΦV = U diag(√s) and b(x) = Vᵀφ(x):

    τ(x)_n = Σ_r b_r(x) e_nr / (s_r + λ),        ‖φ_n‖² = Σ_r e_nr²,        ‖(ΦᵀΦ + λI)⁻¹φ_n‖² = Σ_r e_nr² / (s_r + λ)²

Only the smaller Gram matrix is decomposed, in float64: ΦᵀΦ = V diag(s) Vᵀ when k ≤ N (primal), ΦΦᵀ = U diag(s) Uᵀ when
N < k (dual), where b(x) = eᵀΦφ(x) / s. Directions in which the training features do not reach add nothing and are left
out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import DtrakError

Array = NDArray[np.float64]
ROWS_AT_ONCE = 32  # of float64 temporaries, which then stay in the cache


class Rows(Protocol):
    """Training features that can be read in blocks: a feature store, or anything like it."""

    @property
    def dim(self) -> int: ...

    def __len__(self) -> int: ...

    def blocks(self) -> Iterable[tuple[range, Tensor]]: ...


@dataclass(frozen=True, eq=False)
class Kernel:
    """The decomposed training features Φ [N, k], of rank r."""

    eigenvalues: Array  # s [r], positive, rising
    train: Array  # e [N, r]
    directions: Array | None  # V [k, r] in the primal form
    features: Rows

    @cached_property
    def images(self) -> int:
        """How many training images have a feature: those that were left out count for nothing."""
        return int((self.norms() > 0).sum())

    @property
    def mean_eigenvalue(self) -> float:
        """trace(ΦΦᵀ)/N, the unit of relative damping."""
        return float(self.eigenvalues.sum() / self.images)

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """b [Q, r] of the query features [Q, k]."""
        wide = queries.astype(np.float64)
        if self.directions is not None:
            return np.asarray(wide @ self.directions)
        products = np.empty((len(wide), len(self.features)))  # Φφ(x)
        for rows, block in self.features.blocks():
            products[:, rows.start : rows.stop] = wide @ _wide(block).T
        return np.asarray(products @ self.train / self.eigenvalues)

    def scores(self, coordinates: Array, damping: float) -> NDArray[np.float32]:
        """τ [Q, N] for one absolute λ, from the coordinates of the queries."""
        return np.asarray((coordinates / (self.eigenvalues + damping)) @ self.train.T, dtype=np.float32)

    def self_influence(self, damping: float) -> Array:
        """τ(x^n)_n = Σ_r e_nr² / (s_r + λ) of every training image, [N]: its leverage, from 0 to 1."""
        return self._squares(1 / (self.eigenvalues + damping))

    def norms(self) -> Array:
        """‖φ_n‖, [N]."""
        return np.sqrt(self._squares(np.ones_like(self.eigenvalues)))

    def preconditioned_norms(self, damping: float) -> Array:
        """‖(ΦᵀΦ + λI)⁻¹φ_n‖, [N]."""
        return np.sqrt(self._squares((self.eigenvalues + damping) ** -2))

    def _squares(self, weights: Array) -> Array:
        """Σ_r e_nr² w_r, [N]."""
        starts = range(0, len(self.train), ROWS_AT_ONCE)
        return np.concatenate([self.train[start : start + ROWS_AT_ONCE] ** 2 @ weights for start in starts])


def decompose(features: Rows) -> Kernel:
    """Read the features Φ [N, k] in blocks and decompose the smaller of ΦᵀΦ and ΦΦᵀ."""
    count, dim = len(features), features.dim
    primal = dim <= count
    gram = _inner_gram(features) if primal else _outer_gram(features)
    nothing = None if primal else np.flatnonzero(np.diag(gram) == 0)  # images that were left out
    eigenvalues, vectors = scipy.linalg.eigh(gram, overwrite_a=True, check_finite=False, driver="evd")
    noise = eigenvalues[-1] * np.finfo(np.float64).eps * max(count, dim)
    first = int(np.searchsorted(eigenvalues, noise, side="right"))
    eigenvalues, vectors = eigenvalues[first:], vectors[:, first:]
    if not len(eigenvalues):
        raise DtrakError("every training feature is zero: these parameters do not answer to the objective")
    if not primal:
        vectors *= np.sqrt(eigenvalues)
        vectors[nothing] = 0  # and not the rounding of others
        return Kernel(eigenvalues, vectors, None, features)
    train = np.empty((count, len(eigenvalues)))
    for rows, block in features.blocks():
        np.matmul(_wide(block), vectors, out=train[rows.start : rows.stop])
    return Kernel(eigenvalues, train, vectors, features)


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
