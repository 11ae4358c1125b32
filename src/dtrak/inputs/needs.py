"""Find which gradients methods need: of which models and objectives, for training images and for queries.

Attribution, planning, the report and the explorer all call `needed_gradients`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dtrak.kernels.damping import Damping, compared_objective

Models = Literal["final", "checkpoints", "retrained"]


@dataclass(frozen=True)
class GradientKind:
    """A kind of gradients: the models they are computed with, and what is kept of them."""

    models: Models = "final"
    apart: bool = False  # whether every noised copy of an image has its own
    whole: bool = False  # whether they are kept as they are, and not projected
    every_layer: bool = False  # whether they are of all layers of a U-Net, even if copies are apart


@dataclass(frozen=True)
class GradientUse:
    """The gradients that one method uses, and how."""

    kind: GradientKind
    objectives: tuple[str, ...]  # the first is the one that λ is set for
    along_trajectory: bool  # whether gradients of queries are taken along their sampling trajectories
    damped: bool  # whether λ matters


@dataclass(frozen=True)
class NeededGradients:
    """The objectives whose gradients some methods need, for one kind of gradients."""

    train: tuple[str, ...]
    queries: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()  # for queries along their sampling trajectories

    @property
    def all_of_queries(self) -> tuple[str, ...]:
        """Return the objectives that queries need, as they are or along their trajectories."""
        return tuple(dict.fromkeys([*self.queries, *self.trajectories]))


def needed_gradients(uses: Iterable[GradientUse], damping: Damping | None) -> dict[GradientKind, NeededGradients]:
    """Return what all these uses need together, by kind.

    A damping that compares objectives needs one more objective for the training images.
    """
    found: dict[GradientKind, NeededGradients] = {}
    for use in uses:
        before = found.get(use.kind, NeededGradients(()))
        is_ordinary = not (use.kind.apart or use.kind.whole)  # others have rules of their own
        compares = use.damped and is_ordinary and damping is not None and damping.compares_objectives
        compared = [compared_objective(use.objectives[0])] if compares else []
        found[use.kind] = NeededGradients(
            train=tuple(dict.fromkeys([*before.train, *use.objectives, *compared])),
            queries=before.queries if use.along_trajectory else _joined(before.queries, use.objectives),
            trajectories=_joined(before.trajectories, use.objectives) if use.along_trajectory else before.trajectories,
        )
    return found


def _joined(before: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*before, *more]))
