"""The kernel whose G is the Gauss–Newton matrix in the directions of its Kronecker factors (EK-FAC).

    τ(x)_n = Σ_j b_j(x) b_j(n) / (s_j + λ),        b = the gradient in these directions, s_j = the eigenvalues

Only queries are rotated: b(x) / (s + λ) is rotated back, and multiplied with the training gradients as they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.contracts import EVERY, Array, Rows, Values
from dtrak.gradients.kronecker_factors import Directions

IMAGES_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class Kronecker:
    """Directions that were found for the training images, and the whole gradients [N, 1, d] of these images."""

    directions: Directions
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def images(self) -> int:
        return int((self.squares(0, 0) > 0).sum())

    @property
    def size(self) -> int:
        return len(self._spectrum)  # with the eigenvalues that are zero

    @property
    def trace(self) -> float:
        return float(self._spectrum.sum())

    @property
    def rank(self) -> int:
        return len(self.eigenvalues)

    @cached_property
    def eigenvalues(self) -> Array:
        return np.sort(self._spectrum[self._spectrum > 0])

    @cached_property
    def _spectrum(self) -> Array:
        """s [d], in the order of the directions."""
        return np.asarray(self.directions.eigenvalues.double().numpy())

    def dimension(self, damping: float) -> float:
        return float((self._spectrum / (self._spectrum + damping)).sum())

    def coordinates(self, rows: NDArray[np.float32]) -> Array:
        """Return b [Q, 1, d] of gradients [Q, 1, d]."""
        return self.directions.rotated(torch.from_numpy(rows[:, 0])).double().numpy()[:, None]

    def train_coordinates(self, places: Sequence[int]) -> Array:
        return self.coordinates(self.rows.at(places).numpy())

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> Values:
        weighted = torch.from_numpy(coordinates[:, 0] / (self._spectrum + damping)).float()
        back = self.directions.rotated_back(weighted)  # (G + λI)⁻¹∇ℓ(x)
        return torch.cat([back @ block.T for block in self._blocks(train)], 1).numpy()

    def squares(self, damping: float, power: int, train: slice = EVERY) -> Array:
        if not power:
            return torch.cat([block.double().square().sum(1) for block in self._blocks(train)]).numpy()
        weights = torch.from_numpy((self._spectrum + damping) ** -power)
        found = [self.directions.rotated(block).double().square() @ weights for block in self._blocks(train)]
        return torch.cat(found).numpy()

    def _blocks(self, train: slice) -> Iterator[Tensor]:
        for _, block in self.rows.blocks(range(len(self))[train]):
            yield from block[:, 0].split(IMAGES_AT_ONCE)
