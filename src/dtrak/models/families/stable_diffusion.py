"""Stable Diffusion 1 and 2: a U-Net on latents that takes the embedding of a prompt by one CLIP."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.models.conditions import Condition
from dtrak.models.families.pipeline_family import PipelineFamily, PipelineSettings
from dtrak.models.pipelines import network_config

# Settings of a U-Net that takes more than prompts as its condition.
OTHER_CONDITIONS = ("class_embed_type", "num_class_embeds", "encoder_hid_dim_type", "time_cond_proj_dim")

# The settings of Stable Diffusion 1 that differ from the defaults of diffusers and transformers.
UNET: dict[str, Any] = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
VAE: dict[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
}
TEXT_ENCODER: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}


class StableDiffusion(PipelineFamily):
    kind, title, pipelines = "stable-diffusion", "Stable Diffusion", ("StableDiffusionPipeline",)
    classes = ("UNet2DConditionModel", "AutoencoderKL", "CLIPTextModel")
    part = "unet"
    usual: Mapping[str, tuple[str, str]] = {
        "vae": ("diffusers", "AutoencoderKL"),
        "text_encoder": ("transformers", "CLIPTextModel"),
        "tokenizer": ("transformers", "CLIPTokenizer"),
        "unet": ("diffusers", "UNet2DConditionModel"),
        "scheduler": ("diffusers", "DDPMScheduler"),
    }

    def check(self, folder: Path, source: str) -> None:
        super().check(folder, source)
        check_unet(folder, source, (*OTHER_CONDITIONS, "addition_embed_type"))
        text = network_config(folder, "text_encoder", source)
        if (folder / "text_encoder_2").exists() or not str(text.get("model_type", "")).startswith("clip"):
            raise UsageError(f"{source}: its text encoder is not the one CLIP of Stable Diffusion 1 and 2")

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        return {"encoder_hidden_states": pipeline.encode_prompt(texts, device, 1, False)[0]}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {"encoder_hidden_states": torch.zeros(1, 77, network.config.cross_attention_dim)}

    def assumed_parts(self, settings: PipelineSettings) -> dict[str, Any]:
        from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
        from transformers import CLIPTextConfig, CLIPTextModel

        return {
            "unet": UNet2DConditionModel.from_config(UNET),
            "vae": AutoencoderKL.from_config(VAE),
            "text_encoder": CLIPTextModel(CLIPTextConfig(**TEXT_ENCODER)),
            "scheduler": DDPMScheduler(),
        }


def check_unet(folder: Path, source: str, other_conditions: tuple[str, ...]) -> None:
    """Refuse a U-Net that takes more than its pipeline gives it, or that maps channels to others."""
    unet = network_config(folder, "unet", source)
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


FAMILY = StableDiffusion()
