"""Recipes: everything that a run needs to be done again, as YAML that is checked field by field.

`digits` and the like are files beside this one; any path to a YAML file works as well. A section `small` in it has the
fields that differ when the same is tried at a small scale.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from dtrak.errors import UsageError
from dtrak.limits import MOST, told
from dtrak.recipes.networks import UNet
from dtrak.recipes.reading import read_yaml
from dtrak.recipes.reading import recipe_names as recipe_names
from dtrak.recipes.reading import recipe_text as recipe_text

Positive = Annotated[int, Field(gt=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=MOST["seed"])]
Fraction = Annotated[float, Field(ge=0, le=1)]
Open = Annotated[float, Field(gt=0, lt=1)]

SCALES = ("small",)
LONGEST_NAME = 100  # bytes
MOST_TOLD = 10  # problems of a recipe in one message
OF_TRAINING: Any = {"data": {"train", "select", "crop", "size", "channels"}, "model": True, "training": True}


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Selection(Section):
    """Some of a source's images: of these classes only, and of them so many, drawn by a seed."""

    classes: Annotated[list[str], Field(min_length=1)] | None = None  # by the column `label`; all if None
    count: Positive | None = None  # in all, the same share of every class
    per_class: Positive | None = None  # or so many of each class
    seed: Seed = 0

    @property
    def stated(self) -> int | None:
        """How many images that is, where it can be said without looking."""
        if self.per_class is not None and self.classes is not None:
            return self.per_class * len(self.classes)
        return self.count

    @model_validator(mode="after")
    def _one_number(self) -> "Selection":
        if self.count is not None and self.per_class is not None:
            raise ValueError(f"a selection has count {self.count} and per_class {self.per_class}: give one of them")
        return self


class Data(Section):
    """Where the images come from: whatever `load_images` takes."""

    train: str
    select: Selection | None = None  # which of them; all if not given
    subset: str | None = None  # train on these only: ids in an .npy or .txt file, found from where the recipe lies
    validation: str | None = None
    select_validation: Selection | None = None
    crop: Annotated[Positive, Field(le=MOST["size"])] | None = None  # centre crop to this many pixels first
    size: Annotated[Positive, Field(le=MOST["size"])] | None = None  # then resize to this
    channels: Literal[1, 3] | None = None  # as the images have it if not given


class Schedule(Section):
    """The forward process, in diffusers' words."""

    num_train_timesteps: Annotated[Positive, Field(le=MOST["num_train_timesteps"])] = 1000
    beta_schedule: Literal["linear", "squaredcos_cap_v2"] = "linear"
    beta_start: Open = 1e-4
    beta_end: Open = 0.02
    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"


class DDPMRecipe(Section):
    """An unconditional DDPM; `unet` is the configuration of diffusers' UNet2DModel, size and channels aside."""

    kind: Literal["ddpm"] = "ddpm"
    unet: UNet
    schedule: Schedule = Schedule()

    @property
    def timesteps(self) -> int:
        """T, the length of the noise schedule."""
        return self.schedule.num_train_timesteps


class LoRA(Section):
    """Which layers of a frozen network get a trained update of low rank, in peft's words."""

    rank: Annotated[Positive, Field(le=MOST["rank"])]
    alpha: Positive  # the update is scaled by alpha / rank
    dropout: Fraction = 0.0
    targets: Annotated[list[str], Field(min_length=1)] = ["to_q", "to_k", "to_v", "to_out.0"]


class StableDiffusionRecipe(Section):
    """Stable Diffusion, fine-tuned with LoRA on images and their prompts."""

    kind: Literal["stable-diffusion"]
    base: str  # a pipeline's folder, or a hub id
    lora: LoRA
    prompt: str  # over an image's columns: "a {label} painting", "{caption}"

    @property
    def timesteps(self) -> int:
        """T, the same for every Stable Diffusion."""
        return 1000


def _kind(model: Any) -> Any:
    return model.get("kind", "ddpm") if isinstance(model, dict) else getattr(model, "kind", None)


