"""The preconditioner whose G is the Gauss–Newton matrix in the directions of its Kronecker factors (EK-FAC).

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

from dtrak.gradients.kronecker_factors import Directions
from dtrak.kernels.preconditioner import EVERY, Array, Preconditioner, Rows, mean_eigenvalue

IMAGES_AT_ONCE = 32
SHARE_OF_MEAN = 0.1  # λ ÷ the mean eigenvalue, as in Grosse et al. (2023)


@dataclass(frozen=True, eq=False)
class KroneckerKernel:
    """Directions that were found for the training images, and the whole gradients [N, d] of these images."""

    directions: Directions
    features: Rows

    def __len__(self) -> int:
        return len(self.features)

    @property
    def size(self) -> int:
        """Return d, how many eigenvalues G has, with those that are zero."""
        return self.features.dim

    @cached_property
    def eigenvalues(self) -> Array:
        """Return the eigenvalues of G that are not zero, in rising order."""
        found = np.sort(self.directions.eigenvalues.double().numpy())
        return np.asarray(found[found > 0])

    @cached_property
    def images(self) -> int:
        """Return how many training images have a feature. Images that were left out have zeros and do not count."""
        return int((self.norms() > 0).sum())

    def coordinates(self, queries: NDArray[np.float32]) -> Array:
        """Return b [Q, d] of the query gradients [Q, d]."""
        return np.asarray(self.directions.rotated(torch.from_numpy(queries)).double().numpy())

    def train_coordinates(self, rows: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return b [B, d] of the training images `rows`."""
        found = [block for row in rows for _, block in self.features.blocks(range(int(row), int(row) + 1))]
        return self.coordinates(torch.cat(found).numpy())

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> NDArray[np.float32]:
        """Return τ [Q, N] for an absolute λ, from the coordinates of the queries."""
        weighted = torch.from_numpy(coordinates * self._weights(damping)).float()
        back = self.directions.rotated_back(weighted)  # (G + λI)⁻¹∇ℓ(x)
        return torch.cat([back @ block.T for block in self._blocks(train)], 1).numpy()

    def self_influence(self, damping: float, train: slice = EVERY) -> Array:
        """Return τ(x^n)_n, [N]."""
        return self._squares(self._weights(damping), train)

    def norms(self, train: slice = EVERY) -> Array:
        """Return ‖∇ℓ_n‖, [N]."""
        return np.concatenate([block.double().norm(dim=1).numpy() for block in self._blocks(train)])

    def preconditioned_norms(self, damping: float, train: slice = EVERY) -> Array:
        """Return ‖(G + λI)⁻¹ ∇ℓ_n‖, [N]."""
        return np.sqrt(self._squares(self._weights(damping) ** 2, train))

    def _weights(self, damping: float) -> Array:
        """Return 1 / (s + λ), [d]."""
        return np.asarray(1 / (self.directions.eigenvalues.double().numpy() + damping))

    def _squares(self, weights: Array, train: slice) -> Array:
        """Return Σ_j b_j² w_j, [N]."""
        wanted = torch.from_numpy(weights)
        found = [self.directions.rotated(block).double().square() @ wanted for block in self._blocks(train)]
        return torch.cat(found).numpy()

    def _blocks(self, train: slice) -> Iterator[Tensor]:
        for _, block in self.features.blocks(range(len(self))[train]):
            yield from block.split(IMAGES_AT_ONCE)


def published_damping(kernel: Preconditioner) -> float:
    """Return the λ that `auto` sets: 0.1 · the mean eigenvalue."""
    return SHARE_OF_MEAN * mean_eigenvalue(kernel)
