"""`attribute` takes a model, its training images and queries, and returns scores."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

from dtrak.attribution.answer import answer
from dtrak.attribution.opened import Opened, checked, possible
from dtrak.attribution.question import Question
from dtrak.attribution.required_gradients import check_objective
from dtrak.attribution.scores import Scores
from dtrak.attribution.settings import DEFAULTS, KINDS, Options, Settings
from dtrak.checks import check_number
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.files import Remembered, kept_until_done
from dtrak.images.images import ImageSource
from dtrak.images.objects import images_from
from dtrak.methods import EVERY_METHOD, Method, Methods, chosen_methods
from dtrak.models.model_source import ModelSource

Model = Any  # a DiffusionModel, a pipeline of diffusers, or what `load_model` takes
Data = Any  # images, what `load_images` takes, or what `images_from` takes


@overload
def attribute(  # a name is a sequence as well; the first overload counts
    model: Model,
    train: Data,
    queries: Data,
    method: str | Method | None = ...,
    *,
    top: int | None = ...,
    cache: str | Path | None = ...,
    device: str | None = ...,
    engine: Engine | None = ...,
    **settings: Unpack[Options],
) -> Scores: ...
@overload
def attribute(
    model: Model,
    train: Data,
    queries: Data,
    method: Sequence[str | Method],
    *,
    top: int | None = ...,
    cache: str | Path | None = ...,
    device: str | None = ...,
    engine: Engine | None = ...,
    **settings: Unpack[Options],
) -> dict[str, Scores]: ...
def attribute(
    model: Model,
    train: Data,
    queries: Data,
    method: Methods | None = None,
    *,
    top: int | None = None,
    cache: str | Path | None = None,
    device: str | None = None,
    engine: Engine | None = None,
    **settings: Unpack[Options],
) -> Scores | dict[str, Scores]:
    """Score every training image for every query.

    `method` is a name from `dtrak.methods` or a `Method`; the default is the recommended method. For several methods,
    the result is a dictionary by name, and they share the features that they have in common. "all" stands for every
    method whose needs are met. An `objective`, which is a name or a function, replaces D-TRAK's L_Square; if it is
    given without `method`, the method is D-TRAK. A `projection` and an `encoder` may be functions as well, of the kinds
    in `PROJECTIONS` and `ENCODERS`. `parameters` is a regular expression, a list of names, or a function of a name and
    its parameter. `damping` is "auto", "spectrum", a fraction of the mean eigenvalue of ΦΦᵀ, or "absolute:λ" (see
    `dtrak.kernels.damping`). `dtrak.attribution.settings.Settings` explains the others.

    With `top`, the scores hold only so many of the highest and of the lowest ones of each query, for large training
    sets; credit is still computed from the scores of all images.

    `cache` is a folder that keeps the features: the next call with the same training images computes only the features
    of its queries. An `engine` computes gradients on its workers (see `dtrak.engines`).

    >>> import dtrak
    >>> model = dtrak.load_model("runs/digits/model")
    >>> train = dtrak.load_images("digits:train").first(50)
    >>> queries = dtrak.load_images("runs/digits/generated").first(2)
    >>> scores = dtrak.attribute(model, train, queries, "d-trak", timesteps=2, parameters="conv_out")
    >>> scores.values.shape
    (2, 50)
    """
    several = not isinstance(method, str | Method | None)
    if several and not (isinstance(method, Sequence) and all(isinstance(one, str | Method) for one in method)):
        raise UsageError(f"method {method!r}: give a name from `dtrak methods`, a Method, or a list of these")
    source = ModelSource(str(model) if isinstance(model, str | Path) else model)
    parameters = settings.get("parameters")
    if parameters is not None and not isinstance(parameters, str):
        names = source.open(device=device).parameters(parameters)
        settings["parameters"] = f"^({'|'.join(map(re.escape, names))})$"
    chosen = Settings(**settings)
    methods = chosen_methods(method, chosen.objective)
    if not isinstance(cache, str | Path | None):
        raise UsageError(f"{cache!r} is a {type(cache).__name__}: give the path of a folder")
    place, every = None if cache is None else Path(cache), method in (EVERY_METHOD, [EVERY_METHOD])
    question = question_about(source, train, queries, methods, chosen, device, place)
    scores = answers(question, cache=place, top=top, device=device, engine=engine, every=every)
    return scores if several or every else scores[methods[0].name]


def question_about(
    model: ModelSource,
    train: Data,
    queries: Data,
    methods: Sequence[Method],
    settings: Settings,
    device: str | None,
    cache: Path | None = None,
) -> Question:
    """Return the question about images in shapes that the model takes; a `cache` remembers what was in their files."""
    opened = model.open(device=device)
    memory = None if cache is None else Remembered(cache / "images.json")
    of_train, of_queries = (
        replace(source_of(given, name), memory=memory) for given, name in ((train, "train"), (queries, "queries"))
    )
    of_train = of_train.fitting(opened)
    of_queries = of_queries.fitting(opened.fitted_to(of_train.open().shape))
    return Question(model, of_train, of_queries, tuple(methods), settings)


def source_of(data: Data, name: str) -> ImageSource:
    """Return the source of images that were given; errors call them `name`."""
    if isinstance(data, ImageSource):
        return data
    return ImageSource(str(data) if isinstance(data, str | Path) else images_from(data, name=name))


def answers(
    question: Question,
    *,
    cache: Path | None = None,
    top: int | None = None,
    device: str | None = None,
    engine: Engine | None = None,
    every: bool = False,
) -> dict[str, Scores]:
    """Answer a question. If `every` method was asked for, those whose needs are not met are left out."""
    if top is not None:
        check_number("top", top)
    if engine is not None and not callable(getattr(engine, "run", None)):  # anything can be given from Python
        raise UsageError(f"engine is {engine!r}: give one that dtrak.engines.make_engine makes, as make_engine('pool')")
    check_objective(question.methods, question.settings)
    with kept_until_done(cache) as folder:
        opened = Opened(question, folder, device=device, engine=engine, one_damping=True)
        opened = possible(opened) if every else checked(opened)
        if cache is not None:
            opened.question.keep(cache, opened.facts)
        return answer(opened, top)


def _signature() -> inspect.Signature:
    """Return the signature with every setting by its name and default, for completion and `help`."""
    found = inspect.signature(attribute)
    own = [one for one in found.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, kind, default=DEFAULTS[name], annotation=KINDS[name]) for name in DEFAULTS]
    return found.replace(parameters=[*own, *more])


attribute.__signature__ = _signature()  # type: ignore[attr-defined]  # functions have no such attribute for mypy
