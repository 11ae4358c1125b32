"""The front door: a model, its training images and the pictures asked about in, scores out."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from dtrak.data import Images, load_images
from dtrak.devices import devices
from dtrak.errors import UsageError
from dtrak.features import FeatureStore
from dtrak.featurizing import FeatureSettings, featurize
from dtrak.kernels import Damping, decompose
from dtrak.methods import Method, get_method
from dtrak.models import DiffusionModel, load_model
from dtrak.scores import Scores

Model = DiffusionModel | str | Path  # a model, or what `load_model` takes
Data = Images | str | Path  # images, or what `load_images` takes


@overload
def attribute(model: Model, train: Data, queries: Data, method: str = ..., **settings: Any) -> Scores: ...


@overload
def attribute(
    model: Model, train: Data, queries: Data, method: Sequence[str], **settings: Any
) -> dict[str, Scores]: ...


def attribute(
    model: Model,
    train: Data,
    queries: Data,
    method: str | Sequence[str] = "d-trak",
    *,
    damping: float | str = 0.1,
    objective: str | None = None,
    cache: str | Path | None = None,
    device: str | None = None,
    **settings: Any,
) -> Scores | dict[str, Scores]:
    """Score every training image for every query.

    `method` is a name from `dtrak.methods`, or several, which share what they can; then the answer is a dictionary by
    name. `damping` is a fraction of the mean eigenvalue of ΦΦᵀ, or "absolute:λ". `objective` replaces D-TRAK's
    L_Square. `cache` is a folder that keeps the features: the next question about the same training images costs only
    its queries. `settings` are those of `FeatureSettings`: timesteps, projection_dim, projection, parameters, seed, ….
    """
    names = [method] if isinstance(method, str) else list(method)
    methods = [get_method(name) for name in names]
    objectives = [objective_of(one, objective) for one in methods]
    feature_settings = FeatureSettings(**settings)
    parsed_damping = Damping.parse(damping)
    if not isinstance(model, DiffusionModel):
        model, device = load_model(str(model)), device or devices()[0]
    train = train if isinstance(train, Images) else load_images(str(train))
    queries = queries if isinstance(queries, Images) else load_images(str(queries))
    model.check_fits(queries.shape, queries.source)
    model.to(device or model.device)

    with TemporaryDirectory() if cache is None else nullcontext(cache) as folder:
        wanted = list(dict.fromkeys(objectives))
        train_features = featurize(model, train, wanted, feature_settings, Path(folder), "train")
        query_name = f"queries-{queries.fingerprint[:8]}"
        query_features = featurize(model, queries, wanted, feature_settings, Path(folder), query_name)
        scores = {
            one.name: _score(one, train_features[key], query_features[key], parsed_damping, train, queries)
            for one, key in zip(methods, objectives, strict=True)
        }
    return scores[names[0]] if isinstance(method, str) else scores


def _score(
    method: Method,
    train_features: FeatureStore,
    query_features: FeatureStore,
    damping: Damping,
    train: Images,
    queries: Images,
) -> Scores:
    kernel = decompose(train_features)
    values = method.score(kernel, query_features.numpy(), damping.absolute(kernel))
    return Scores(values, train.ids, queries.ids, method.name, train.columns)


def objective_of(method: Method, asked: str | None) -> str:
    """The objective of a method's features: its own, or the one asked for where the method has the choice."""
    if asked is None or asked == method.objective:
        return method.objective
    if not method.any_objective:
        raise UsageError(f"{method.name} is defined by the objective {method.objective!r}, not {asked!r}: use d-trak")
    return asked
