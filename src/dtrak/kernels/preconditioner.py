"""The preconditioner: what a query's feature passes through before it meets a training image's.

    τ(x)_n = φ(x)ᵀ (G + λI)⁻¹ φ_n        G is fitted on the training features, λ is chosen later

A preconditioner is fitted once, from rows that are read in blocks, and then answers for every λ. In its coordinates,
which do not depend on λ, scores are cheap. Rules for λ (`damping.py`) and formulas know this protocol and nothing else.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
EVERY = slice(None)  # training image


class Rows(Protocol):
    """Features that can be read in blocks: a feature store, or anything like it."""

    @property
    def dim(self) -> int:
        """k, how many numbers a row has."""

    def __len__(self) -> int: ...

    def blocks(self, wanted: range | None = None) -> Iterable[tuple[range, Tensor]]:
        """All rows in order, or only the wanted ones: which, and their float32 [b, k]; of every copy, [b, C, k]."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows of an array, as one block."""

    array: NDArray[np.float32]  # [N, k], or [N, C, k] of every copy

    @property
    def dim(self) -> int:
        return int(self.array.shape[-1])

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        rows = range(len(self)) if wanted is None else wanted
        yield rows, torch.from_numpy(self.array[rows.start : rows.stop])


class Preconditioner(Protocol):
    """(G + λI)⁻¹ for every λ, and the training images in its coordinates. `train` selects some of the images."""

    @property
    def eigenvalues(self) -> Array:
        """Those of G that are not zero, [r], rising."""

    @property
    def images(self) -> int:
        """How many training images have a feature: those that were left out count for nothing."""

    def __len__(self) -> int:
        """N, how many training images there are."""

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """Of the query features [Q, k]: [Q, r]."""

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Of the training images `rows` as if they were queries: [B, r]."""

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """τ [Q, N] for an absolute λ, from the coordinates of the queries."""

    def self_influence(self, damping: float, train: slice = EVERY) -> Array:
        """τ(x^n)_n of the training images, [N]."""

    def norms(self, train: slice = EVERY) -> Array:
        """‖φ_n‖, [N]."""

    def preconditioned_norms(self, damping: float, train: slice = EVERY) -> Array:
        """‖(G + λI)⁻¹ φ_n‖, [N]."""


Fit = Callable[[Rows], Preconditioner]


def mean_eigenvalue(kernel: Preconditioner) -> float:
    """trace(G) / N, the unit of relative damping."""
    return float(kernel.eigenvalues.sum() / kernel.images)


def effective_dimension(kernel: Preconditioner, damping: float) -> float:
    """d(λ) = Σ_r s_r / (s_r + λ): how many directions are kept; falls from r to 0 as λ grows."""
    return float((kernel.eigenvalues / (kernel.eigenvalues + damping)).sum())
