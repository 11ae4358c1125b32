"""The kernel of noised copies for one λ, by a Cholesky factor instead of a decomposition:

    τ(x)_n = Σ_c φ_c(x)ᵀ (G + λI)⁻¹ φ_c(n),        G + λI = L Lᵀ

It has the scores of the decomposed kernel (`pooled.py`). It is ready in a tenth of the time, but only for this λ.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from scipy.linalg.blas import strsm
from scipy.linalg.lapack import dtrtri

from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.gram import Gram
from dtrak.kernels.preconditioner import EVERY, Array


@dataclass(frozen=True, eq=False)
class SolvedKernel:
    """The preconditioner for one λ. Its methods take this λ and no other.

    `features` are what it scores: all copies, or their means.
    """

    factor: Array  # L [k, k], in Fortran's order
    damping: float  # λ
    trace: float  # the sum of the eigenvalues of G
    images: int  # how many training images have a feature
    features: CopyFeatures

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def eigenvalues(self) -> Array:
        """The eigenvalues of G, in rising order. They take longer than all else, and no score needs them."""
        found = scipy.linalg.eigvalsh(np.tril(self.factor) @ np.tril(self.factor).T) - self.damping
        return np.asarray(found[found > found[-1] * np.finfo(np.float32).eps])

    @property
    def rank(self) -> int:
        """Return how many directions there are."""
        copies, dim = self.features.shape
        return min(dim, self.images * copies)

    def effective_dimension(self, damping: float) -> float:
        """Return d(λ) = trace(G (G + λI)⁻¹) = k − λ ‖L⁻¹‖²."""
        self._check(damping)
        inverse, _ = dtrtri(self.factor, lower=1)
        return float(len(inverse) - damping * np.linalg.norm(np.tril(inverse)) ** 2)

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """Return (G + λI)⁻¹φ_c [Q, C, k] of the query features [Q, C, k]."""
        columns = queries.reshape(-1, queries.shape[-1]).T.astype(np.float64)
        solved = scipy.linalg.cho_solve((self.factor, True), columns, check_finite=False)
        return np.asarray(solved.T).reshape(queries.shape)

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return (G + λI)⁻¹φ_c [B, C, k] of the training images `rows`."""
        return self.coordinates(self.features.at([int(row) for row in rows]).numpy())

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """Return τ [Q, N] from the coordinates of the queries [Q, C, k]."""
        self._check(damping)
        solved = np.asarray(coordinates, dtype=np.float32).reshape(len(coordinates), -1)
        blocks = self.features.blocks(range(len(self))[train])
        return np.concatenate([solved @ block.flatten(1).numpy().T for _, block in blocks], axis=1)

    def self_influence(self, damping: float, train: slice = EVERY) -> Array:
        """Return τ(x^n)_n = Σ_c ‖L⁻¹φ_c‖², [N]."""
        self._check(damping)
        return np.concatenate([(block**2).sum((1, 2)) for block in self._whitened(train)])

    def norms(self, train: slice = EVERY) -> Array:
        """Return the length of all features of each image together, √(Σ_c ‖φ_c‖²), [N]."""
        blocks = self.features.blocks(range(len(self))[train])
        return np.asarray(torch.cat([block.square().sum((1, 2)).double() for _, block in blocks]).sqrt().numpy())

    def preconditioned_norms(self, damping: float, train: slice = EVERY) -> Array:
        """Return √(Σ_c ‖(G + λI)⁻¹ φ_c‖²), [N]."""
        self._check(damping)
        squares = [(block**2).sum((1, 2)) for block in self._whitened(train, twice=True)]
        return np.asarray(np.sqrt(np.concatenate(squares)))

    @cached_property
    def _single(self) -> NDArray[np.float32]:
        return np.asfortranarray(self.factor, dtype=np.float32)

    def _whitened(self, train: slice, twice: bool = False) -> Iterator[NDArray[np.float32]]:
        """Yield L⁻¹φ_c, or L⁻ᵀL⁻¹φ_c, of some training images in blocks, [b, C, k]."""
        for block in self.features.many_rows(range(len(self))[train]):
            columns = block.flatten(0, 1).numpy().T  # in Fortran's order, as it is a transpose
            solved = strsm(1.0, self._single, columns, lower=1)
            if twice:
                solved = strsm(1.0, self._single, solved, lower=1, trans_a=1)
            yield solved.T.reshape(block.shape)

    def _check(self, damping: float) -> None:
        if not math.isclose(damping, self.damping, rel_tol=1e-6):
            raise ValueError(f"this kernel is for λ = {self.damping:g}, and not for {damping:g}")


def solve(gram: Gram, damping: float, scored: CopyFeatures) -> SolvedKernel:
    """Return the kernel that scores these features. Raise numpy's LinAlgError if λ is less than rounding errors."""
    matrix = gram.lower()
    matrix[np.diag_indices(gram.dim)] += damping
    factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    return SolvedKernel(factor, damping, gram.trace, gram.images, scored)
