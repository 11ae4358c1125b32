"""FLUX.1: a transformer on patches of 2 × 2 latents that predicts a flow, with embeddings by a T5 and a CLIP.

FLUX.1-dev was distilled from guided predictions: it takes the strength of the guidance as a condition of its own.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dtrak.contracts import Shape
from dtrak.models.conditions import Adapter, Condition
from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.prompts import PipelineText, Prompts

GUIDANCE = 3.5  # diffusers' default, in its pipeline and in its scripts for training
SIDE = 128  # of the latents of a picture of 1024 × 1024 pixels


class Flux(PipelineFamily):
    kind, title, pipelines = "flux", "FLUX.1", ("FluxPipeline",)
    classes = ("FluxTransformer2DModel", "AutoencoderKL", "CLIPTextModel", "T5EncoderModel")
    guidance = GUIDANCE

    def adapter(self, pipeline: Any) -> Adapter:
        return call_distilled if pipeline.transformer.config.guidance_embeds else call

    def conditioner(self, pipeline: Any, load: Any, stored: Any, prompt: str | None, source: str) -> Prompts:
        encode = self.encode_distilled if pipeline.transformer.config.guidance_embeds else self.encode
        return Prompts(PipelineText(load, encode, None, stored), prompt)

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        words, pooled, _ = pipeline.encode_prompt(texts, texts, device=device)
        return {"encoder_hidden_states": words, "pooled_projections": pooled}

    def encode_distilled(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        return {**self.encode(pipeline, texts, device), "guidance": torch.full([len(texts)], GUIDANCE, device=device)}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        shapes = {
            "encoder_hidden_states": torch.zeros(1, 512, network.config.joint_attention_dim),
            "pooled_projections": torch.zeros(1, network.config.pooled_projection_dim),
        }
        return {**shapes, "guidance": torch.zeros(1)} if network.config.guidance_embeds else shapes

    def shape(self, network: Any, source: str) -> Shape:
        return network.config.in_channels // 4, SIDE, SIDE

    def multiple(self, network: Any) -> int:
        return 2


def call(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Tensor:
    """Call the transformer with latents as patches [B, h/2 · w/2, 4C], with the place of each, and time in [0, 1]."""
    batch, channels, height, width = noisy.shape
    rows, columns = height // 2, width // 2
    patches = noisy.view(batch, channels, rows, 2, columns, 2).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    places = torch.zeros(rows, columns, 3, device=noisy.device, dtype=noisy.dtype)
    places[..., 1] = torch.arange(rows, device=noisy.device, dtype=noisy.dtype)[:, None]
    places[..., 2] = torch.arange(columns, device=noisy.device, dtype=noisy.dtype)[None, :]
    words = condition["encoder_hidden_states"]
    output: Tensor = network(
        hidden_states=patches,
        timestep=time / 1000,
        img_ids=places.flatten(0, 1),
        txt_ids=words.new_zeros(words.shape[1], 3),
        return_dict=False,
        **condition,
    )[0]
    return output.view(batch, rows, columns, channels, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(noisy.shape)


def call_distilled(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Tensor:
    """Call a transformer that also takes the strength of the guidance, always in float32."""
    return call(network, noisy, time, {**condition, "guidance": condition["guidance"].float()})


FAMILY = Flux()
