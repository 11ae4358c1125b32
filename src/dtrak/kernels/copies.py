"""The features of every noised copy of an image as kernels read them: in blocks, and of unit length if wanted."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dtrak.kernels.preconditioner import Rows

KEPT_BYTES = 1 << 30  # that may stay in memory


@dataclass(frozen=True, eq=False)
class CopyFeatures:
    """φ_c [N, C, k]: the copies of one or several objectives side by side."""

    stores: Sequence[Rows]  # one for each objective, of the same images
    unit: bool = True  # whether every φ_c is scaled to length 1
    averaged: bool = False  # whether the mean of an image's copies takes their place: [N, 1, k]

    @property
    def dim(self) -> int:
        return self.stores[0].dim

    def __len__(self) -> int:
        return len(self.stores[0])

    @cached_property
    def shape(self) -> tuple[int, int]:
        """C and k, as this gives them."""
        _, one = next(self._read(range(1)))
        return one.shape[1], one.shape[2]

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        wanted = range(len(self)) if wanted is None else wanted
        if self._kept is None:
            yield from self._read(wanted)
            return
        for rows, block in self._kept:
            if chosen := range(max(rows.start, wanted.start), min(rows.stop, wanted.stop)):
                yield chosen, block[chosen.start - rows.start : chosen.stop - rows.start]

    @cached_property
    def _kept(self) -> list[tuple[range, Tensor]] | None:
        """All blocks, if they are small: then another λ reads and scales nothing again."""
        is_small = 4 * len(self) * math.prod(self.shape) <= KEPT_BYTES
        return list(self._read(range(len(self)))) if is_small else None

    def _read(self, wanted: range) -> Iterator[tuple[range, Tensor]]:
        for parts in zip(*(store.blocks(wanted) for store in self.stores), strict=True):
            yield parts[0][0], self.prepared([block for _, block in parts])

    def prepared(self, of_objectives: Sequence[Tensor]) -> Tensor:
        """Join the copies [b, C, k] of each objective, scale them and average them, as the fields say."""
        found = torch.cat(list(of_objectives), 1)
        if self.unit:
            found = torch.nn.functional.normalize(found, dim=2)
        return found.mean(1, keepdim=True) if self.averaged else found

    def mean(self) -> "CopyFeatures":
        return replace(self, averaged=True)


@dataclass(frozen=True, eq=False)
class OneCopy:
    """φ_c [N, k] of one copy c."""

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
