"""The front door: a model, its training images and the pictures asked about in, scores out."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, overload

from dtrak.damping import Damping
from dtrak.data import Images, load_images
from dtrak.devices import devices
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.evidence import Evidence, Resources
from dtrak.featurizing import FeatureSettings
from dtrak.files import kept_until_done
from dtrak.methods import ALL, Method, chosen_methods, objective_of, split_methods
from dtrak.models import DiffusionModel, load_model
from dtrak.objectives import get_objective
from dtrak.scores import Scores

Model = DiffusionModel | str | Path  # a model, or what `load_model` takes
Data = Images | str | Path  # images, or what `load_images` takes


@overload
def attribute(model: Model, train: Data, queries: Data, method: str | None = ..., **settings: Any) -> Scores: ...


@overload
def attribute(
    model: Model, train: Data, queries: Data, method: Sequence[str], **settings: Any
) -> dict[str, Scores]: ...


def attribute(
    model: Model,
    train: Data,
    queries: Data,
    method: str | Sequence[str] | None = None,
    *,
    damping: float | str = "auto",
    cache: str | Path | None = None,
    device: str | None = None,
    **settings: Any,
) -> Scores | dict[str, Scores]:
    """Score every training image for every query.

    `method` is a name from `dtrak.methods`, by default the recommended one, or several, which share what they can; then
    the answer is a dictionary by name. "all" stands for every method whose needs are met. `damping` is "auto",
    "spectrum", a fraction of the mean eigenvalue of ΦΦᵀ, or "absolute:λ" (see `dtrak.damping`). `cache` is a folder
    that keeps the features: the next question about the same training images costs only its queries. `settings` are

    - `objective`, which replaces D-TRAK's L_Square, and without `method` asks for D-TRAK;
    - `engine`, which computes gradients (see `dtrak.engines`);
    - the fields of `FeatureSettings`: timesteps, projection_dim, parameters, seed, …;
    - the fields of `Resources`, for the methods that need them: checkpoints, retrained, encoder, ….
    """
    if method is None:
        (method,) = split_methods(None, settings.get("objective"))
    names = [method] if isinstance(method, str) else list(method)
    parsed_damping = Damping.parse(damping)
    with kept_until_done(None if cache is None else Path(cache)) as folder:
        with_partners = parsed_damping.asks_partner
        evidence = gather(model, train, queries, names, folder, device=device, with_partners=with_partners, **settings)
        scores = {one.name: score(evidence, one, parsed_damping) for one in evidence.methods}
    return scores[names[0]] if isinstance(method, str) and method != ALL else scores


def gather(
    model: Model,
    train: Data,
    queries: Data,
    methods: Sequence[str],
    cache: Path,
    *,
    objective: str | None = None,
    device: str | None = None,
    engine: Engine | None = None,
    with_partners: bool = False,
    **settings: Any,
) -> Evidence:
    """Check the question and lay out what its methods will score from; the work comes with the first score."""
    chosen = chosen_methods(methods)
    check_objective(chosen, objective)
    of_resources = {field.name for field in fields(Resources)}
    resources = Resources(**{name: value for name, value in settings.items() if name in of_resources})
    of_features = FeatureSettings(**{name: value for name, value in settings.items() if name not in of_resources})
    if not isinstance(model, DiffusionModel):
        model, device = load_model(str(model)), device or devices()[0]
    train = train if isinstance(train, Images) else load_images(str(train))
    queries = queries if isinstance(queries, Images) else load_images(str(queries))
    if model.prompts is not None:
        model.prompts.check(train)
    model = model.fitted_to(train.shape)
    model.check_fits(queries.shape, queries.source)
    model.to(device or model.device)
    evidence = Evidence(model, train, queries, chosen, objective, of_features, resources, cache, engine, with_partners)
    if list(methods) == [ALL]:
        return evidence.of_what_there_is()
    for one in chosen:
        evidence.check(one)
    return evidence


def check_objective(methods: Sequence[Method], asked: str | None) -> None:
    """Refuse an objective that does not exist or that none of the methods can take."""
    if asked is None:
        return
    get_objective(asked)
    if all(objective_of(one, asked) != asked for one in methods):
        first = methods[0]
        raise UsageError(f"{first.name} does not take the objective {asked!r}: d-trak does")


def score(evidence: Evidence, method: Method, damping: Damping) -> Scores:
    train, queries = evidence.train, evidence.queries
    values, on_itself = evidence.scores(method, damping), evidence.self_influence(method, damping)
    return Scores(values, train.ids, queries.ids, method.name, train.columns, on_itself)
