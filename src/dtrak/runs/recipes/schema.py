"""The sections of a recipe: every field with its limits and its default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator
from pydantic_core import PydanticCustomError

from dtrak.attribution.settings import Settings
from dtrak.checks import MOST, Fraction, OpenFraction, Positive, Section, Seed, shortened
from dtrak.contracts import Family
from dtrak.errors import UsageError
from dtrak.images.selection import Selection
from dtrak.models.families import FAMILIES

LONGEST_NAME = 100  # bytes
TRAINING_FIELDS: Any = {"data": {"train", "select", "crop", "size", "channels"}, "model": True, "training": True}


class Data(Section):
    """The sources of the images, as `load_images` takes them."""

    train: str
    select: Selection | None = None  # which images; all if not given
    subset: str | None = None  # train only on the ids in this .npy or .txt file, relative to the recipe's folder
    validation: str | None = None
    select_validation: Selection | None = None
    crop: Annotated[Positive, Field(le=MOST["size"])] | None = None  # centre crop to this many pixels first
    size: Annotated[Positive, Field(le=MOST["size"])] | None = None  # then resize to this
    channels: Literal[1, 3] | None = None  # those of the images if not given


def _kind(model: Any) -> Any:
    """Return the field `kind` of a section `model`, validated or not."""
    return model.get("kind", "ddpm") if isinstance(model, dict) else getattr(model, "kind", None)


def _validated_by_family(content: Any) -> Any:
    """Validate the section `model` with the class of its family."""
    kind = _kind(content)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise PydanticCustomError("kind", "Its kind should be {kinds}", {"kinds": " or ".join(FAMILIES)})
    return FAMILIES[kind].settings.model_validate(content)


Model = Annotated[SerializeAsAny[Section], BeforeValidator(_validated_by_family)]


class Training(Section):
    """How the model is trained; the defaults are the paper's."""

    epochs: Annotated[Positive, Field(le=10**6)]
    batch_size: Annotated[Positive, Field(le=MOST["batch_size"])] = 128
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    warmup: Fraction = 0.1  # share of the steps in which the rate rises; then it falls to zero as a cosine
    betas: tuple[OpenFraction, OpenFraction] = (0.95, 0.999)
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    gradient_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    flip: bool = False  # random horizontal flips
    prompt_dropout: Fraction = 0.0  # share of the prompts that is left empty, for guidance
    autocast: bool = False  # forward passes use bfloat16; weights and their gradients stay in float32
    checkpoints: Annotated[Positive, Field(le=1000)] = 4  # that are kept, evenly spaced
    seed: Seed = 0


class Generation(Section):
    """How pictures are generated."""

    count: Annotated[Positive, Field(le=MOST["count"])] = 60
    steps: Positive = 50  # of DDIM
    seed: Annotated[Seed, Field(le=MOST["first_seed"])] = 0
    guidance: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None  # for models that take prompts
    prompts: Annotated[tuple[str, ...], Field(min_length=1)] | None = None  # in turn; else those of the training images


@dataclass(frozen=True, kw_only=True)
class Attribution(Settings):
    """How generated pictures are attributed: every setting of `dtrak.attribute`, and the method."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    method: str | None = None  # the recommended one if not given


class Evaluation(Section):
    """The settings of `dtrak evaluate`; for a field that is not given, the default of the command is used."""

    subsets: Annotated[Positive, Field(le=MOST["subsets"])] | None = None  # random subsets to retrain on, for LDS
    fraction: OpenFraction | None = None  # share of the images in each subset
    seeds: Annotated[Positive, Field(le=MOST["seeds"])] | None = None  # trainings on each subset
    timesteps: int | str | None = None  # over which a model's output is averaged
    noises: Annotated[Positive, Field(le=MOST["noises"])] | None = None  # at each timestep
    validation: Annotated[Positive, Field(le=MOST["validation"])] | None = None  # number of validation images
    generated: Annotated[Positive, Field(le=MOST["generated"])] | None = None  # number of generated pictures
    remove: Annotated[Positive, Field(le=MOST["remove"])] | None = None  # number of training images
    pictures: Annotated[Positive, Field(le=MOST["pictures"])] | None = None  # number of pictures drawn without them


class Recipe(Section):
    """All settings of a run."""

    name: str
    summary: str
    data: Data
    model: Model  # its class is the family's `settings`
    training: Training
    generation: Generation = Generation()
    attribution: Attribution = Attribution()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="before")
    @classmethod
    def _filled_with_family_defaults(cls, content: Any) -> Any:
        """Fill in the family's defaults of other sections, where the recipe gives no value."""
        kind = _kind(content.get("model")) if isinstance(content, dict) else None
        if not isinstance(kind, str) or kind not in FAMILIES:
            return content
        filled = dict(content)
        for section, defaults in FAMILIES[kind].defaults.items():
            if isinstance(given := filled.get(section, {}), dict):
                filled[section] = {**defaults, **given}
        return filled

    @model_validator(mode="after")
    def _sections_fit_the_model(self) -> "Recipe":
        """Refuse sections that do not fit the model."""
        steps, most = self.generation.steps, self.timesteps
        if steps > most:
            raise ValueError(f"generation.steps is {steps}, but model.schedule.num_train_timesteps only {most}")
        about_prompts = {
            "generation.guidance": self.generation.guidance,
            "generation.prompts": self.generation.prompts,
            "training.prompt_dropout": self.training.prompt_dropout,
        }
        for field, value in about_prompts.items():
            if value and not self.is_conditional:
                kind = _kind(self.model)
                raise ValueError(f"{field} is {value}, but this {kind} takes no prompts and no classes: leave it out")
        return self

    @property
    def family(self) -> Family:
        """The family that makes, saves and describes its model."""
        return FAMILIES[_kind(self.model)]

    @property
    def is_conditional(self) -> bool:
        """Whether its pictures are drawn of a prompt or a class."""
        return self.family.is_conditional(self.model)

    @property
    def timesteps(self) -> int:
        """T, the length of the noise schedule."""
        return self.family.timesteps(self.model)

    @property
    def folder(self) -> Path:
        """The folder of its run if the user gives none: runs/ with its name."""
        name = self.name
        if not name.isprintable() or name != name.strip() or name in ("", ".", "..") or {"/", "\\"} & {*name}:
            raise UsageError(f"name {shortened(name)}: no folder can have this name; give another name, or --out")
        if len(name.encode()) > LONGEST_NAME:
            raise UsageError(
                f"name {shortened(name)}: it is longer than {LONGEST_NAME} letters; shorten it, or give --out"
            )
        return Path("runs") / self.name

    def training_fields(self) -> dict[str, Any]:
        """Return the fields that a trained model depends on, without the file of a subset's ids."""
        return self.model_dump(mode="json", include=TRAINING_FIELDS)

    def with_subset(self, path: str) -> "Recipe":
        """Return the recipe with another file of a subset's ids."""
        return self.model_copy(update={"data": self.data.model_copy(update={"subset": path})})
