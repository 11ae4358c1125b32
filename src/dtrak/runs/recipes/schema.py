"""What a recipe says, section by section: every field with its limits and its default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator
from pydantic_core import PydanticCustomError

from dtrak.errors import UsageError
from dtrak.images.selection import Selection
from dtrak.inputs.settings import Settings
from dtrak.limits import MOST, shortened
from dtrak.models.families import FAMILIES, ModelFamily, family_of
from dtrak.sections import Fraction, OpenFraction, Positive, Section, Seed

LONGEST_NAME = 100  # bytes
OF_TRAINING: Any = {"data": {"train", "select", "crop", "size", "channels"}, "model": True, "training": True}


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


def _kind(model: Any) -> Any:
    return model.get("kind", "ddpm") if isinstance(model, dict) else getattr(model, "kind", None)


def _of_its_family(content: Any) -> Any:
    """The section `model`, checked by the class that its family has for it."""
    kind = _kind(content)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise PydanticCustomError("kind", "Its kind should be {kinds}", {"kinds": " or ".join(FAMILIES)})
    return FAMILIES[kind].settings.model_validate(content)


Model = Annotated[SerializeAsAny[Section], BeforeValidator(_of_its_family)]


class Training(Section):
    """The paper's settings unless a recipe says otherwise."""

    epochs: Annotated[Positive, Field(le=MOST["epochs"])]
    batch_size: Annotated[Positive, Field(le=MOST["batch_size"])] = 128
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    warmup: Fraction = 0.1  # of all steps, then cosine to zero
    betas: tuple[OpenFraction, OpenFraction] = (0.95, 0.999)
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


@dataclass(frozen=True)
class Attribution(Settings):
    """How what was generated is attributed: every setting of `dtrak.attribute`, and the method."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    method: str | None = None  # the recommended one


class Evaluation(Section):
    """What `dtrak evaluate` asks of a run; what is not given is as the command has it."""

    subsets: Annotated[Positive, Field(le=MOST["subsets"])] | None = None  # random ones to retrain on, for LDS
    fraction: OpenFraction | None = None  # of the images, in each
    seeds: Annotated[Positive, Field(le=MOST["seeds"])] | None = None  # trainings of each
    timesteps: int | str | None = None  # over which a model's output is averaged
    noises: Annotated[Positive, Field(le=MOST["noises"])] | None = None  # at each of these
    validation: Annotated[Positive, Field(le=MOST["validation"])] | None = None  # images that are asked about
    generated: Annotated[Positive, Field(le=MOST["generated"])] | None = None  # and so many generated ones
    remove: Annotated[Positive, Field(le=MOST["remove"])] | None = None  # training images, for counterfactuals
    pictures: Annotated[Positive, Field(le=MOST["pictures"])] | None = None  # that are drawn again without them


class Recipe(Section):
    name: str
    summary: str
    data: Data
    model: Model  # of the class that its family has for it
    training: Training
    generation: Generation = Generation()
    attribution: Attribution = Attribution()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults_of_its_family(cls, content: Any) -> Any:
        """What a family of models has for other sections, where the recipe says nothing."""
        kind = _kind(content.get("model")) if isinstance(content, dict) else None
        if not isinstance(kind, str) or kind not in FAMILIES:
            return content
        filled = dict(content)
        for section, defaults in FAMILIES[kind].defaults.items():
            if isinstance(own := filled.get(section, {}), dict):
                filled[section] = {**defaults, **own}
        return filled

    @model_validator(mode="after")
    def _sections_fit_the_model(self) -> "Recipe":
        steps, most = self.generation.steps, self.timesteps
        if steps > most:
            raise ValueError(f"generation.steps is {steps}, but model.schedule.num_train_timesteps only {most}")
        about_prompts = {
            "generation.guidance": self.generation.guidance,
            "training.prompt_dropout": self.training.prompt_dropout,
        }
        for field, value in about_prompts.items():
            if value and not self.family.takes_prompts:
                kind = _kind(self.model)
                raise ValueError(f"{field} is {value}, but a {kind} has no prompts: leave it out")
        return self

    @property
    def family(self) -> ModelFamily:
        """What knows how to make, save and describe its model."""
        return family_of(self.model)

    @property
    def timesteps(self) -> int:
        """T, the length of the noise schedule."""
        return self.family.timesteps(self.model)

    @property
    def folder(self) -> Path:
        """Where its run lies if the user does not say: below runs/, under its name."""
        name = self.name
        if not name.isprintable() or name != name.strip() or name in ("", ".", "..") or {"/", "\\"} & {*name}:
            raise UsageError(f"name {shortened(name)}: no folder in runs can be called so; give another name, or --out")
        if len(name.encode()) > LONGEST_NAME:
            raise UsageError(
                f"name {shortened(name)}: it is longer than {LONGEST_NAME} letters; shorten it, or give --out"
            )
        return Path("runs") / self.name

    def of_training(self) -> dict[str, Any]:
        """The fields that a trained model depends on, the file of a subset's ids aside."""
        return self.model_dump(mode="json", include=OF_TRAINING)

    def with_subset(self, path: str) -> "Recipe":
        return self.model_copy(update={"data": self.data.model_copy(update={"subset": path})})
