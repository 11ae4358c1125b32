"""Lumina-Image 2: a transformer that predicts a flow the other way round, with embeddings by a Gemma."""

from typing import TYPE_CHECKING, Any, Literal

from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.settings import PromptedSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dtrak.models.adapters import Adapter
    from dtrak.models.conditions import Condition


class LuminaSettings(PromptedSettings):
    """Lumina-Image 2, fine-tuned with LoRA on images and their prompts."""

    kind: Literal["lumina"]


class Lumina(PipelineFamily):
    """Lumina-Image 2, and its LoRAs."""

    kind = "lumina"
    title = "Lumina-Image 2"
    pipelines = ("Lumina2Pipeline",)
    settings = LuminaSettings

    def adapter(self, pipeline: Any) -> "Adapter":
        return call

    def encode(self, pipeline: Any, texts: list[str], device: "torch.device") -> "Condition":
        words, mask, _, _ = pipeline.encode_prompt(texts, do_classifier_free_guidance=False, device=device)
        return {"encoder_hidden_states": words, "encoder_attention_mask": mask}

    def without(self, pipeline: Any, device: "torch.device") -> "Condition":
        """Encode the empty prompt alone, without the pipeline's instruction."""
        words, mask = pipeline._get_gemma_prompt_embeds([""], device)
        return {"encoder_hidden_states": words, "encoder_attention_mask": mask}

    def shapes(self, network: Any) -> dict[str, "Tensor"]:
        import torch

        return {
            "encoder_hidden_states": torch.zeros(1, 256, network.config.cap_feat_dim),
            # The network reads how long the prompt is, so that the mask must have values even if nothing else has.
            "encoder_attention_mask": torch.ones(1, 256, dtype=torch.long, device="cpu"),
        }


def call(network: "nn.Module", noisy: "Tensor", time: "Tensor", condition: "Condition") -> "Tensor":
    """Call the transformer, for which 0 is noise and 1 the image, so that its velocity has the other sign."""
    output: Tensor = network(noisy, timestep=1 - time / 1000, return_dict=False, **condition)[0]
    return -output
