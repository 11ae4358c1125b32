"""The preconditioner is the matrix between a query's feature and a training image's feature in the score:

    τ(x)_n = φ(x)ᵀ (G + λI)⁻¹ φ_n        G is fitted on the training features, λ is chosen later

A preconditioner is fitted once, from rows that are read in blocks, and then gives scores for any λ. Scores are cheap in
its coordinates, which do not depend on λ. Rules for λ (`damping.py`) and formulas use only what this protocol declares.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
EVERY = slice(None)  # selects every training image


class Rows(Protocol):
    """Rows are features that can be read in blocks, such as those of a feature store."""

    @property
    def dim(self) -> int:
        """Return k, how many numbers a row has."""

    def __len__(self) -> int: ...

    def blocks(self, wanted: range | None = None) -> Iterable[tuple[range, Tensor]]:
        """Yield all rows in order, or only the `wanted` ones, in blocks: (rows, float32 [b, k] or [b, C, k])."""

    def at(self, rows: Sequence[int]) -> Tensor:
        """Return some rows in the given order, float32 [b, k] or [b, C, k]."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """The rows of an array, which are read as one block."""

    array: NDArray[np.float32]  # [N, k], or [N, C, k] for features of every copy

    @property
    def dim(self) -> int:
        return int(self.array.shape[-1])

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        rows = range(len(self)) if wanted is None else wanted
        yield rows, torch.from_numpy(self.array[rows.start : rows.stop])

    def at(self, rows: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.array[list(rows)])


class Preconditioner(Protocol):
    """A preconditioner computes with (G + λI)⁻¹ for any λ. `train` selects some of the training images."""

    @property
    def eigenvalues(self) -> Array:
        """Return the eigenvalues of G that are not zero, [r], in rising order."""

    @property
    def images(self) -> int:
        """Return how many training images have a feature. Images that were left out have zeros and do not count."""

    def __len__(self) -> int:
        """Return N, how many training images there are."""

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """Return the coordinates [Q, r] of the query features [Q, k]."""

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return the coordinates [B, r] of the training images `rows`, as if they were queries."""

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """Return τ [Q, N] for an absolute λ, from the coordinates of the queries."""

    def self_influence(self, damping: float, train: slice = EVERY) -> Array:
        """Return τ(x^n)_n, the score of each training image for itself, [N]."""

    def norms(self, train: slice = EVERY) -> Array:
        """Return ‖φ_n‖, [N]."""

    def preconditioned_norms(self, damping: float, train: slice = EVERY) -> Array:
        """Return ‖(G + λI)⁻¹ φ_n‖, [N]."""


Fit = Callable[[Rows], Preconditioner]


def mean_eigenvalue(kernel: Preconditioner) -> float:
    """Return trace(G) / N, which relative damping is a fraction of. It is trace(G) / `size` if the kernel has a `size`.

    ΦΦᵀ, which has the eigenvalues of ΦᵀΦ, has a side of N; other matrices G are not made of N features.
    """
    return trace(kernel) / float(getattr(kernel, "size", kernel.images))


def trace(kernel: Preconditioner) -> float:
    """Return trace(G), the sum of the eigenvalues. Kernels that know it without their eigenvalues have a `trace`."""
    return float(kernel.trace if hasattr(kernel, "trace") else kernel.eigenvalues.sum())


def effective_dimension(kernel: Preconditioner, damping: float) -> float:
    """Return d(λ) = Σ_r s_r / (s_r + λ), how many directions are kept. It falls from r to 0 as λ grows."""
    if hasattr(kernel, "effective_dimension"):  # for kernels that know it without their eigenvalues
        return float(kernel.effective_dimension(damping))
    return float((kernel.eigenvalues / (kernel.eigenvalues + damping)).sum())


def rank(kernel: Preconditioner) -> int:
    """Return how many directions there are."""
    return int(kernel.rank if hasattr(kernel, "rank") else len(kernel.eigenvalues))