KINDS = ("ddpm", "stable-diffusion")
Model = Annotated[
    Annotated[DDPMRecipe, Tag("ddpm")] | Annotated[StableDiffusionRecipe, Tag("stable-diffusion")],
    Discriminator(_kind, "kind", f"Its kind should be {' or '.join(KINDS)}"),
]


class Training(Section):
    """The paper's settings unless a recipe says otherwise."""

    epochs: Annotated[Positive, Field(le=MOST["epochs"])]
    batch_size: Annotated[Positive, Field(le=MOST["batch_size"])] = 128
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    warmup: Fraction = 0.1  # of all steps, then cosine to zero
    betas: tuple[Open, Open] = (0.95, 0.999)
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    gradient_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    flip: bool = False  # random horizontal flips
    prompt_dropout: Fraction = 0.0  # of the prompts are left empty, for guidance
    autocast: bool = False  # forward passes in bfloat16; weights and their gradients stay in float32
    checkpoints: Annotated[Positive, Field(le=MOST["checkpoints"])] = 4  # evenly spaced and kept
    seed: Seed = 0


class Generation(Section):
    count: Annotated[Positive, Field(le=MOST["count"])] = 60
    steps: Positive = 50  # of DDIM
    seed: Annotated[Seed, Field(le=MOST["first_seed"])] = 0
    guidance: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None  # by the prompt, for stable-diffusion


class Attribution(Section):
    method: str | None = None  # the recommended one
    objective: str | None = None
    timesteps: int | str = 10
    draws: Annotated[Positive, Field(le=MOST["draws"])] = 1  # noises at each timestep
    noise: Literal["shared", "per-image"] = "shared"  # the same for every image, or its own
    projection: str = "sketch"
    projection_dim: Annotated[Positive, Field(le=MOST["projection_dim"])] = 4096
    damping: float | str = "auto"
    parameters: str | None = None
    seed: Seed = 0


class Evaluation(Section):
    """What `dtrak evaluate` asks of a run; what is not given is as the command has it."""

    subsets: Annotated[Positive, Field(le=MOST["subsets"])] | None = None  # random ones to retrain on, for LDS
    fraction: Open | None = None  # of the images, in each
    seeds: Annotated[Positive, Field(le=MOST["seeds"])] | None = None  # trainings of each
    timesteps: int | str | None = None  # over which a model's output is averaged
    noises: Annotated[Positive, Field(le=MOST["noises"])] | None = None  # at each of these
    validation: Annotated[Positive, Field(le=MOST["validation"])] | None = (
        None  # so many validation images are asked about
    )
    generated: Annotated[Positive, Field(le=MOST["generated"])] | None = None  # and so many generated ones
    remove: Annotated[Positive, Field(le=MOST["remove"])] | None = (
        None  # training images for each picture, for counterfactuals
    )
    pictures: Annotated[Positive, Field(le=MOST["pictures"])] | None = None  # that are drawn again without them


OF_STABLE_DIFFUSION: dict[str, dict[str, Any]] = {"training": {"betas": (0.9, 0.999)}, "generation": {"guidance": 7.5}}


