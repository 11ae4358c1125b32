"""DiT: a transformer on latents that takes a class, with a learned variance, which is left out."""

from typing import Any

import torch
from torch import Tensor

from dtrak.models.conditions import Classes
from dtrak.models.families.pipeline_family import PipelineFamily


class DiT(PipelineFamily):
    kind, title, pipelines = "dit", "DiT", ("DiTPipeline",)
    classes = ("DiTTransformer2DModel", "Transformer2DModel", "AutoencoderKL")
    takes_prompts, guidance = False, 4.0

    def conditioner(self, pipeline: Any, load: Any, stored: Any, prompt: str | None, source: str) -> Classes:
        count = pipeline.transformer.config.num_embeds_ada_norm
        return Classes("class_labels", count, pipeline.labels, count, source)

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {"class_labels": torch.zeros(1, dtype=torch.long)}


FAMILY = DiT()
