"""Recipes: everything that a run needs to be done again, as YAML that is checked field by field.

`digits` and the like are files beside this one; any path to a YAML file works as well.
"""

import reprlib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dtrak.errors import UsageError

Positive = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Open = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """Where the images come from: whatever `load_images` takes."""

    train: str
    subset: str | None = None  # train on these only: ids in an .npy or .txt file, found from where the recipe lies
    validation: str | None = None
    crop: Positive | None = None  # centre crop to this many pixels first
    size: Positive | None = None  # then resize to this
    channels: Literal[1, 3] | None = None  # as the images have it if not given


class Schedule(Section):
    """The forward process, in diffusers' words."""

    num_train_timesteps: Positive = 1000
    beta_schedule: Literal["linear", "squaredcos_cap_v2"] = "linear"
    beta_start: Open = 1e-4
    beta_end: Open = 0.02
    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"


class Model(Section):
    """An unconditional DDPM; `unet` is the configuration of diffusers' UNet2DModel, size and channels aside."""

    unet: dict[str, Any]
    schedule: Schedule = Schedule()


class Training(Section):
    """The paper's settings unless a recipe says otherwise."""

    epochs: Positive
    batch_size: Positive = 128
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    warmup: Fraction = 0.1  # of all steps, then cosine to zero
    betas: tuple[Open, Open] = (0.95, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 1e-6
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    flip: bool = False  # random horizontal flips
    checkpoints: Positive = 4  # evenly spaced and kept
    seed: Seed = 0


class Generation(Section):
    count: Positive = 60
    steps: Positive = 50  # of DDIM
    seed: Seed = 0


class Attribution(Section):
    method: str = "d-trak"
    objective: str | None = None
    timesteps: int | str = 10
    draws: Positive = 1  # noises at each timestep
    noise: Literal["shared", "per-image"] = "shared"  # the same for every image, or its own
    projection: str = "sketch"
    projection_dim: Positive = 4096
    damping: float | str = "auto"
    parameters: str | None = None
    seed: Seed = 0


class Recipe(Section):
    name: str
    summary: str
    data: Data
    model: Model
    training: Training
    generation: Generation = Generation()
    attribution: Attribution = Attribution()

    @model_validator(mode="after")
    def _steps_fit_the_schedule(self) -> "Recipe":
        steps, most = self.generation.steps, self.model.schedule.num_train_timesteps
        if steps > most:
            raise ValueError(f"generation.steps is {steps}, but model.schedule.num_train_timesteps only {most}")
        return self

    def with_subset(self, path: str) -> "Recipe":
        return self.model_copy(update={"data": self.data.model_copy(update={"subset": path})})


def recipe_names() -> list[str]:
    folder = files("dtrak.recipes")
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))


def recipe_text(source: str) -> str:
    """The YAML of a recipe as it was written, comments included."""
    if source in recipe_names():
        return (files("dtrak.recipes") / f"{source}.yaml").read_text()
    if Path(source).is_file():
        try:
            return Path(source).read_text()
        except UnicodeDecodeError as error:
            raise UsageError(f"{source} is not a recipe: {error}") from None
    raise UsageError(f"unknown recipe {source!r}: choose from {', '.join(recipe_names())}, or give a YAML file")


def load_recipe(source: str) -> Recipe:
    """A recipe by name or from a YAML file."""
    try:
        content = yaml.safe_load(recipe_text(source))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source} is not YAML{where}: {getattr(error, 'problem', error)}") from None
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{source}: {'; '.join(map(_described, error.errors()))}") from None
    subset = recipe.data.subset
    return recipe if subset is None else recipe.with_subset(str(Path(source).parent / subset))


def _described(problem: Any) -> str:
    """One of pydantic's errors: the field, what is wrong with it, and what it says."""
    if problem["type"] == "value_error":  # one of ours, above
        return str(problem["ctx"]["error"])
    field = ".".join(map(str, problem["loc"])) or "the recipe"
    says = "" if problem["type"] == "missing" else f" (it says {reprlib.repr(problem['input'])})"
    return f"{field}: {problem['msg']}{says}"


def dump_recipe(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
