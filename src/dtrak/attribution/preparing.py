"""Make a task: open the model and the images, and check everything before the long work begins."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from dtrak.devices import devices
from dtrak.engines import Engine
from dtrak.errors import UsageError, check_known
from dtrak.gradients.objectives import get_objective
from dtrak.images.images import Images, ImageSource
from dtrak.images.objects import images_from
from dtrak.inputs.needs import needed_by, objectives_of
from dtrak.inputs.settings import Settings
from dtrak.inputs.source_of import source_of
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping
from dtrak.methods import EVERY_METHOD, Gradients, Method, chosen_methods
from dtrak.progress import say

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

    from dtrak.models import DiffusionModel

# A model, a pipeline of diffusers, or what `load_model` takes.
Model = Union["DiffusionModel", "DiffusionPipeline", str, Path]
# Chooses parameters: a regular expression, names, or a function of a name and its parameter.
ChosenParameters = str | Sequence[str] | Callable[[str, Any], bool]
Data = Any  # images, what `load_images` takes, or what `images_from` takes


def prepare(
    model: Model,
    train: Data,
    queries: Data,
    methods: Sequence[str | Method],
    settings: Settings,
    folder: Path,
    device: str | None = None,
    engine: Engine | None = None,
    *,
    tries_dampings: bool = False,
) -> tuple[Task, list[Method]]:
    """Return the task and its methods; for `all`, those methods whose needs are met. Nothing is computed yet.

    With `tries_dampings`, the caller will try fixed dampings, so the features that the rule `auto` compares are not
    needed, whatever the settings say.
    """
    if engine is not None and not hasattr(engine, "run"):
        raise UsageError(f"engine is {engine!r}: give one that dtrak.engines.make_engine makes, as make_engine('pool')")
    chosen = chosen_methods(methods)
    check_objective(chosen, settings.objective)
    model, device = opened(model, device)
    train, queries = images_from(train, name="train"), images_from(queries, name="queries")
    if model.conditions is not None:
        model.conditions.check(train)
    model = model.fitted_to(train.shape)
    model.check_fits(queries.shape, queries.source)
    model.to(device or model.device)
    task = Task(model, train, queries, settings, folder, {}, engine)
    chosen = _possible(task, chosen) if list(methods) == [EVERY_METHOD] else _checked(task, chosen)
    damping = None if tries_dampings else Damping.parse(settings.damping)
    return task.needing(needed_by(chosen, settings.objective, damping)), chosen


def opened(model: Model, device: str | None) -> tuple["DiffusionModel", str | None]:
    """Open a model, and return it with its device: one that was a name goes to the GPU if there is one."""
    from dtrak.models import load_model, wrap

    if device is not None:
        device = str(device)  # torch has objects for devices
        check_known("device", device.removesuffix(":0"), devices())
    if isinstance(model, str | Path):
        return load_model(str(model)), device or devices()[0]
    return wrap(model), device


def fitting_data(data: Data, model: "DiffusionModel", name: str) -> tuple[Images, int | None]:
    """Open a source in a shape that the model takes, with its size if it is resized; objects are taken as they are."""
    if not isinstance(data, str | Path):
        return images_from(data, name=name), None
    fitted = ImageSource(str(data)).fitting(model)
    return fitted.open(), fitted.size


def pattern_of(parameters: Mapping[str, object]) -> str:
    """Return the regular expression that matches these names and no others."""
    return f"^({'|'.join(map(re.escape, parameters))})$"


def _checked(task: Task, methods: list[Method]) -> list[Method]:
    for one in methods:
        source_of(one).check(task)
    return methods


def _possible(task: Task, methods: list[Method]) -> list[Method]:
    """Return the methods whose needs are met; say what the others lack."""
    found = []
    for one in methods:
        try:
            source_of(one).check(task)
            found.append(one)
        except UsageError as error:
            say(f"Left out: {one.name}: {error}")
    return found


def check_objective(methods: Sequence[Method], name: str | None) -> None:
    """Refuse an objective that does not exist or that none of the methods can take."""
    if name is None:
        return
    get_objective(name)
    if not any(isinstance(one.needs, Gradients) and objectives_of(one.needs, name)[0] == name for one in methods):
        raise UsageError(f"{methods[0].name} does not take the objective {name!r}: d-trak does")
