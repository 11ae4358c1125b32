"""Stable Diffusion 1 and 2: a U-Net on latents that takes the embedding of a prompt by one CLIP."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dtrak.errors import UsageError
from dtrak.models.families.pipeline_family import DIFFUSERS, TRANSFORMERS, PipelineFamily
from dtrak.models.settings import PromptedSettings, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dtrak.models.adapters import Adapter
    from dtrak.models.conditions import Condition
    from dtrak.models.layout import Layout

# Settings of a U-Net that takes more than prompts as its condition.
OTHER_CONDITIONS = (
    "class_embed_type",
    "num_class_embeds",
    "addition_embed_type",
    "encoder_hid_dim_type",
    "time_cond_proj_dim",
)


class StableDiffusionSettings(PromptedSettings):
    """Stable Diffusion, fine-tuned with LoRA on images and their prompts."""

    kind: Literal["stable-diffusion"]


class StableDiffusion(PipelineFamily):
    """Stable Diffusion 1 and 2, and their LoRAs."""

    kind = "stable-diffusion"
    title = "Stable Diffusion"
    pipelines = ("StableDiffusionPipeline",)
    part = "unet"
    settings = StableDiffusionSettings
    usual: Mapping[str, tuple[str, str]] = {
        "vae": (DIFFUSERS, "AutoencoderKL"),
        "text_encoder": (TRANSFORMERS, "CLIPTextModel"),
        "tokenizer": (TRANSFORMERS, "CLIPTokenizer"),
        "unet": (DIFFUSERS, "UNet2DConditionModel"),
        "scheduler": (DIFFUSERS, "DDPMScheduler"),
    }

    def check(self, folder: Path, source: str) -> None:
        super().check(folder, source)
        check_unet(folder, source, OTHER_CONDITIONS)
        check_one_clip(folder, source)

    def adapter(self, pipeline: Any) -> "Adapter":
        from dtrak.models.adapters import plain

        return plain

    def encode(self, pipeline: Any, texts: list[str], device: "torch.device") -> "Condition":
        return {"encoder_hidden_states": pipeline.encode_prompt(texts, device, 1, False)[0]}

    def shapes(self, network: Any) -> dict[str, "Tensor"]:
        import torch

        return {"encoder_hidden_states": torch.zeros(1, 77, network.config.cross_attention_dim)}

    def lay_out_assumed(self, settings: Any, shape: Shape, source: str) -> "Layout":
        from dtrak.models.layout import lay_out_stable_diffusion_1

        return lay_out_stable_diffusion_1(self, settings, shape, source)


def check_unet(folder: Path, source: str, other_conditions: tuple[str, ...]) -> None:
    """Refuse a U-Net that takes more than its pipeline gives it, or that maps channels to others."""
    from dtrak.models.pipelines import read_config

    unet = read_config(folder, Path("unet", "config.json"), source)
    if (kind := unet.get("_class_name")) != "UNet2DConditionModel":
        raise UsageError(f"{source}: its network is a {kind}, not the U-Net of Stable Diffusion")
    for setting in other_conditions:
        if unet.get(setting):
            raise UsageError(f"{source}: its U-Net takes more than prompts ({setting} is {unet[setting]!r})")
    before, after = (unet.get(f"{side}_channels", 4) for side in ("in", "out"))
    if before != after:
        raise UsageError(
            f"{source}: its U-Net maps {before} channels to {after}: pipelines for inpainting, depth or editing "
            "are not supported"
        )


def check_one_clip(folder: Path, source: str) -> None:
    """Refuse a pipeline without exactly one text encoder, a CLIP."""
    from dtrak.models.pipelines import read_config

    text = read_config(folder, Path("text_encoder", "config.json"), source)
    if (folder / "text_encoder_2").exists() or not str(text.get("model_type", "")).startswith("clip"):
        raise UsageError(f"{source}: its text encoder is not the one CLIP of Stable Diffusion 1 and 2")
