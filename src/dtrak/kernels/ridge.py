"""The kernel of the features φ_c(n) of C copies of N training images, where C is 1 if copies are averaged:

    τ(x)_n = Σ_c φ_c(x)ᵀ (G + λI)⁻¹ φ_c(n),        G = ΦᵀΦ = Σ_n Σ_c φ_c(n) φ_c(n)ᵀ,        Φ [NC, k]

No matrix is inverted. The smaller of G and ΦΦᵀ is added up from blocks of rows, and factored in one of two ways:

    G = V diag(s) Vᵀ         for every λ:  φᵀ(G + λI)⁻ᵖφ′ = Σ_r b_r b′_r / (s_r + λ)ᵖ,  with b = Vᵀφ and b′ = Vᵀφ′
    ΦΦᵀ = U diag(s) Uᵀ       the same, with V = ΦᵀU diag(1/√s); the b of all training rows are U diag(√s)
    G + λI = L Lᵀ            for one λ, in a tenth of the time:  (G + λI)⁻¹φ = L⁻ᵀL⁻¹φ

Directions in which all training features are zero add nothing and are left out. If C is 1, all is float64. Products of
several copies are float32, and their sums float64: on digits and CIFAR-2 this changes scores by less than a thousandth
of their spread. If the b of all training rows are too many to stay in memory, rows are read again for each λ; so the
memory does not grow with N.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, dtrsm, ssyrk, strsm
from scipy.linalg.lapack import dtpttr, dtrtri, dtrttp
from torch import Tensor

from dtrak.contracts import EVERY, Array, Rows, Values
from dtrak.errors import DtrakError
from dtrak.kernels.rows import large_blocks

# The b of all training rows stay in memory if they take at most this: of one copy, or of several.
KEPT_BYTES, KEPT_OF_COPIES = 256 << 20, 2 << 30
FEW_ROWS = 0.4  # the eigenvectors of so many rows, as a share of k, take as long as the Cholesky factor of G [k, k]
AT_ONCE = 32  # the float64 results for so many images stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Gram:
    """The smaller of G [k, k] and ΦΦᵀ [NC, NC]: of its lower half, the columns one after the other."""

    packed: Array
    images: int  # how many training images have a feature; images that were left out have zeros and do not count
    is_outer: bool  # whether it is ΦΦᵀ

    @classmethod
    def of(cls, rows: Rows, inner: bool = False) -> "Gram":
        """Add it up from blocks of rows. With `inner`, it is G in any case."""
        copies, dim = rows.shape
        is_outer = len(rows) * copies < dim and not inner
        side, images = len(rows) * copies if is_outer else dim, 0
        total = np.zeros((side, side), order="F")  # only its lower half is filled
        for rows_of, block in rows.blocks() if is_outer else large_blocks(rows):
            images += int(block.flatten(1).any(1).sum())
            if is_outer:
                for others, other in rows.blocks(range(rows_of.stop)):
                    total[_part(rows_of, copies), _part(others, copies)] = _wide(block) @ _wide(other).T
            elif copies == 1:
                total = dsyrk(1.0, _wide(block).T, 1.0, total, lower=1, overwrite_c=1)
            else:
                total += ssyrk(1.0, block.flatten(0, 1).numpy().T, lower=1)
        if not images:
            raise DtrakError("every training feature is zero: the objective does not depend on these parameters")
        return cls(dtrttp(total, uplo="L")[0], images, is_outer)

    @property
    def side(self) -> int:
        return math.isqrt(2 * len(self.packed))

    @property
    def diagonal(self) -> Array:
        lengths = np.arange(self.side, 0, -1)  # of the columns
        return np.asarray(self.packed[np.cumsum(lengths) - lengths])

    def lower(self) -> Array:
        """Return a matrix in Fortran's order whose lower half is that of this one."""
        return np.asarray(dtpttr(self.side, self.packed, uplo="L")[0])


