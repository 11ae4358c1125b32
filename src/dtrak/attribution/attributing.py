"""`attribute` takes a model, its training images and queries, and returns scores."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar, overload

from dtrak.attribution.asked import remember
from dtrak.attribution.preparing import ChosenParameters, Data, Model, fitting_data, opened, pattern_of, prepare
from dtrak.attribution.scores import Scores
from dtrak.attribution.scoring import score, strongest
from dtrak.checks import check_number, shortened
from dtrak.contracts import Objective
from dtrak.engines import Engine
from dtrak.errors import UsageError, check_takes
from dtrak.features.encoders import ENCODERS, LoadEncoder
from dtrak.features.settings import DEFAULT_ENCODER
from dtrak.files import kept_until_done
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.gradients.projections import PROJECTIONS, MakeProjection
from dtrak.inputs.settings import Settings
from dtrak.kernels.damping import Damping
from dtrak.methods import EVERY_METHOD, Method, split_methods
from dtrak.registry import Registry

Registered = TypeVar("Registered")


@overload
def attribute(  # a name is a sequence as well; the first overload counts
    model: Model,
    train: Data,
    queries: Data,
    method: str | Method | None = ...,
    *,
    timesteps: int | str = ...,
    draws: int = ...,
    noise: str = ...,
    projection: str | MakeProjection | None = ...,
    projection_dim: int = ...,
    parameters: ChosenParameters | None = ...,
    seed: int = ...,
    projection_seed: int | None = ...,
    dtype: str = ...,
    autocast: bool = ...,
    batch_size: int | None = ...,
    skip_bad: bool = ...,
    objective: str | Objective | None = ...,
    damping: float | str = ...,
    checkpoints: str | Path | None = ...,
    checkpoint_count: int = ...,
    retrained: str | Path | None = ...,
    ensemble_size: int = ...,
    retrained_count: int | None = ...,
    output: str = ...,
    encoder: str | LoadEncoder = ...,
    step: int | None = ...,
    ddim_steps: int = ...,
    guidance: float | None = ...,
    latents: str | Path | None = ...,
    top: int | None = ...,
    cache: str | Path | None = ...,
    device: str | None = ...,
    engine: Engine | None = ...,
) -> Scores: ...


@overload
def attribute(
    model: Model,
    train: Data,
    queries: Data,
    method: Sequence[str | Method],
    *,
    timesteps: int | str = ...,
    draws: int = ...,
    noise: str = ...,
    projection: str | MakeProjection | None = ...,
    projection_dim: int = ...,
    parameters: ChosenParameters | None = ...,
    seed: int = ...,
    projection_seed: int | None = ...,
    dtype: str = ...,
    autocast: bool = ...,
    batch_size: int | None = ...,
    skip_bad: bool = ...,
    objective: str | Objective | None = ...,
    damping: float | str = ...,
    checkpoints: str | Path | None = ...,
    checkpoint_count: int = ...,
    retrained: str | Path | None = ...,
    ensemble_size: int = ...,
    retrained_count: int | None = ...,
    output: str = ...,
    encoder: str | LoadEncoder = ...,
    step: int | None = ...,
    ddim_steps: int = ...,
    guidance: float | None = ...,
    latents: str | Path | None = ...,
    top: int | None = ...,
    cache: str | Path | None = ...,
    device: str | None = ...,
    engine: Engine | None = ...,
) -> dict[str, Scores]: ...


def attribute(
    model: Model,
    train: Data,
    queries: Data,
    method: str | Method | Sequence[str | Method] | None = None,
    *,
    timesteps: int | str = 10,
    draws: int = 1,
    noise: str = "shared",
    projection: str | MakeProjection | None = None,
    projection_dim: int = 4096,
    parameters: ChosenParameters | None = None,
    seed: int = 0,
    projection_seed: int | None = None,
    dtype: str = "float32",
    autocast: bool = False,
    batch_size: int | None = None,
    skip_bad: bool = False,
    objective: str | Objective | None = None,
    damping: float | str = "auto",
    checkpoints: str | Path | None = None,
    checkpoint_count: int = 4,
    retrained: str | Path | None = None,
    ensemble_size: int = 8,
    retrained_count: int | None = None,
    output: str = "simple",
    encoder: str | LoadEncoder = DEFAULT_ENCODER,
    step: int | None = None,
    ddim_steps: int = 50,
    guidance: float | None = None,
    latents: str | Path | None = None,
    top: int | None = None,
    cache: str | Path | None = None,
    device: str | None = None,
    engine: Engine | None = None,
) -> Scores | dict[str, Scores]:
    """Score every training image for every query.

    `method` is a name from `dtrak.methods` or a `Method`; the default is the recommended method. For several methods,
    the result is a dictionary by name, and they share the features that they have in common. "all" stands for every
    method whose needs are met. An `objective`, which is a name or a function, replaces D-TRAK's L_Square; if it is
    given without `method`, the method is D-TRAK. A `projection` and an `encoder` may be functions as well, of the kinds
    in `PROJECTIONS` and `ENCODERS`. `parameters` is a regular expression, a list of names, or a function of a name and
    its parameter. `damping` is "auto", "spectrum", a fraction of the mean eigenvalue of
    ΦΦᵀ, or "absolute:λ" (see `dtrak.kernels.damping`).

    With `top`, the scores hold only so many of the highest and of the lowest ones of each query, for large training
    sets; credit is still computed from the scores of all images.

    `cache` is a folder that keeps the features: the next call with the same training images computes only the features
    of its queries. An `engine` computes gradients on its workers (see `dtrak.engines`). `Settings` explains the others.

    >>> import dtrak
    >>> model = dtrak.load_model("runs/digits/model")
    >>> train = dtrak.load_images("digits:train").first(50)
    >>> queries = dtrak.load_images("runs/digits/generated").first(2)
    >>> scores = dtrak.attribute(model, train, queries, "d-trak", timesteps=2, parameters="conv_out")
    >>> scores.values.shape
    (2, 50)
    """
    if parameters is not None and not isinstance(parameters, str):
        model, device = opened(model, device)
        parameters = pattern_of(model.parameters(parameters))
    settings = Settings(
        timesteps=timesteps,
        draws=draws,
        noise=noise,
        projection=None if projection is None else _name(PROJECTIONS, projection, ("dim", "shapes", "seed")),
        projection_dim=projection_dim,
        parameters=parameters,
        seed=seed,
        projection_seed=projection_seed,
        dtype=dtype,
        autocast=autocast,
        batch_size=batch_size,
        skip_bad=skip_bad,
        objective=None if objective is None else _name(OBJECTIVES, objective, ("predicted", "noise", "elbo_weights")),
        damping=damping,
        checkpoints=_path(checkpoints),
        checkpoint_count=checkpoint_count,
        retrained=_path(retrained),
        ensemble_size=ensemble_size,
        retrained_count=retrained_count,
        output=output,
        encoder=_name(ENCODERS, encoder, ("name", "device")),
        step=step,
        ddim_steps=ddim_steps,
        guidance=guidance,
        latents=_path(latents),
    )
    several = not isinstance(method, str | Method | None)
    if several and not (isinstance(method, Sequence) and all(isinstance(one, str | Method) for one in method)):
        raise UsageError(f"method {method!r}: give a name from `dtrak methods`, a Method, or a list of these")
    chosen = [method] if isinstance(method, str | Method) else method or split_methods(None, settings.objective)
    names = [one.name if isinstance(one, Method) else one for one in chosen]
    given_model, given_train = model, train
    model, device = opened(model, device)
    train, size = fitting_data(train, model, "train")
    queries, _ = fitting_data(queries, model.fitted_to(train.shape), "queries")
    scores = attribute_with(model, train, queries, chosen, settings, top=top, cache=cache, device=device, engine=engine)
    if cache is not None and isinstance(given_model, str | Path) and isinstance(given_train, str | Path):
        remember(Path(cache), (str(given_model), None, None), str(given_train), size, names, settings)
    return scores if several or names == [EVERY_METHOD] else scores[names[0]]


def attribute_with(
    model: Model,
    train: Data,
    queries: Data,
    methods: Sequence[str | Method],
    settings: Settings,
    *,
    top: int | None = None,
    cache: str | Path | None = None,
    device: str | None = None,
    engine: Engine | None = None,
) -> dict[str, Scores]:
    """Do the same as `attribute` with one settings object. Return the scores by the methods' names."""
    damping = Damping.parse(settings.damping)
    if top is not None:
        check_number("top", top)
    with kept_until_done(_path(cache)) as folder:
        task, chosen = prepare(model, train, queries, methods, settings, folder, device, engine)
        if top is None:
            return {one.name: score(task, one, damping) for one in chosen}
        return {one.name: strongest(task, one, damping, top) for one in chosen}


def _name(registry: Registry[Registered], given: str | Registered, takes: tuple[str, ...]) -> str:
    """Return the name that was given. If a function was given, add it to the registry, under its own name.

    Its name gets a number that changes with its code, as the features of another function of this name may be kept.
    """
    if isinstance(given, str):
        return given
    if not callable(given):
        said = f"give a name from {', '.join(registry)}, or a function of ({', '.join(takes)})"
        raise UsageError(f"{registry.kind} is {shortened(given)}: {said}")
    check_takes(registry.kind, given, takes)
    name = getattr(given, "__name__", type(given).__name__).strip("<>")
    return registry.add(f"{name}-{sha256(described(given).encode()).hexdigest()[:6]}", given)


def _path(given: str | Path | None) -> Path | None:
    if not isinstance(given, str | Path | None):
        raise UsageError(f"{given!r} is a {type(given).__name__}: give the path of a folder")
    return None if given is None else Path(given)
