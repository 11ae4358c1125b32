"""Latent diffusion without a condition: a U-Net on the latents of a VQ or KL autoencoder (diffusers' LDMPipeline)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.settings import PipelineSettings

if TYPE_CHECKING:
    from torch import Tensor

    from dtrak.models.adapters import Adapter


class LatentDiffusionSettings(PipelineSettings):
    """Latent diffusion, fine-tuned with LoRA on images."""

    kind: Literal["latent-diffusion"]
    prompt: None = None


class LatentDiffusion(PipelineFamily):
    """Unconditional latent diffusion, and its LoRAs."""

    kind = "latent-diffusion"
    title = "latent diffusion"
    pipelines = ("LDMPipeline",)
    part = "unet"
    settings = LatentDiffusionSettings
    defaults: Mapping[str, Mapping[str, Any]] = {"training": {"betas": (0.9, 0.999)}}

    def adapter(self, pipeline: Any) -> "Adapter":
        from dtrak.models.adapters import plain

        return plain

    def conditioner(self, pipeline: Any, load: Any, large: bool, prompt: str | None, source: str) -> None:
        return None

    def is_conditional(self, settings: PipelineSettings) -> bool:
        return False

    def shapes(self, network: Any) -> dict[str, "Tensor"]:
        return {}

    def autoencoder(self, pipeline: Any) -> Any:
        return pipeline.vqvae

    def most_prompts(self, settings: PipelineSettings, images: int, classes: int | None) -> int:
        return 0
