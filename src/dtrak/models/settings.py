"""The section `model` of a recipe, for each family of models."""

from typing import Annotated, Literal

from pydantic import Field

from dtrak.limits import MOST
from dtrak.models.unet_settings import UNet
from dtrak.sections import Fraction, OpenFraction, Positive, Section

Shape = tuple[int, int, int]  # (C, H, W) of an image


class Schedule(Section):
    """The noise schedule; the fields have the names of diffusers."""

    num_train_timesteps: Annotated[Positive, Field(le=MOST["num_train_timesteps"])] = 1000
    beta_schedule: Literal["linear", "squaredcos_cap_v2"] = "linear"
    beta_start: OpenFraction = 1e-4
    beta_end: OpenFraction = 0.02
    prediction_type: Literal["epsilon", "v_prediction"] = "epsilon"


class DDPMSettings(Section):
    """An unconditional DDPM; `unet` is the configuration of diffusers' UNet2DModel, without size and channels."""

    kind: Literal["ddpm"] = "ddpm"
    unet: UNet
    schedule: Schedule = Schedule()


class LoRA(Section):
    """Which layers of a frozen network get a trained update of low rank; the fields have the names of peft."""

    rank: Annotated[Positive, Field(le=MOST["rank"])]
    alpha: Positive  # the update is scaled by alpha / rank
    dropout: Fraction = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("to_q", "to_k", "to_v", "to_out.0")


class StableDiffusionSettings(Section):
    """Stable Diffusion, fine-tuned with LoRA on images and their prompts."""

    kind: Literal["stable-diffusion"]
    base: str  # a pipeline's folder, or a hub id
    lora: LoRA
    prompt: str  # a template with the names of columns: "a {label} painting", "{caption}"
