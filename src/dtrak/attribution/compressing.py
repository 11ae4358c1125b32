"""Compress an image to one vector z of m numbers, whose inner products are close to scores.

A score of a kernel method is an inner product of whitened features, the mean over P parts such as objectives:

    τ(x)_n = ψ(x)·ψ(n),        ψ(x) = (G + λI)^(−½) φ_c(x) / √P        of all copies c and parts, side by side

z = Mᵀψ, with the principal components M [D, m] of the ψ of some training images. It is one product with a matrix B:
z(n) = Σ_c B_cᵀ φ_c(n). So images that are added later get their z from the same B.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dtrak.attribution.formula_inputs import Fitted
from dtrak.contracts import Array, Rows
from dtrak.errors import UsageError
from dtrak.kernels import Ridge
from dtrak.kernels.damping import Damping

SAMPLE_BYTES = 256 << 20  # so much of the images' ψ is in memory for their principal components
MOST_SAMPLED = 16_384
BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Part:
    """A kernel of a method with its λ; the method's scores are the mean over its parts."""

    kernel: Ridge
    damping: float  # λ

    @classmethod
    def of(cls, fitted: Fitted | None, method: str, damping: Damping | float) -> "Part":
        if fitted is None or not isinstance(fitted.kernel, Ridge):  # others have no square root of (G + λI)⁻¹
            raise UsageError(f"an index cannot have scores of {method}: give trak, d-trak, mixed-trak or step-trak")
        return cls(fitted.kernel, fitted.absolute(damping) if isinstance(damping, Damping) else damping)

    @property
    def rows(self) -> Rows:
        return self.kernel.rows

    def whitened(self, places: Sequence[int]) -> Array:
        """Return ψ [b, C·r] of some training images."""
        found = self.kernel.whitened(self.kernel.rows.at(places).numpy(), self.damping)
        return found.reshape(len(found), -1)

    def lifted(self, vectors: Array) -> NDArray[np.float32]:
        """Return vectors [b, C·k] whose products with features are those of `vectors` [b, C·r] with their ψ."""
        copies = self.kernel.rows.shape[0]
        found = self.kernel.lifted(vectors.reshape(len(vectors), copies, -1), self.damping)
        return found.reshape(len(found), -1).astype(np.float32)

    def solved(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (G + λI)⁻¹φ [Q, C·k] of queries [Q, C, k]."""
        found = self.kernel.lifted(self.kernel.whitened(queries, self.damping), self.damping)
        return found.reshape(len(found), -1).astype(np.float32)


def compressing_matrices(parts: Sequence[Part], numbers: int) -> list[NDArray[np.float32]]:
    """Return B [C·k, m] of each part, with at most so many `numbers` m."""
    psi = _sampled(parts)
    components = _principal(psi, numbers)  # [m, D]
    ends = np.cumsum([part.whitened([0]).shape[1] for part in parts])
    scale = 1 / np.sqrt(len(parts))
    split = np.split(components, ends[:-1], axis=1)
    return [part.lifted(one * scale).T.copy() for part, one in zip(parts, split, strict=True)]


def _sampled(parts: Sequence[Part]) -> NDArray[np.float32]:
    """Return ψ [S, D] of training images that are spread evenly."""
    count = len(parts[0].kernel)
    width = sum(part.whitened([0]).shape[1] for part in parts)
    size = min(count, MOST_SAMPLED, max(1, SAMPLE_BYTES // (4 * width)))
    rows = np.linspace(0, count - 1, size).astype(np.int64)
    at_once = max(1, BLOCK_BYTES // (4 * width))
    blocks = [rows[start : start + at_once].tolist() for start in range(0, size, at_once)]
    found = [np.concatenate([part.whitened(block) for part in parts], axis=1) for block in blocks]
    return np.asarray(np.concatenate(found) / np.sqrt(len(parts)), dtype=np.float32)


def _principal(psi: NDArray[np.float32], numbers: int) -> Array:
    """Return the strongest principal components of ψ [S, D], [m, D]: of the smaller of ψᵀψ and ψψᵀ."""
    rows, width = psi.shape
    gram = (psi @ psi.T if rows < width else psi.T @ psi).astype(np.float64)
    first = max(0, len(gram) - numbers)
    values, vectors = scipy.linalg.eigh(gram, subset_by_index=[first, len(gram) - 1])
    kept = values > values[-1] * 1e-10
    values, vectors = values[kept][::-1], vectors[:, kept][:, ::-1]
    if rows >= width:
        return np.asarray(vectors.T)
    return np.asarray((vectors / np.sqrt(values)).T @ psi)


def compressed(rows: Sequence[Rows], matrices: Sequence[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield z of all images in blocks, [b, m], from their features of every part."""
    at_once = max(1, BLOCK_BYTES // (4 * sum(len(matrix) for matrix in matrices)))
    count = len(rows[0])
    for start in range(0, count, at_once):
        wanted = range(start, min(start + at_once, count))
        yield np.sum(
            [
                np.concatenate([block.flatten(1).numpy() @ matrix for _, block in of_part.blocks(wanted)])
                for of_part, matrix in zip(rows, matrices, strict=True)
            ],
            axis=0,
        )