@dataclass(frozen=True, eq=False)
class Eigen:
    """The eigenvalues of a Gram matrix that are above rounding errors, and their vectors."""

    values: Array  # s [r], in rising order
    vectors: Array  # V [k, r]; of ΦΦᵀ, the b of all training rows, U diag(√s) [NC, r]
    images: int
    is_outer: bool

    @classmethod
    def of(cls, gram: Gram, rows: Rows) -> "Eigen":
        copies, dim = rows.shape
        values, vectors = scipy.linalg.eigh(gram.lower(), overwrite_a=True, check_finite=False, driver="evd")
        is_wide = gram.is_outer or copies == 1
        noise = np.finfo(np.float64).eps * max(dim, len(rows) * copies) if is_wide else np.finfo(np.float32).eps
        first = int(np.searchsorted(values, values[-1] * noise, side="right"))
        values, vectors = values[first:], vectors[:, first:]
        if gram.is_outer:
            vectors *= np.sqrt(values)
            vectors[gram.diagonal == 0] = 0  # of images that were left out, instead of rounding errors
        return cls(values, vectors if copies == 1 else vectors.astype(np.float32), gram.images, gram.is_outer)


class Ridge:
    """The kernel that is fitted on `rows`. With a `gram`, it is ready for one λ after the other; else for all.

    If `scored` is given, these are the features that it scores, of the same images: the means of copies, say.
    """

    def __init__(
        self, rows: Rows, find_eigen: Callable[[], Eigen], gram: Gram | None = None, scored: Rows | None = None
    ) -> None:
        self.rows, self.scored = rows, scored or rows
        self._find_eigen, self._gram = find_eigen, gram
        # What was solved last, and for which λ. Each is replaced as a whole, as several threads may ask.
        self._factor: tuple[float, Array | None] = math.nan, None
        self._solved: tuple[float, Array | None, Array] = math.nan, None, np.empty(0)

    @classmethod
    def of(cls, rows: Rows, one_damping: bool = False, scored: Rows | None = None) -> "Ridge":
        """Fit the kernel. If scores are asked for `one_damping`, and rows are not few, it takes a Cholesky factor."""
        gram = Gram.of(rows, inner=True) if one_damping and is_quick_to_solve(rows) else None
        return cls(rows, lambda: Eigen.of(gram or Gram.of(rows), rows), gram, scored)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _eigen(self) -> Eigen:
        return self._find_eigen()

    @property
    def eigenvalues(self) -> Array:
        return self._eigen.values

    @property
    def images(self) -> int:
        return (self._gram or self._eigen).images

    @property
    def size(self) -> int:
        return self.images  # ΦΦᵀ of averaged copies, which has the eigenvalues of G, has this side

    @property
    def trace(self) -> float:
        return float((self.eigenvalues if self._gram is None else self._gram.diagonal).sum())

    @property
    def rank(self) -> int:
        copies, dim = self.rows.shape
        return len(self.eigenvalues) if self._gram is None else min(dim, self.images * copies)

    def dimension(self, damping: float) -> float:
        """Return d(λ) = Σ_r s_r / (s_r + λ), or k − λ‖L⁻¹‖²."""
        factor = self._cholesky(damping)
        if factor is None:
            return float((self.eigenvalues / (self.eigenvalues + damping)).sum())
        inverse, _ = dtrtri(factor, lower=1)
        return float(len(inverse) - damping * np.linalg.norm(np.tril(inverse)) ** 2)

    def coordinates(self, rows: NDArray[np.float32]) -> Array:
        """Return b [Q, C, r] of features [Q, C, k], or the features themselves for one λ after the other."""
        return self._projected(rows) if self._gram is None else rows

    def train_coordinates(self, places: Sequence[int]) -> Array:
        if self._kept is not None:
            return np.asarray(self._kept[list(places)])
        return self.coordinates(self.scored.at(places).numpy())

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> Values:
        wanted = range(len(self))[train]
        if self._kept is not None:
            weights = 1 / (self.eigenvalues + damping)
            weighted = np.multiply(coordinates, weights, dtype=self._kept.dtype, casting="same_kind")
            return (_flat(weighted) @ _flat(self._kept[train]).T).astype(np.float32, copy=False)
        last, of, back = self._solved  # rules for λ ask for a hundred stretches of images, one after the other
        if last != damping or of is not coordinates:
            self._solved = math.nan, None, np.empty(0)
            is_raw = self._gram is not None
            half = self.whitened(coordinates, damping) if is_raw else self._scaled(coordinates, damping)
            # Where all training rows are zero, a Cholesky factor leaves φ/λ, which cancels only in float64.
            kind = np.float64 if is_raw and self.rows.shape[0] == 1 else np.float32
            back = _flat(self.lifted(half, damping)).astype(kind, copy=False)  # (G + λI)⁻¹φ
            self._solved = damping, coordinates, back
        scores = np.empty((len(coordinates), len(wanted)), dtype=np.float32)
        for images, block in self.scored.blocks(wanted):
            part = slice(images.start - wanted.start, images.stop - wanted.start)
            scores[:, part] = back @ block.flatten(1).numpy().T
        return scores

    def squares(self, damping: float, power: int, train: slice = EVERY) -> Array:
        wanted, factor = range(len(self))[train], self._cholesky(damping)
        if factor is None and (power or self._kept is not None):
            weights = (self.eigenvalues + damping) ** -power
            return np.concatenate([np.square(some).sum(1) @ weights for some in self._train_blocks(wanted)])
        found, kind = [], np.float64 if self.rows.shape[0] == 1 else np.float32
        for _, block in large_blocks(self.scored, wanted):
            rows: Array = block.numpy()
            if factor is not None and power:
                rows = _solved(factor, rows, kind=kind)
            if factor is not None and power == 2:
                rows = _solved(factor, rows, turned=True, kind=kind)
            found.append(np.square(rows).sum((1, 2), dtype=np.float64))
        return np.concatenate(found)

    def whitened(self, rows: Array, damping: float) -> Array:
        """Return vectors ψ [Q, C, r] of features [Q, C, k] whose inner products are scores: τ(x)_n = ψ(x)·ψ(n)."""
        factor = self._cholesky(damping)
        if factor is None:
            return self._scaled(self._projected(rows), damping)
        return _solved(factor, rows)

    def lifted(self, vectors: Array, damping: float) -> Array:
        """Return vectors [Q, C, k] whose products with features are those of `vectors` [Q, C, r] with their ψ."""
        factor = self._cholesky(damping)
        if factor is not None:
            return _solved(factor, vectors, turned=True)
        scaled = self._scaled(vectors, damping).reshape(-1, vectors.shape[2])
        return np.asarray((scaled @ self._basis.T).reshape(*vectors.shape[:2], -1))

    @cached_property
    def _basis(self) -> Array:
        """V [k, r]; where ΦΦᵀ was decomposed, Φᵀ times the b of all training rows, diag(1/s)."""
        if not self._eigen.is_outer:
            return self._eigen.vectors
        total = np.zeros((self.rows.shape[1], len(self.eigenvalues)))
        for images, block in self.rows.blocks():
            total += _wide(block).T @ self._eigen.vectors[_part(images, self.rows.shape[0])]
        return np.asarray(total / self.eigenvalues)

    def _cholesky(self, damping: float) -> Array | None:
        """Return L in Fortran's order. None if the kernel is for every λ, or if λ is less than G's rounding errors."""
        if self._gram is None:
            return None
        last, factor = self._factor
        if last != damping:
            self._factor, factor = (math.nan, None), None
            precision = np.finfo(np.float64 if self.rows.shape[0] == 1 else np.float32)
            if damping > precision.eps * self.trace:
                matrix = self._gram.lower()
                matrix[np.diag_indices(len(matrix))] += damping
                with suppress(np.linalg.LinAlgError):
                    factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
            self._factor = damping, factor
        return factor

    def _scaled(self, coordinates: Array, damping: float) -> Array:
        """Return b / √(s + λ), in the same precision."""
        weights = 1 / np.sqrt(self.eigenvalues + damping)
        return np.asarray(np.multiply(coordinates, weights, dtype=coordinates.dtype, casting="same_kind"))

    def _projected(self, rows: Array) -> Array:
        """Return Vᵀφ [Q, C, r] of features [Q, C, k]."""
        flat, vectors = rows.reshape(-1, rows.shape[2]), self._eigen.vectors  # one product, as many small ones are slow
        if self._eigen.is_outer:
            products = np.empty((len(flat), len(vectors)))  # φᵀΦᵀ
            for images, block in self.rows.blocks():
                products[:, _part(images, self.rows.shape[0])] = flat.astype(np.float64) @ _wide(block).T
            found = (products @ vectors / self.eigenvalues).astype(vectors.dtype, copy=False)
        else:
            found = flat.astype(vectors.dtype, copy=False) @ vectors
        return np.asarray(found.reshape(*rows.shape[:2], -1))

    @cached_property
    def _kept(self) -> Array | None:
        """The coordinates of all training images [N, C, r], if they are small: then another λ is one product."""
        if self._gram is not None:
            return None
        vectors, copies = self._eigen.vectors, self.scored.shape[0]
        if self._eigen.is_outer and self.scored is self.rows:
            return vectors.reshape(len(self), copies, -1)
        shape = len(self), copies, len(self.eigenvalues)
        if vectors.itemsize * math.prod(shape) > (KEPT_BYTES if self.rows.shape[0] == 1 else KEPT_OF_COPIES):
            return None
        kept = np.empty(shape, dtype=vectors.dtype)
        for images, block in large_blocks(self.scored):
            flat = block.flatten(0, 1).numpy().astype(self._basis.dtype, copy=False)
            kept[images.start : images.stop] = (flat @ self._basis).reshape(-1, *shape[1:])
        return kept

    def _train_blocks(self, wanted: range) -> Iterator[Array]:
        """Yield the coordinates of some training images, a few at a time, [b, C, r]."""
        if self._kept is not None:
            for start in range(wanted.start, wanted.stop, AT_ONCE):
                yield self._kept[start : min(start + AT_ONCE, wanted.stop)]
            return
        basis = self._basis.astype(np.float32, copy=False)
        for _, block in large_blocks(self.scored, wanted):
            yield (block.flatten(0, 1).numpy() @ basis).reshape(len(block), block.shape[1], -1)


