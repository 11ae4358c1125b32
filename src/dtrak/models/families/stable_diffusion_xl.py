"""Stable Diffusion XL: its U-Net takes embeddings by two CLIPs, a pooled embedding, and the size of the picture."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dtrak.models.conditions import Adapter, Condition
from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.families.stable_diffusion import OTHER_CONDITIONS, check_unet


class StableDiffusionXL(PipelineFamily):
    kind, title, pipelines = "stable-diffusion-xl", "Stable Diffusion XL", ("StableDiffusionXLPipeline",)
    classes = ("UNet2DConditionModel", "AutoencoderKL", "CLIPTextModel", "CLIPTextModelWithProjection")
    part = "unet"

    def check(self, folder: Path, source: str) -> None:
        super().check(folder, source)
        check_unet(folder, source, OTHER_CONDITIONS)

    def adapter(self, pipeline: Any) -> Adapter:
        return partial(call, reduction=2 ** (len(pipeline.vae.config.block_out_channels) - 1))

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        words, _, pooled, _ = pipeline.encode_prompt(texts, device=device, do_classifier_free_guidance=False)
        return {"encoder_hidden_states": words, "text_embeds": pooled}

    def without(self, pipeline: Any, device: torch.device) -> Condition:
        """Return zeros if the pipeline says so, as its own guidance does; else the condition of an empty prompt."""
        empty = self.encode(pipeline, [""], device)
        zeros = pipeline.config.get("force_zeros_for_empty_prompt")
        return {name: value.new_zeros(value.shape) if zeros else value for name, value in empty.items()}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        config = network.config
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        return {
            "encoder_hidden_states": torch.zeros(1, 77, config.cross_attention_dim),
            "text_embeds": torch.zeros(1, pooled),
        }


def call(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition, reduction: int) -> Any:
    """Call the U-Net with the picture's original size, the corner of its crop, and its final size, in pixels."""
    height, width = (reduction * side for side in noisy.shape[2:])
    pooled = condition["text_embeds"]
    sizes = pooled.new_tensor([height, width, 0, 0, height, width]).expand(len(noisy), 6)
    added = {"text_embeds": pooled, "time_ids": sizes}
    return network(noisy, time, encoder_hidden_states=condition["encoder_hidden_states"], added_cond_kwargs=added)


FAMILY = StableDiffusionXL()
