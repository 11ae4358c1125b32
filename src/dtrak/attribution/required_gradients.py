"""Which gradients methods need: how they are made, and of which objectives, for each side of the question.

Attribution, plans, the report and the index all read the same answer, so that every image passes through the network
once for all methods.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dtrak.attribution.settings import Settings
from dtrak.contracts import Objective, Rule
from dtrak.errors import UsageError
from dtrak.features.spec import Spec
from dtrak.gradients.copies import normal_timesteps
from dtrak.gradients.objectives import get_objective
from dtrak.kernels.damping import Damping, compared_objective
from dtrak.methods.method import Gradients, Kronecker, Method, Ridge


@dataclass(frozen=True)
class Required:
    """The objectives whose gradients some methods need, made in the same way."""

    train: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()  # of queries along their sampling trajectories


def required_gradients(methods: Iterable[Method], settings: Settings) -> dict[Spec, Required]:
    """Return what all these methods need together."""
    found: dict[Spec, Required] = {}
    for method in methods:
        if isinstance(needs := method.needs, Gradients):
            spec, own = spec_of(method, settings), objectives_of(method, settings)
            before = found.get(spec, Required())
            asked = "trajectories" if needs.queries == "trajectories" else "queries"
            sides = {"train": (*own, *compared_objectives(method, settings)), asked: own}
            joined = {
                side: tuple(dict.fromkeys([*getattr(before, side), *sides.get(side, ())]))
                for side in ("train", "queries", "trajectories")
            }
            found[spec] = Required(**joined)
    return found


def spec_of(method: Method, settings: Settings) -> Spec:
    """Return how the gradients of a method are made, in the normal form: methods with equal ones share them."""
    needs = method.needs
    assert isinstance(needs, Gradients)
    whole = isinstance(method.kernel, Kronecker)
    projection = "identity" if whole else settings.projection or needs.projection
    return Spec(
        models=needs.models,
        copies=needs.copies,
        timesteps=normal_timesteps(settings.timesteps, needs.timesteps),
        layers=str(settings.parameters or needs.layers),
        projection=projection,
        projection_dim=0 if projection == "identity" else settings.projection_dim,
        draws=settings.draws,
        noise=settings.noise,
        seed=settings.seed,
        projection_seed=settings.projection_seed,
        dtype=settings.dtype,
        autocast=settings.autocast,
    )


def objectives_of(method: Method, settings: Settings) -> tuple[str, ...]:
    """Return the names of a method's objectives. The first sets λ: the user's own, if the method takes any."""
    needs = method.needs
    if not isinstance(needs, Gradients):
        return ()
    first = needs.objectives[0]
    if needs.any_objective and settings.objective is not None:
        first = name_of(settings.objective)
    return tuple(dict.fromkeys([first, *needs.objectives[1:]]))


def compared_objectives(method: Method, settings: Settings) -> tuple[str, ...]:
    """Return the objective that the rule for λ compares with, if there is one."""
    if rule_of(method) != "agreement" or Damping.parse(settings.damping).kind != "auto":
        return ()
    return (compared_objective(objectives_of(method, settings)[0]),)


def name_of(given: str | Callable[..., Any]) -> str:
    """Return the name that was given, or that of a function that was given."""
    return given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__).strip("<>")


def objective_of(name: str, settings: Settings) -> Objective:
    """Return the objective of a name: the function that was given, or one that is known."""
    given = settings.objective
    if given is None or isinstance(given, str) or name_of(given) != name:
        return get_objective(name)
    return given


def rule_of(method: Method) -> Rule | None:
    """Return the rule by which `auto` finds λ; None if the method has no kernel."""
    match method.kernel:
        case None:
            return None
        case Ridge() | Kronecker():
            return method.kernel.damping
        case _:
            apart = isinstance(method.needs, Gradients) and method.needs.copies == "apart"
            return "trace" if apart else "agreement"


def check_objective(methods: Sequence[Method], settings: Settings) -> None:
    """Refuse an objective that does not exist or that none of the methods can take."""
    if settings.objective is None:
        return
    name = name_of(settings.objective)
    objective_of(name, settings)
    if not any(name in objectives_of(one, settings)[:1] for one in methods):
        raise UsageError(f"{methods[0].name} does not take the objective {name!r}: d-trak does")
