"""The inputs of formulas: they hold arrays, and no models."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.damping import Automatic, Damping, damping_as_of
from dtrak.kernels.kept import KeptFit
from dtrak.kernels.preconditioner import EVERY, Array, Preconditioner, Rows, mean_eigenvalue
from dtrak.kernels.ridge import decompose


@dataclass(frozen=True, eq=False)
class TrainingKernel:
    """A preconditioner that is fitted on the training images when it is first needed, and its λ for each damping.

    `automatic` is its rule for `auto`. If scores of several objectives are averaged, `first` is the kernel of the first
    objective. The λ of the others is then chosen so that they keep as many directions as the first kernel does. If the
    fit is `kept` on disk, so are the λ that rules find, with the fit that they were `compared` with.
    """

    fit: Callable[[], Preconditioner]
    automatic: Automatic | None = None
    first: "TrainingKernel | None" = None
    kept: KeptFit[Any] | None = None
    compared: KeptFit[Any] | None = None
    _found: dict[Damping, float] = field(default_factory=dict)

    @cached_property
    def kernel(self) -> Preconditioner:
        return self.fit()

    def absolute(self, damping: Damping) -> float:
        """Return λ for this kernel."""
        if damping not in self._found:
            if damping.is_rule and self.kept is not None:
                name = damping.kind if self.compared is None else f"{damping.kind} {self.compared.fingerprint}"
                found = self.kept.damping(name, partial(self._find, damping))
            else:
                found = self._find(damping)
            if not np.isfinite(found):
                raise UsageError(f"damping {damping.value:g}: it is too large")
            self._found[damping] = found
        return self._found[damping]

    def _find(self, damping: Damping) -> float:
        if self.first is None:
            return damping.absolute(self.kernel, self.automatic)
        return damping_as_of(self.first.kernel, self.first.absolute(damping), self.kernel)

    def relative(self, damping: Damping) -> float:
        """Return λ as a fraction of the mean eigenvalue."""
        return self.absolute(damping) / mean_eigenvalue(self.kernel)


class KernelInput(Protocol):
    """The input of formulas with a kernel: some queries in its coordinates, and some of its training images."""

    @property
    def kernel(self) -> Preconditioner: ...

    @property
    def coordinates(self) -> Array:
        """Return the coordinates of the queries, [Q, r] or [Q, C, r]. They do not depend on λ."""

    @property
    def chosen(self) -> slice:
        """Return which training images are scored."""

    def absolute(self, damping: Damping) -> float:
        """Return λ for this kernel."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """Training images and queries as vectors of k numbers: pixels, embeddings or gradients."""

    train: Rows | CopyFeatures  # Φ [N, k], or [N, C, k]
    queries: NDArray[np.float32]  # φ(x) [Q, k], or φ_c(x) [Q, C, k] for a pooled kernel
    fitted: TrainingKernel | None = None  # a kernel fitted on `train`, if several inputs share it
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
        """Select some of the queries and some of the training images."""
        return replace(self, coordinates=self.coordinates[queries], chosen=train)

    def summed(self) -> "KernelPart":
        """Replace the queries with their sum. If scores are linear, its scores are the sums of theirs."""
        return replace(self, coordinates=self.coordinates.sum(0, keepdims=True))


@dataclass(frozen=True, eq=False)
class NoisedQueries:
    """Noised copies x_t = s x + σ ε of the queries, and the training images without noise."""

    train: Rows  # y [N, channels · height · width]
    queries: Tensor  # x_t [copies, Q, channels, height, width]
    signal: Tensor  # s [copies]
    noise: Tensor  # σ [copies]


@dataclass(frozen=True, eq=False)
class RetrainedLosses:
    """The losses of the queries under S models. Each model was retrained on some of the training images."""

    masks: NDArray[np.bool_]  # [S, N], which training images each model had
    losses: NDArray[np.floating[Any]]  # [S, Q]


@dataclass(frozen=True)
class Counts:
    """The numbers of queries and of training images, and a seed, for random scores."""

    queries: int
    train: int
    seed: int
