"""DiT: a transformer on latents that takes a class, with a learned variance, which is left out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.settings import PipelineSettings

if TYPE_CHECKING:
    from torch import Tensor

    from dtrak.models.adapters import Adapter
    from dtrak.models.conditions import Conditioner


class DiTSettings(PipelineSettings):
    """DiT, fine-tuned with LoRA on images and their classes."""

    kind: Literal["dit"]


class DiT(PipelineFamily):
    """DiT, and its LoRAs."""

    kind = "dit"
    title = "DiT"
    pipelines = ("DiTPipeline",)
    settings = DiTSettings
    defaults: Mapping[str, Mapping[str, Any]] = {"training": {"betas": (0.9, 0.999)}, "generation": {"guidance": 4.0}}

    def adapter(self, pipeline: Any) -> "Adapter":
        from dtrak.models.adapters import plain

        return plain

    def conditioner(
        self, pipeline: Any, load: Any, large: bool, prompt: str | None, source: str
    ) -> "Conditioner | None":
        from dtrak.models.classes import Classes

        count = pipeline.transformer.config.num_embeds_ada_norm
        return Classes("class_labels", count, pipeline.labels, count, source)

    def shapes(self, network: Any) -> dict[str, "Tensor"]:
        import torch

        return {"class_labels": torch.zeros(1, dtype=torch.long)}
