"""Which gradients methods need: of which models, of which objectives, for training images and for queries.

Planning, the report, the explorer and attribution itself all ask `needed_gradients`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dtrak.kernels.damping import Damping, compared_objective

Models = Literal["final", "checkpoints", "retrained"]


@dataclass(frozen=True)
class GradientKind:
    """Which models' gradients, and whether every noised copy of an image has its own."""

    models: Models = "final"
    apart: bool = False


@dataclass(frozen=True)
class GradientUse:
    """How one method uses gradients."""

    kind: GradientKind
    objectives: tuple[str, ...]  # the one that λ is set for first
    along_trajectory: bool  # whether those of the queries are taken along their sampling trajectory
    damped: bool  # whether λ matters


@dataclass(frozen=True)
class NeededGradients:
    """The objectives whose gradients of one kind some methods need."""

    train: tuple[str, ...]
    queries: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()  # of the queries, along their sampling trajectories

    @property
    def all_of_queries(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.queries, *self.trajectories]))


def needed_gradients(uses: Iterable[GradientUse], damping: Damping | None) -> dict[GradientKind, NeededGradients]:
    """By kind, what all these uses need together; a damping that compares objectives needs another of training."""
    found: dict[GradientKind, NeededGradients] = {}
    for use in uses:
        before = found.get(use.kind, NeededGradients(()))
        compares = use.damped and not use.kind.apart and damping is not None and damping.compares_objectives
        compared = [compared_objective(use.objectives[0])] if compares else []
        found[use.kind] = NeededGradients(
            train=tuple(dict.fromkeys([*before.train, *use.objectives, *compared])),
            queries=before.queries if use.along_trajectory else _joined(before.queries, use.objectives),
            trajectories=_joined(before.trajectories, use.objectives) if use.along_trajectory else before.trajectories,
        )
    return found


def _joined(before: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*before, *more]))
