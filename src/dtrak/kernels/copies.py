"""The features of every noised copy of an image as kernels read them: in blocks, and of unit length if wanted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dtrak.kernels.preconditioner import Rows


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

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
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
