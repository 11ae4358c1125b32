"""The rows that kernels read: the features of all copies side by side, at length 1, averaged, or of one copy alone."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.contracts import Rows

KEPT_BYTES = 2 << 30  # features of several copies stay in memory if they take at most this
MANY_ROWS = 4096  # products of so many rows at once use the processor well


class Stored(Protocol):
    """Where features are, such as a feature store: blocks are [b, C, k], or [b, k] if copies are averaged."""

    def __len__(self) -> int: ...

    def blocks(self, wanted: range | None = None) -> Iterable[tuple[range, Tensor]]: ...

    def at(self, places: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """The rows of an array, which are read as one block."""

    array: NDArray[np.float32]  # [N, C, k], or [N, k]

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape[1] if self.array.ndim == 3 else 1, self.array.shape[-1]

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        images = range(len(self)) if wanted is None else wanted
        yield images, torch.from_numpy(self.array[images.start : images.stop]).reshape(len(images), *self.shape)

    def at(self, places: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.array[list(places)]).reshape(len(places), *self.shape)


@dataclass(frozen=True, eq=False)
class CopyRows:
    """The features φ_c(n) of all copies [N, C, k]; the copies of several objectives are side by side."""

    stores: Sequence[Stored]  # one for each objective, all of the same images
    unit: bool = False  # whether every φ_c is scaled to length 1

    @cached_property
    def shape(self) -> tuple[int, int]:
        _, copies, dim = self.at([0]).shape
        return copies, dim

    def __len__(self) -> int:
        return len(self.stores[0])

    def __getitem__(self, images: slice) -> NDArray[np.float32]:
        """Return some images at once, [Q, C, k]; only for small sets such as queries."""
        return torch.cat([block for _, block in self._read(range(len(self))[images])]).numpy()

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        wanted = range(len(self)) if wanted is None else wanted
        if self._kept is None:
            yield from self._read(wanted)
            return
        for images, block in self._kept:
            if chosen := range(max(images.start, wanted.start), min(images.stop, wanted.stop)):
                yield chosen, block[chosen.start - images.start : chosen.stop - images.start]

    def at(self, places: Sequence[int]) -> Tensor:
        return self._joined([store.at(places) for store in self.stores])

    @cached_property
    def _kept(self) -> list[tuple[range, Tensor]] | None:
        """Return all blocks if they are small, so that another λ does not read and scale them again; None if not."""
        is_small = self.shape[0] > 1 and 4 * len(self) * math.prod(self.shape) <= KEPT_BYTES
        return list(self._read(range(len(self)))) if is_small else None

    def _read(self, wanted: range) -> Iterator[tuple[range, Tensor]]:
        for parts in zip(*(store.blocks(wanted) for store in self.stores), strict=True):
            yield parts[0][0], self._joined([block for _, block in parts])

    def _joined(self, of_objectives: Sequence[Tensor]) -> Tensor:
        found = torch.cat([one if one.ndim == 3 else one[:, None] for one in of_objectives], 1)
        return torch.nn.functional.normalize(found, dim=2) if self.unit else found


@dataclass(frozen=True, eq=False)
class OneRow:
    """One row for each image, [N, 1, k]: that of one copy, or the mean of all."""

    rows: Rows
    copy: int | None = None  # None: the mean

    @property
    def shape(self) -> tuple[int, int]:
        return 1, self.rows.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        for images, block in self.rows.blocks(wanted):
            yield images, self._one(block)

    def at(self, places: Sequence[int]) -> Tensor:
        return self._one(self.rows.at(places))

    def _one(self, block: Tensor) -> Tensor:
        return block.mean(1, keepdim=True) if self.copy is None else block[:, self.copy : self.copy + 1]


def large_blocks(rows: Rows, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
    """Yield the blocks of `rows` joined to larger ones, of at least MANY_ROWS copies each except for the last."""
    gathered: list[Tensor] = []
    first = done = 0 if wanted is None else wanted.start
    for images, block in rows.blocks(wanted):
        gathered.append(block)
        done = images.stop
        if (done - first) * block.shape[1] >= MANY_ROWS:
            yield range(first, done), torch.cat(gathered)
            gathered, first = [], done
    if gathered:
        yield range(first, done), torch.cat(gathered)
