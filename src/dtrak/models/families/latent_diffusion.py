"""Latent diffusion without a condition: a U-Net on the latents of a VQ or KL autoencoder (diffusers' LDMPipeline)."""

from typing import Any

from torch import Tensor

from dtrak.models.families.pipeline_family import PipelineFamily, PipelineSettings


class LatentDiffusion(PipelineFamily):
    kind, title, pipelines = "latent-diffusion", "latent diffusion", ("LDMPipeline",)
    classes = ("UNet2DModel", "VQModel", "AutoencoderKL")
    part, encoder = "unet", "vqvae"
    takes_prompts, guidance = False, None

    def is_conditional(self, settings: PipelineSettings) -> bool:
        return False

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {}

    def most_prompts(self, settings: PipelineSettings, images: int, classes: int | None) -> int:
        return 0


FAMILY = LatentDiffusion()
