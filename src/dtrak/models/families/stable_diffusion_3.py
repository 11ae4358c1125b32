"""Stable Diffusion 3 and 3.5: a transformer that predicts a flow, with embeddings by two CLIPs and a T5."""

from typing import Any

import torch
from torch import Tensor, nn

from dtrak.models.conditions import Adapter, Condition
from dtrak.models.families.pipeline_family import PipelineFamily


class StableDiffusion3(PipelineFamily):
    kind, title, pipelines = "stable-diffusion-3", "Stable Diffusion 3", ("StableDiffusion3Pipeline",)
    classes = ("SD3Transformer2DModel", "AutoencoderKL", "CLIPTextModelWithProjection", "T5EncoderModel")

    def adapter(self, pipeline: Any) -> Adapter:
        return call

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        found = pipeline.encode_prompt(texts, None, None, device=device, do_classifier_free_guidance=False)
        return {"encoder_hidden_states": found[0], "pooled_projections": found[2]}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {
            "encoder_hidden_states": torch.zeros(1, 77 + 256, network.config.joint_attention_dim),
            "pooled_projections": torch.zeros(1, network.config.pooled_projection_dim),
        }


def call(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Any:
    return network(noisy, timestep=time, **condition)


FAMILY = StableDiffusion3()