class Recipe(Section):
    name: str
    summary: str
    data: Data
    model: Model
    training: Training
    generation: Generation = Generation()
    attribution: Attribution = Attribution()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults_of_its_kind(cls, content: Any) -> Any:
        """What the paper has for Stable Diffusion, where it differs from its DDPMs and the recipe says nothing."""
        if not isinstance(content, dict) or _kind(content.get("model")) != "stable-diffusion":
            return content
        filled = dict(content)
        for section, defaults in OF_STABLE_DIFFUSION.items():
            if isinstance(own := filled.get(section, {}), dict):
                filled[section] = {**defaults, **own}
        return filled

    @model_validator(mode="after")
    def _sections_fit_the_model(self) -> "Recipe":
        steps, most = self.generation.steps, self.model.timesteps
        if steps > most:
            raise ValueError(f"generation.steps is {steps}, but model.schedule.num_train_timesteps only {most}")
        about_prompts = {
            "generation.guidance": self.generation.guidance,
            "training.prompt_dropout": self.training.prompt_dropout,
        }
        for field, value in about_prompts.items():
            if value and self.model.kind == "ddpm":
                raise ValueError(f"{field} is {value}, but a ddpm has no prompts: leave it out")
        return self

    @property
    def folder(self) -> Path:
        """Where its run lies if the user does not say: below runs/, under its name."""
        name = self.name
        if not name.isprintable() or name != name.strip() or name in ("", ".", "..") or {"/", "\\"} & {*name}:
            raise UsageError(f"name {told(name)}: no folder in runs can be called so; give another name, or --out")
        if len(name.encode()) > LONGEST_NAME:
            raise UsageError(f"name {told(name)}: it is longer than {LONGEST_NAME} letters; shorten it, or give --out")
        return Path("runs") / self.name

    def of_training(self) -> dict[str, Any]:
        """The fields that a trained model depends on, the file of a subset's ids aside."""
        return self.model_dump(mode="json", include=OF_TRAINING)

    def with_subset(self, path: str) -> "Recipe":
        return self.model_copy(update={"data": self.data.model_copy(update={"subset": path})})


def load_recipe(source: str, scale: str | None = None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by name or from a YAML file, at a `scale` that it has a section for, with `changes` to its fields."""
    content = read_yaml(source)
    if isinstance(content, dict):
        scales = {name: content.pop(name) for name in SCALES if name in content}
        for name, own in scales.items():
            if not isinstance(own, dict):
                raise UsageError(f"{source}: {name}: it must hold the fields that differ (it says {told(own)})")
        if scale is not None and scale not in scales:
            raise UsageError(f"{source} has no scale {scale!r}: {_known_scales(scales)}")
        content = _merged(_merged(content, scales.get(scale or "", {})), changes or {})
        _check_base(content, source, scale)
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        problems = list(map(_described, error.errors()))
        more = f"; and {len(problems) - MOST_TOLD} more" if len(problems) > MOST_TOLD else ""
        raise UsageError(f"{source}: {'; '.join(problems[:MOST_TOLD])}{more}") from None
    subset = recipe.data.subset
    return recipe if subset is None else recipe.with_subset(str(Path(source).parent / subset))


def first_difference(there: Any, wanted: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Where two nested dictionaries differ first: ("training.epochs", 3, 4)."""
    if not isinstance(there, dict) or not isinstance(wanted, dict):
        return None if there == wanted else (name, there, wanted)
    for key in {**there, **wanted}:
        found = first_difference(there.get(key), wanted.get(key), f"{name}.{key}" if name else key)
        if found is not None:
            return found
    return None


def _known_scales(scales: Mapping[str, Any]) -> str:
    return f"it has {', '.join(scales)}" if scales else "it has only its own; leave --scale out"


def _merged(content: Any, changes: Any) -> Any:
    """Nested mappings, with what the changes say in the place of what was there."""
    if not isinstance(content, dict) or not isinstance(changes, Mapping):
        return changes
    return content | {key: _merged(content.get(key), value) for key, value in changes.items()}


def _check_base(content: dict[str, Any], source: str, scale: str | None) -> None:
    """Ask for a model to start from where the recipe leaves it to its user."""
    model = content.get("model")
    if isinstance(model, dict) and _kind(model) == "stable-diffusion" and "base" in model and model["base"] is None:
        what = f"{source} at scale {scale}" if scale else source
        raise UsageError(f"{what} names no Stable Diffusion to start from: give a pipeline's folder as --base")


def _described(problem: Any) -> str:
    """One of pydantic's errors: the field, what is wrong with it, and what it says."""
    if problem["type"] == "value_error":  # one of ours, above
        return str(problem["ctx"]["error"])
    place = [part for part in problem["loc"] if part not in KINDS]  # pydantic names the kind of model as well
    field = ".".join(map(str, place)) or "the recipe"
    is_clear = problem["type"] == "missing" or not place
    says = "" if is_clear else f" (it says {told(problem['input'])})"
    return f"{field}: {problem['msg']}{says}"


def dump_recipe(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
