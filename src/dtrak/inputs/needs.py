"""Find which gradients methods need: of which models and objectives, for training images and for queries.

Attribution, planning, the report and the explorer all call `needed_by`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dtrak.contracts import Rule
from dtrak.kernels.damping import Damping, compared_objective
from dtrak.methods.method import Gradients, Kronecker, Method, Outcomes, Ridge


@dataclass(frozen=True)
class GradientKind:
    """A kind of gradients: the models they are computed with, and what is kept of them."""

    models: str = "final"
    apart: bool = False  # whether every noised copy of an image has its own
    timesteps: str = "uniform"  # as in `Gradients`, where the user gives no others
    layers: str = "usual"
    projection: str = "sketch"
    whole: bool = False  # whether they are kept as they are, whatever projection the user gives

    @classmethod
    def of(cls, method: Method, needs: Gradients) -> "GradientKind":
        """Return the kind of a method's gradients."""
        apart, whole = needs.copies == "apart", isinstance(method.kernel, Kronecker)
        return cls(needs.models, apart, needs.timesteps, needs.layers, needs.projection, whole)


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


def objectives_of(needs: Gradients, chosen: str | None) -> tuple[str, ...]:
    """Return the objectives of a method. The first is the one that λ is set for: the `chosen` one if it takes any."""
    first = chosen if chosen is not None and needs.any_objective else needs.objectives[0]
    return tuple(dict.fromkeys((first, *needs.objectives[1:])))


def uses_retrained(method: Method) -> bool:
    """Return whether a method needs retrained models."""
    needs = method.needs
    return isinstance(needs, Outcomes) or (isinstance(needs, Gradients) and needs.models == "retrained")


def rule_of(method: Method) -> Rule:
    """Return how `auto` finds λ for a method with a kernel."""
    if isinstance(method.kernel, Ridge | Kronecker):
        return method.kernel.damping
    return "trace" if isinstance(method.needs, Gradients) and method.needs.copies == "apart" else "agreement"


def needed_by(
    methods: Iterable[Method], objective: str | None, damping: Damping | None
) -> dict[GradientKind, NeededGradients]:
    """Return the gradients that these methods need together, by kind. An objective is for methods that take any.

    A damping that compares objectives needs one more objective for the training images.
    """
    found: dict[GradientKind, NeededGradients] = {}
    for method in methods:
        needs = method.needs
        if not isinstance(needs, Gradients):
            continue
        kind, objectives = GradientKind.of(method, needs), objectives_of(needs, objective)
        before = found.get(kind, NeededGradients(()))
        compares = method.kernel is not None and rule_of(method) == "agreement"
        compares = compares and damping is not None and damping.compares_objectives
        compared = [compared_objective(objectives[0])] if compares else []
        is_drawn = needs.queries == "trajectories"
        found[kind] = NeededGradients(
            train=tuple(dict.fromkeys([*before.train, *objectives, *compared])),
            queries=before.queries if is_drawn else _joined(before.queries, objectives),
            trajectories=_joined(before.trajectories, objectives) if is_drawn else before.trajectories,
        )
    return found


def _joined(before: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*before, *more]))
