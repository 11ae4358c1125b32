"""Sana: a linear transformer on latents of strong compression that predicts a flow, with embeddings by a Gemma."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from dtrak.models.conditions import Adapter, Condition
from dtrak.models.families.pipeline_family import PipelineFamily


class Sana(PipelineFamily):
    kind, title, pipelines = "sana", "Sana", ("SanaPipeline",)
    classes = ("SanaTransformer2DModel", "AutoencoderDC", "Gemma2Model", "Gemma2ForCausalLM")

    def adapter(self, pipeline: Any) -> Adapter:
        return call

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        """Encode prompts behind the instruction that the pipeline puts before them."""
        instruction = signature(type(pipeline).__call__).parameters["complex_human_instruction"].default
        words, mask, _, _ = pipeline.encode_prompt(texts, False, device=device, complex_human_instruction=instruction)
        return {"encoder_hidden_states": words, "encoder_attention_mask": mask}

    def without(self, pipeline: Any, device: torch.device) -> Condition:
        words, mask, _, _ = pipeline.encode_prompt([""], False, device=device)
        return {"encoder_hidden_states": words, "encoder_attention_mask": mask}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {
            "encoder_hidden_states": torch.zeros(1, 300, network.config.caption_channels),
            "encoder_attention_mask": torch.ones(1, 300, dtype=torch.long),
        }


def call(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Any:
    config: Any = network.config
    return network(noisy, timestep=time * config.timestep_scale, **condition)


FAMILY = Sana()
