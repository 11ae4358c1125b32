"""Compute τ(x) = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ for any λ from one decomposition, without inverting a matrix.

With the singular value decomposition Φ = U diag(√s) Vᵀ, e = ΦV = U diag(√s) and b(x) = Vᵀφ(x):

    τ(x)_n = Σ_r b_r(x) e_nr / (s_r + λ),        ‖φ_n‖² = Σ_r e_nr²,        ‖(ΦᵀΦ + λI)⁻¹φ_n‖² = Σ_r e_nr² / (s_r + λ)²

Only the smaller Gram matrix is decomposed, in float64: ΦᵀΦ = V diag(s) Vᵀ if k ≤ N (primal), ΦΦᵀ = U diag(s) Uᵀ if
N < k (dual), where b(x) = eᵀΦφ(x) / s. Directions in which all training features are zero add nothing and are left out.

In the primal form, e is kept in memory only if it is small. For more images, training features are read in blocks, and
scores are products in float32 with (ΦᵀΦ + λI)⁻¹φ(x), which is computed in float64. So the memory does not grow with N.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk
from torch import Tensor

from dtrak.errors import DtrakError
from dtrak.kernels.preconditioner import EVERY, Array, Rows

ROWS_AT_ONCE = 32  # the float64 results for so many rows stay in the CPU's cache
KEPT_BYTES = 256 << 20  # the coordinates e of all training images stay in memory if they take at most this


@dataclass(frozen=True, eq=False)
class RidgeKernel:
    """The preconditioner with G = ΦᵀΦ, made from the decomposed training features Φ [N, k] of rank r."""

    eigenvalues: Array  # s [r], positive, in rising order
    directions: Array | None  # V [k, r] in the primal form, None in the dual form
    dual: Array | None  # e [N, r] in the dual form, None in the primal form
    images: int  # how many training images have a feature; images that were left out have zeros and do not count
    features: Rows
    _last: list[Any] = field(init=False, default_factory=list)  # coordinates, λ, and what was solved for them

    @classmethod
    def opened(cls, arrays: Mapping[str, NDArray[Any]], features: Rows) -> "RidgeKernel":
        """Return the kernel of the arrays that `arrays` gave for the same features."""
        images = int(arrays["images"])
        return cls(arrays["eigenvalues"], arrays.get("directions"), arrays.get("dual"), images, features)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was fitted."""
        form = {"dual": self.dual} if self.directions is None else {"directions": self.directions}
        found = {"eigenvalues": self.eigenvalues, "images": np.array(self.images), **form}
        return {name: array for name, array in found.items() if array is not None}

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def train(self) -> Array | None:
        """e [N, r]; None if there are so many images that their features are read in blocks."""
        if self.directions is None:
            return self.dual
        if 8 * len(self) * len(self.eigenvalues) > KEPT_BYTES:
            return None
        train = np.empty((len(self), len(self.eigenvalues)))
        for rows, block in self.features.blocks():
            np.matmul(_wide(block), self.directions, out=train[rows.start : rows.stop])
        return train

    @cached_property
    def basis(self) -> Array:
        """V [k, r], in both forms: for the dual one, V = Φᵀ e diag(1/s)."""
        if self.directions is not None:
            return self.directions
        assert self.dual is not None
        basis = np.zeros((self.features.dim, len(self.eigenvalues)))
        for rows, block in self.features.blocks():
            basis += _wide(block).T @ self.dual[rows.start : rows.stop]
        return np.asarray(basis / self.eigenvalues)

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """Return b [Q, r] of the query features [Q, k]."""
        wide = queries.astype(np.float64)
        if self.directions is not None:
            return np.asarray(wide @ self.directions)
        products = np.empty((len(wide), len(self.features)))  # Φφ(x)
        for rows, block in self.features.blocks():
            products[:, rows.start : rows.stop] = wide @ _wide(block).T
        assert self.dual is not None
        return np.asarray(products @ self.dual / self.eigenvalues)

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return b [B, r] of the training images `rows`, which equals their rows of e."""
        if self.train is not None:
            return np.asarray(self.train[rows])
        return self.coordinates(self.features.at([int(row) for row in rows]).numpy())

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """Return τ [Q, N] for an absolute λ, from the coordinates of the queries."""
        if self.train is not None:
            return np.asarray(coordinates / (self.eigenvalues + damping) @ self.train[train].T, dtype=np.float32)
        back = self._solved(coordinates, damping)
        scores = np.empty((len(back), len(range(len(self))[train])), dtype=np.float32)
        first = range(len(self))[train].start
        for rows, block in self.features.blocks(range(len(self))[train]):
            scores[:, rows.start - first : rows.stop - first] = (back @ block.T).numpy()
        return scores

    def _solved(self, coordinates: Array, damping: float) -> Tensor:
        """Return (ΦᵀΦ + λI)⁻¹φ(x) [Q, k] in float32.

        The last result is kept: rules for λ ask about a hundred stretches of training images, one after the other.
        """
        if not self._last or self._last[0] is not coordinates or self._last[1] != damping:
            assert self.directions is not None
            back = np.asarray(coordinates / (self.eigenvalues + damping) @ self.directions.T, dtype=np.float32)
            self._last[:] = coordinates, damping, torch.from_numpy(back)
        found: Tensor = self._last[2]
        return found

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
        return np.concatenate([part**2 @ weights for part in self._parts(train)])

    def _parts(self, train: slice) -> Iterator[NDArray[np.floating[Any]]]:
        """Yield the rows of e of some training images, a few at a time."""
        if self.train is not None:
            chosen = self.train[train]
            for start in range(0, len(chosen), ROWS_AT_ONCE):
                yield chosen[start : start + ROWS_AT_ONCE]
            return
        directions = torch.from_numpy(np.asarray(self.directions, dtype=np.float32))
        for _, block in self.features.blocks(range(len(self))[train]):
            for part in block.split(ROWS_AT_ONCE):
                yield (part @ directions).numpy()


def decompose(features: Rows) -> RidgeKernel:
    """Read the features Φ [N, k] in blocks, and decompose the smaller of ΦᵀΦ and ΦΦᵀ."""
    count, dim = len(features), features.dim
    if dim <= count:
        gram, images = _inner_gram(features)
        eigenvalues, directions = eigen(gram, count)
        return RidgeKernel(eigenvalues, directions, None, images, features)
    gram = _outer_gram(features)
    left_out = np.flatnonzero(np.diag(gram) == 0)  # images whose features are zeros
    eigenvalues, dual = eigen(gram, dim)
    dual *= np.sqrt(eigenvalues)
    dual[left_out] = 0  # instead of rounding errors
    return RidgeKernel(eigenvalues, None, dual, count - len(left_out), features)


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


def _inner_gram(features: Rows) -> tuple[Array, int]:
    """Return ΦᵀΦ [k, k], only its lower half filled, because `eigh` reads only that, and how many rows are not zero."""
    gram, images = np.zeros((features.dim, features.dim), order="F"), 0
    for _, block in features.blocks():
        gram = dsyrk(1.0, _wide(block).T, 1.0, gram, lower=1, overwrite_c=1)
        images += int(block.any(1).sum())
    return gram, images


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
