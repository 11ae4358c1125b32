"""τ(x) = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ for every λ at the price of one, without ever inverting anything.

One eigendecomposition of the smaller Gram matrix, in float64, brings the scores into the form

    τ(x)_n = Σ_r b_r(x) e_{nr} / (s_r + λ)

When k ≤ N: ΦᵀΦ = V diag(s) Vᵀ, e = ΦV and b(x) = Vᵀφ(x). When N < k: ΦΦᵀ = U diag(s) Uᵀ, e = U and b(x) = UᵀΦφ(x).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import DtrakError, UsageError

Array = NDArray[np.float64]


class Rows(Protocol):
    """Training features that can be read in blocks: a feature store, or anything like it."""

    @property
    def dim(self) -> int: ...

    def __len__(self) -> int: ...

    def blocks(self) -> Iterable[tuple[range, Tensor]]: ...


@dataclass(frozen=True, eq=False)
class Kernel:
    """The decomposed Gram matrix of the training features Φ [N, k]; r = min(N, k)."""

    eigenvalues: Array  # s [r], not negative
    vectors: Array  # V [k, r] or U [N, r]
    train: Array  # e [N, r]
    features: Rows
    primal: bool

    @property
    def mean_eigenvalue(self) -> float:
        """trace(ΦΦᵀ)/N, the unit of relative damping."""
        return float(self.eigenvalues.sum() / len(self.features))

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """b [Q, r] of the query features [Q, k]."""
        wide = queries.astype(np.float64)
        if not self.primal:
            products = [wide @ block.numpy().astype(np.float64).T for _, block in self.features.blocks()]
            wide = np.concatenate(products, axis=1)  # Φφ(x), [Q, N]
        return np.asarray(wide @ self.vectors)

    def scores(self, coordinates: Array, damping: float) -> NDArray[np.float32]:
        """τ [Q, N] for one absolute λ, from the coordinates of the queries."""
        return np.asarray((coordinates / (self.eigenvalues + damping)) @ self.train.T, dtype=np.float32)


def decompose(features: Rows) -> Kernel:
    """Read the features Φ [N, k] in blocks and decompose the smaller of ΦᵀΦ and ΦΦᵀ."""
    primal = features.dim <= len(features)
    if primal:
        gram = np.zeros((features.dim, features.dim))
        for _, block in features.blocks():
            wide = block.numpy().astype(np.float64)
            gram += wide.T @ wide
    else:
        gram = np.zeros((len(features), len(features)))
        for rows, block in features.blocks():
            wide = block.numpy().astype(np.float64)
            for others, other in features.blocks():
                if others.start > rows.start:
                    break
                product = wide @ other.numpy().astype(np.float64).T
                gram[rows.start : rows.stop, others.start : others.stop] = product
                gram[others.start : others.stop, rows.start : rows.stop] = product.T
    eigenvalues, vectors = scipy.linalg.eigh(gram, overwrite_a=True, check_finite=False, driver="evd")
    eigenvalues = eigenvalues.clip(min=0)
    if primal:
        train = np.concatenate([block.numpy().astype(np.float64) @ vectors for _, block in features.blocks()])
    else:
        train = vectors
    return Kernel(eigenvalues, vectors, train, features, primal)


@dataclass(frozen=True)
class Damping:
    """λ, as a fraction of the mean eigenvalue of ΦΦᵀ so that no scale of the features matters, or as it is."""

    value: float
    relative: bool = True

    @classmethod
    def parse(cls, text: float | str) -> "Damping":
        """From `0.1`, relative, or `absolute:5`."""
        number = str(text).removeprefix("absolute:")
        try:
            value = float(number)
        except ValueError:
            value = np.nan
        if not (np.isfinite(value) and value > 0):
            raise UsageError(
                f"damping {str(text)!r}: give a positive fraction of the mean eigenvalue such as 0.1, or absolute:5"
            )
        return cls(value, relative=number == str(text))

    def absolute(self, kernel: Kernel) -> float:
        if not kernel.mean_eigenvalue:
            raise DtrakError("every training feature is zero: these parameters do not answer to the objective")
        return self.value * kernel.mean_eigenvalue if self.relative else self.value
