"""What formulas see: arrays, never models."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.damping import Automatic, Damping, damping_as_of
from dtrak.kernels.preconditioner import EVERY, Array, Preconditioner, Rows, mean_eigenvalue
from dtrak.kernels.ridge import decompose


@dataclass(frozen=True, eq=False)
class TrainingKernel:
    """A preconditioner fitted on the training images, and the λ that each damping means for it.

    `automatic` is its rule for `auto`. Where several objectives are averaged, the first one's λ sets that of the
    others: each keeps as many directions as the `first` does.
    """

    fit: Callable[[], Preconditioner]
    automatic: Automatic | None = None
    first: "TrainingKernel | None" = None
    _found: dict[Damping, float] = field(default_factory=dict)

    @cached_property
    def kernel(self) -> Preconditioner:
        return self.fit()

    def absolute(self, damping: Damping) -> float:
        """λ for this kernel."""
        if damping not in self._found:
            found = (
                damping.absolute(self.kernel, self.automatic)
                if self.first is None
                else damping_as_of(self.first.kernel, self.first.absolute(damping), self.kernel)
            )
            if not np.isfinite(found):
                raise UsageError(f"damping {damping.value:g}: it is more than a number can hold")
            self._found[damping] = found
        return self._found[damping]

    def relative(self, damping: Damping) -> float:
        """λ as a fraction of the mean eigenvalue."""
        return self.absolute(damping) / mean_eigenvalue(self.kernel)


class KernelInput(Protocol):
    """What formulas with a kernel see: some queries in its coordinates, and some of its training images."""

    @property
    def kernel(self) -> Preconditioner: ...

    @property
    def coordinates(self) -> Array:
        """Of the queries, [Q, r], the same for every λ."""

    @property
    def chosen(self) -> slice:
        """The training images that scores are wanted of."""

    def absolute(self, damping: Damping) -> float:
        """λ for this kernel."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """Training images and queries as vectors of k numbers: pixels, embeddings or gradients."""

    train: Rows | CopyFeatures  # Φ [N, k], or [N, C, k]
    queries: NDArray[np.float32]  # φ(x) [Q, k], or φ_c(x) [Q, C, k] for a pooled kernel
    fitted: TrainingKernel | None = None  # on `train`, where several questions share it
    chosen: ClassVar[slice] = EVERY

    @cached_property
    def training(self) -> TrainingKernel:
        return self.fitted or TrainingKernel(partial(decompose, self.train))

    @property
    def kernel(self) -> Preconditioner:
        return self.training.kernel

    @cached_property
    def coordinates(self) -> Array:
        return self.kernel.coordinates(self.queries)

    def absolute(self, damping: Damping) -> float:
        return self.training.absolute(damping)


@dataclass(frozen=True, eq=False)
class KernelPart:
    """Some queries in a kernel's coordinates, and some of its training images."""

    training: TrainingKernel
    coordinates: Array  # [Q, r] or [Q, C, r]
    chosen: slice = field(default_factory=lambda: EVERY)

    @property
    def kernel(self) -> Preconditioner:
        return self.training.kernel

    def absolute(self, damping: Damping) -> float:
        return self.training.absolute(damping)

    def only(self, queries: slice, train: slice) -> "KernelPart":
        return replace(self, coordinates=self.coordinates[queries], chosen=train)

    def summed(self) -> "KernelPart":
        """All queries as one: scores are linear in them, so those of the sum are the sum of the scores."""
        return replace(self, coordinates=self.coordinates.sum(0, keepdims=True))


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
