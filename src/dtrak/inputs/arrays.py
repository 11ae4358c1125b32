"""What sources make of a kernel: with its λ for each damping, and with queries in its coordinates."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from dtrak.contracts import EVERY, Array, Kernel, KernelInput, Vectors
from dtrak.errors import UsageError
from dtrak.kernels.damping import Damping, damping_as_of
from dtrak.kernels.kernel_cache import KeptFit
from dtrak.kernels.ridge import Eigen


@dataclass(frozen=True, eq=False)
class TrainingKernel:
    """A kernel that is fitted on the training images when it is first needed, and its λ for each damping.

    `automatic` finds it for `auto`, by a rule of this name. If scores of several objectives are averaged, `first` is
    the kernel of the first objective. The λ of the others is then chosen so that they keep as many directions as the
    first kernel does. If the fit is `kept` on disk, so are the λ that rules find, with the fit that they were
    `compared` with.
    """

    fit: Callable[[], Kernel]
    automatic: Callable[[Kernel], float]
    rule: str
    has_automatic: bool = True
    first: "TrainingKernel | None" = None
    kept: KeptFit[Eigen] | None = None
    compared: KeptFit[Eigen] | None = None
    _found: dict[Damping, float] = field(default_factory=dict)

    @cached_property
    def kernel(self) -> Kernel:
        return self.fit()

    def absolute(self, damping: Damping) -> float:
        """Return λ for this kernel."""
        if damping not in self._found:
            if damping.is_rule and self.kept is not None:
                compared = "" if self.compared is None else self.compared.fingerprint
                found = self.kept.damping(f"{damping.kind} {self.rule} {compared}", partial(self._find, damping))
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
        return self.absolute(damping) * self.kernel.size / self.kernel.trace


@dataclass(frozen=True, eq=False)
class KernelPart:
    """Some queries in a kernel's coordinates, and some of its training images."""

    training: TrainingKernel
    coordinates: Array  # [Q, C, r]
    residuals: Array | None = None
    chosen: slice = field(default_factory=lambda: EVERY)

    def input(self) -> KernelInput:
        """Return what a formula gets."""
        return KernelInput(self.training.kernel, self.coordinates, self.chosen, self.residuals)

    def only(self, queries: slice, train: slice) -> "KernelPart":
        """Select some of the queries and some of the training images."""
        return replace(self, coordinates=self.coordinates[queries], chosen=train)

    def summed(self) -> "KernelPart":
        """Replace the queries with their sum. If scores are linear, its scores are the sums of theirs."""
        return replace(self, coordinates=self.coordinates.sum(0, keepdims=True))


@dataclass(frozen=True, eq=False)
class KernelVectors(Vectors):
    """Gradients of both sides, with a kernel of those of the training images."""

    training: TrainingKernel
    residuals: Array | None = None  # [N]

    def part(self, queries: slice = EVERY) -> KernelPart:
        """Return some queries in the kernel's coordinates."""
        coordinates = self.training.kernel.coordinates(self.queries[queries])
        return KernelPart(self.training, coordinates, self.residuals)
