"""One kernel for all noised copies, which compares each copy of a query with the same copy of a training image:

    τ(x)_n = Σ_c φ_c(x)ᵀ (G + λI)⁻¹ φ_c(n),        G = Σ_n Σ_c φ_c(n) φ_c(n)ᵀ

G = V diag(s) Vᵀ is decomposed once, in float64; then scores for any λ are cheap. The sizes of G and V [k, r] do not
grow with the number of images N: training images are read from their store in blocks. For one λ alone, `solved.py` is
quicker.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.kernels.copies import KEPT_BYTES, CopyFeatures
from dtrak.kernels.gram import Gram, fit_gram
from dtrak.kernels.preconditioner import EVERY, Array
from dtrak.kernels.ridge import eigen

IMAGES_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class PooledKernel:
    """The preconditioner that is fitted on every copy of the training images.

    `features` are what it scores: all copies, or their means.
    """

    eigenvalues: Array  # s [r], positive, in rising order
    directions: NDArray[np.float32]  # V [k, r]
    images: int  # how many training images have a feature; images that were left out have zeros and do not count
    features: CopyFeatures

    @classmethod
    def opened(cls, arrays: Mapping[str, NDArray[Any]], features: CopyFeatures) -> "PooledKernel":
        """Return the kernel of the arrays that `arrays` gave, which scores these features of the same images."""
        return cls(arrays["eigenvalues"], arrays["directions"], int(arrays["images"]), features)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was fitted."""
        return {"eigenvalues": self.eigenvalues, "directions": self.directions, "images": np.array(self.images)}

    def __len__(self) -> int:
        return len(self.features)

    @property
    def basis(self) -> NDArray[np.float32]:
        """V [k, r]."""
        return self.directions

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """Return Vᵀφ_c [Q, C, r] of the query features [Q, C, k]."""
        rows = queries.reshape(-1, queries.shape[-1]) @ self.directions  # one product, as many small ones are slow
        return np.asarray(rows, dtype=np.float64).reshape(*queries.shape[:-1], -1)

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return Vᵀφ_c [B, C, r] of the training images `rows`."""
        return self.coordinates(self.features.at([int(row) for row in rows]).numpy())

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """Return τ [Q, N] for an absolute λ, from the coordinates of the queries [Q, C, r]."""
        weights = 1 / (self.eigenvalues + damping)
        weighted = np.multiply(coordinates, weights, dtype=np.float32, casting="same_kind")  # no float64 in between
        if self._kept is not None:
            return np.asarray(weighted.reshape(len(weighted), -1) @ self._kept[train].reshape(-1, weighted[0].size).T)
        back = (weighted @ self.directions.T).reshape(len(weighted), -1)  # (G + λI)⁻¹φ_c(x), [Q, C·k]
        blocks = self.features.blocks(range(len(self))[train])
        return np.concatenate([back @ block.flatten(1).numpy().T for _, block in blocks], axis=1)

    def self_influence(self, damping: float, train: slice = EVERY) -> Array:
        """Return τ(x^n)_n = Σ_c Σ_r (v_r·φ_c)² / (s_r + λ), [N]."""
        return self._squares(1 / (self.eigenvalues + damping), train)

    def norms(self, train: slice = EVERY) -> Array:
        """Return the length of all features of each image together, √(Σ_c ‖φ_c‖²), [N]."""
        wanted = range(len(self))[train]
        squares = [block.square().sum((1, 2)).double() for _, block in self.features.blocks(wanted)]
        return np.asarray(torch.cat(squares).sqrt().numpy())

    def preconditioned_norms(self, damping: float, train: slice = EVERY) -> Array:
        """Return √(Σ_c ‖(G + λI)⁻¹ φ_c‖²), [N]."""
        return np.sqrt(self._squares((self.eigenvalues + damping) ** -2, train))

    def _squares(self, weights: Array, train: slice) -> Array:
        """Return Σ_c Σ_r (v_r·φ_c)² w_r, [N]."""
        sums = [block.square().sum(1).double() @ torch.from_numpy(weights) for block in self._coordinate_blocks(train)]
        return np.asarray(torch.cat(sums).numpy())

    @cached_property
    def _kept(self) -> NDArray[np.float32] | None:
        """The coordinates of all training images [N, C, r] if they are small: then another λ is one product."""
        copies, _ = self.features.shape
        size = (len(self), copies, len(self.eigenvalues))
        if 4 * math.prod(size) > KEPT_BYTES:
            return None
        kept, start = np.empty(size, dtype=np.float32), 0
        for block in self._rotated_blocks(EVERY):
            kept[start : start + len(block)] = block
            start += len(block)
        return kept

    def _coordinate_blocks(self, train: slice) -> Iterator[Tensor]:
        """Yield the coordinates Vᵀφ_c of some training images in blocks, [b, C, r]."""
        if self._kept is None:
            yield from self._rotated_blocks(train)
        else:
            yield from torch.from_numpy(self._kept[train]).split(IMAGES_AT_ONCE)

    def _rotated_blocks(self, train: slice) -> Iterator[Tensor]:
        for block in self.features.many_rows(range(len(self))[train]):
            yield torch.from_numpy(block.flatten(0, 1).numpy() @ self.directions).unflatten(0, block.shape[:2])


def fit_pooled(
    features: CopyFeatures, scored: CopyFeatures | None = None, gram: Callable[[], Gram] | None = None
) -> PooledKernel:
    """Decompose the smaller of G = ΦᵀΦ [k, k] and ΦΦᵀ [NC, NC], with Φ the features of every copy.

    If `scored` is given, the kernel scores these other features of the same images. If `gram` is given, it returns G.
    """
    copies, _ = features.shape
    if features.dim <= len(features) * copies:
        whole = fit_gram(features) if gram is None else gram()
        images = whole.images
        eigenvalues, directions = eigen(whole.lower(), len(features) * copies)
    else:
        every = torch.cat([block for _, block in features.blocks()])
        rows, images = every.flatten(0, 1).double().numpy(), int(every.flatten(1).any(1).sum())  # fewer than k rows
        eigenvalues, vectors = eigen(np.asfortranarray(rows @ rows.T), features.dim)
        directions = rows.T @ (vectors / np.sqrt(eigenvalues))
    return PooledKernel(eigenvalues, directions.astype(np.float32), images, scored or features)
