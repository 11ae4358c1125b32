"""PixArt-α and PixArt-Σ: transformers with a learned variance, which is left out, and embeddings by a T5."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dtrak.models.conditions import Adapter, Condition
from dtrak.models.families.pipeline_family import PipelineFamily

TOKENS = 300  # of a prompt for PixArt-Σ; PixArt-α takes 120


class PixArt(PipelineFamily):
    kind, title, pipelines = "pixart", "PixArt", ("PixArtSigmaPipeline", "PixArtAlphaPipeline")
    classes = ("PixArtTransformer2DModel", "Transformer2DModel", "AutoencoderKL", "T5EncoderModel")

    def adapter(self, pipeline: Any) -> Adapter:
        return partial(call, reduction=2 ** (len(pipeline.vae.config.block_out_channels) - 1))

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        words, mask, _, _ = pipeline.encode_prompt(texts, False, device=device)
        return {"encoder_hidden_states": words, "encoder_attention_mask": mask}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {
            "encoder_hidden_states": torch.zeros(1, TOKENS, network.config.caption_channels),
            "encoder_attention_mask": torch.ones(1, TOKENS, dtype=torch.long),
        }


def call(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition, reduction: int) -> Any:
    """Call the transformer; PixArt-α for large pictures also takes their size and the ratio of their sides."""
    height, width = (reduction * side for side in noisy.shape[2:])
    added: dict[str, Any] = {"resolution": None, "aspect_ratio": None}
    if network.use_additional_conditions:
        sizes, ratio = noisy.new_tensor([height, width]), noisy.new_tensor([height / width])
        added = {"resolution": sizes.expand(len(noisy), 2), "aspect_ratio": ratio.expand(len(noisy), 1)}
    return network(noisy, timestep=time, added_cond_kwargs=added, **condition)


FAMILY = PixArt()
