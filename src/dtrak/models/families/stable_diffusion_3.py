"""Stable Diffusion 3 and 3.5: a transformer that predicts a flow, with embeddings by two CLIPs and a T5."""

from typing import TYPE_CHECKING, Any, Literal

from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.settings import PromptedSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dtrak.models.adapters import Adapter
    from dtrak.models.conditions import Condition


class StableDiffusion3Settings(PromptedSettings):
    """Stable Diffusion 3, fine-tuned with LoRA on images and their prompts."""

    kind: Literal["stable-diffusion-3"]


class StableDiffusion3(PipelineFamily):
    """Stable Diffusion 3 and 3.5, and their LoRAs."""

    kind = "stable-diffusion-3"
    title = "Stable Diffusion 3"
    pipelines = ("StableDiffusion3Pipeline",)
    settings = StableDiffusion3Settings

    def adapter(self, pipeline: Any) -> "Adapter":
        return call

    def encode(self, pipeline: Any, texts: list[str], device: "torch.device") -> "Condition":
        words, _, pooled, _ = pipeline.encode_prompt(
            texts, None, None, device=device, do_classifier_free_guidance=False
        )
        return {"encoder_hidden_states": words, "pooled_projections": pooled}

    def shapes(self, network: Any) -> dict[str, "Tensor"]:
        import torch

        return {
            "encoder_hidden_states": torch.zeros(1, 77 + 256, network.config.joint_attention_dim),
            "pooled_projections": torch.zeros(1, network.config.pooled_projection_dim),
        }


def call(network: "nn.Module", noisy: "Tensor", time: "Tensor", condition: "Condition") -> Any:
    return network(noisy, timestep=time, **condition)
