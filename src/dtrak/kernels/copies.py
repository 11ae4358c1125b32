"""Read the features of every noised copy of an image in blocks, and scale them to unit length if wanted."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dtrak.kernels.preconditioner import Rows

KEPT_BYTES = 2 << 30  # features of at most this size stay in memory
MANY_ROWS = 4096  # products of so many rows at once use the processor well


@dataclass(frozen=True, eq=False)
class CopyFeatures:
    """The features φ_c [N, C, k] of all copies, where the copies of several objectives are side by side."""

    stores: Sequence[Rows]  # one store for each objective, all of the same images
    unit: bool = True  # whether every φ_c is scaled to length 1
    averaged: bool = False  # whether the copies of an image are replaced with their mean: [N, 1, k]

    @property
    def dim(self) -> int:
        return self.stores[0].dim

    def __len__(self) -> int:
        return len(self.stores[0])

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Return C and k of the blocks; C is 1 if the copies are averaged."""
        _, one = next(self._read(range(1)))
        return one.shape[1], one.shape[2]

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        """Yield all images in order, or only the `wanted` ones, in blocks: (images, float32 [b, C, k])."""
        wanted = range(len(self)) if wanted is None else wanted
        if self._kept is None:
            yield from self._read(wanted)
            return
        for rows, block in self._kept:
            if chosen := range(max(rows.start, wanted.start), min(rows.stop, wanted.stop)):
                yield chosen, block[chosen.start - rows.start : chosen.stop - rows.start]

    def many_rows(self, wanted: range | None = None) -> Iterator[Tensor]:
        """Yield the same in larger blocks, of at least MANY_ROWS copies each except for the last: float32 [b, C, k]."""
        gathered: list[Tensor] = []
        for _, block in self.blocks(wanted):
            gathered.append(block)
            if sum(len(one) for one in gathered) * block.shape[1] >= MANY_ROWS:
                yield torch.cat(gathered)
                gathered = []
        if gathered:
            yield torch.cat(gathered)

    @cached_property
    def _kept(self) -> list[tuple[range, Tensor]] | None:
        """Return all blocks if they are small, so that another λ does not read and scale them again; None if not."""
        is_small = 4 * len(self) * math.prod(self.shape) <= KEPT_BYTES
        return list(self._read(range(len(self)))) if is_small else None

    def _read(self, wanted: range) -> Iterator[tuple[range, Tensor]]:
        for parts in zip(*(store.blocks(wanted) for store in self.stores), strict=True):
            yield parts[0][0], self.prepared([block for _, block in parts])

    def at(self, rows: Sequence[int]) -> Tensor:
        """Return some images in the given order, float32 [b, C, k]."""
        return self.prepared([store.at(rows) for store in self.stores])

    def prepared(self, of_objectives: Sequence[Tensor]) -> Tensor:
        """Join the copies [b, C, k] of the objectives, scale them if `unit` is set, average them if `averaged` is."""
        found = torch.cat(list(of_objectives), 1)
        if self.unit:
            found = torch.nn.functional.normalize(found, dim=2)
        return found.mean(1, keepdim=True) if self.averaged else found

    def mean(self) -> "CopyFeatures":
        """Return the same features with the copies of each image averaged."""
        return replace(self, averaged=True)


@dataclass(frozen=True, eq=False)
class OneCopy:
    """The features φ_c [N, k] of one copy c."""

    features: CopyFeatures
    copy: int

    @property
    def dim(self) -> int:
        return self.features.dim

    def __len__(self) -> int:
        return len(self.features)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        for rows, block in self.features.blocks(wanted):
            yield rows, block[:, self.copy]

    def at(self, rows: Sequence[int]) -> Tensor:
        return self.features.at(rows)[:, self.copy]