def is_quick_to_solve(rows: Rows) -> bool:
    """Return whether a Cholesky factor of G [k, k] is no more work than the eigenvectors of the smaller matrix."""
    copies, dim = rows.shape
    return len(rows) * copies >= FEW_ROWS * dim


def _solved(factor: Array, rows: Array, turned: bool = False, kind: type = np.float64) -> Array:
    """Return L⁻¹φ, or L⁻ᵀφ if `turned`, of rows [Q, C, k]."""
    solve = dtrsm if kind is np.float64 else strsm
    columns: Array = rows.reshape(-1, rows.shape[2]).T.astype(kind, copy=False)
    found = solve(1.0, np.asfortranarray(factor, kind), columns, lower=1, trans_a=turned)
    return np.asarray(found.T.reshape(rows.shape))


def _part(images: range, copies: int) -> slice:
    """Return the rows of Φ that are the copies of some images."""
    return slice(copies * images.start, copies * images.stop)


def _flat(rows: Array) -> Array:
    """Return [Q, C·k] of [Q, C, k]."""
    return rows.reshape(len(rows), -1)


def _wide(block: Tensor) -> Array:
    """Return a block [b, C, k] as float64 [b·C, k]."""
    return np.asarray(block.flatten(0, 1).numpy(), dtype=np.float64)
