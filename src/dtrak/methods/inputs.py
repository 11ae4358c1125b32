"""What formulas see: arrays, never models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.kernels.damping import Damping, Partner, following
from dtrak.kernels.ridge import Array, Kernel, Rows, decompose


@dataclass(frozen=True, eq=False)
class Vectors:
    """Training images and queries as vectors of k numbers: pixels, embeddings or gradients."""

    train: Rows  # Φ [N, k]
    queries: NDArray[np.float32]  # φ(x) [Q, k]
    decomposition: Callable[[], Kernel] | None = None  # of the training side, which others may share
    partner: Partner | None = None  # the same for another objective
    leader: "Vectors | None" = None  # of the same images: its λ says how many directions are kept of this kernel, too

    @cached_property
    def kernel(self) -> Kernel:
        return decompose(self.train) if self.decomposition is None else self.decomposition()

    def absolute(self, damping: Damping) -> float:
        """λ for this kernel."""
        if damping not in self._dampings:
            self._dampings[damping] = (
                damping.absolute(self.kernel, self.partner)
                if self.leader is None
                else following(self.leader.kernel, self.leader.absolute(damping), self.kernel)
            )
        return self._dampings[damping]

    @cached_property
    def _dampings(self) -> dict[Damping, float]:
        return {}

    @cached_property
    def coordinates(self) -> Array:
        """[Q, r], the same for every λ."""
        return self.kernel.coordinates(self.queries)


@dataclass(frozen=True, eq=False)
class RetrainedLosses:
    """Losses of the queries under S models, each retrained on some of the training images."""

    masks: NDArray[np.bool_]  # [S, N]
    losses: NDArray[np.floating[Any]]  # [S, Q]


@dataclass(frozen=True)
class Counts:
    """How many queries and training images there are."""

    queries: int
    train: int
    seed: int


@dataclass(frozen=True, eq=False)
class InMemory:
    """`Rows` that fit into memory as one block."""

    array: NDArray[np.float32]  # [N, k]

    @property
    def dim(self) -> int:
        return int(self.array.shape[1])

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self) -> Iterator[tuple[range, Tensor]]:
        yield range(len(self)), torch.from_numpy(self.array)
