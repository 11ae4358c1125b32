"""Lumina-Image 2: a transformer that predicts a flow the other way round, with embeddings by a Gemma."""

from typing import Any

import torch
from torch import Tensor, nn

from dtrak.models.conditions import Adapter, Condition
from dtrak.models.families.pipeline_family import PipelineFamily


class Lumina(PipelineFamily):
    kind, title, pipelines = "lumina", "Lumina-Image 2", ("Lumina2Pipeline",)
    classes = ("Lumina2Transformer2DModel", "AutoencoderKL", "Gemma2Model")

    def adapter(self, pipeline: Any) -> Adapter:
        return call

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        words, mask, _, _ = pipeline.encode_prompt(texts, do_classifier_free_guidance=False, device=device)
        return {"encoder_hidden_states": words, "encoder_attention_mask": mask}

    def without(self, pipeline: Any, device: torch.device) -> Condition:
        """Encode the empty prompt alone, without the pipeline's instruction."""
        words, mask = pipeline._get_gemma_prompt_embeds([""], device)
        return {"encoder_hidden_states": words, "encoder_attention_mask": mask}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {
            "encoder_hidden_states": torch.zeros(1, 256, network.config.cap_feat_dim),
            # The network reads how long the prompt is, so that the mask must have values even if nothing else has.
            "encoder_attention_mask": torch.ones(1, 256, dtype=torch.long, device="cpu"),
        }


def call(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Tensor:
    """Call the transformer, for which 0 is noise and 1 the image, so that its velocity has the other sign."""
    output: Tensor = network(noisy, timestep=1 - time / 1000, return_dict=False, **condition)[0]
    return -output


FAMILY = Lumina()
