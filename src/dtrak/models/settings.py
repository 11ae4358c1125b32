"""The section `model` of a recipe: what the families of models share."""

from typing import Annotated, Literal

from pydantic import Field

from dtrak.checks import MOST, Fraction, OpenFraction, Positive, Section
from dtrak.models.unet_settings import UNet

Shape = tuple[int, int, int]  # (C, H, W) of an image


class Schedule(Section):
    """The noise schedule; the fields have the names of diffusers."""

    num_train_timesteps: Annotated[Positive, Field(le=MOST["num_train_timesteps"])] = 1000
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear"
    beta_start: OpenFraction = 1e-4
    beta_end: OpenFraction = 0.02
    prediction_type: Literal["epsilon", "v_prediction", "sample"] = "epsilon"


class DDPMSettings(Section):
    """A U-Net on pixels; `unet` is the configuration of diffusers' UNet2DModel, without size and channels.

    If it has `num_class_embeds`, the U-Net takes the class of an image: the whole number in its column `label`, or the
    place of its name in `classes`.
    """

    kind: Literal["ddpm"] = "ddpm"
    unet: UNet
    schedule: Schedule = Schedule()
    classes: tuple[str, ...] | None = None  # names of classes, if labels are not numbers


class LoRA(Section):
    """Which layers of a frozen network get a trained update of low rank; the fields have the names of peft."""

    rank: Annotated[Positive, Field(le=MOST["rank"])]
    alpha: Positive  # the update is scaled by alpha / rank
    dropout: Fraction = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("to_q", "to_k", "to_v", "to_out.0")


class PipelineSettings(Section):
    """A pipeline of diffusers, fine-tuned with LoRA; each family has a subclass with its own `kind`."""

    base: str  # a pipeline's folder, or a hub id
    lora: LoRA
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of the frozen weights
    prompt: str | None = None  # a template with the names of columns: "a {label} painting", "{caption}"


class PromptedSettings(PipelineSettings):
    """A pipeline that takes prompts."""

    prompt: str
