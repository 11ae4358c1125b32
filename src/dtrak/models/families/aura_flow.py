"""AuraFlow: a transformer that predicts a flow, with embeddings by a UMT5."""

from typing import Any

import torch
from torch import Tensor, nn

from dtrak.models.conditions import Adapter, Condition
from dtrak.models.families.pipeline_family import PipelineFamily


class AuraFlow(PipelineFamily):
    kind, title, pipelines = "aura-flow", "AuraFlow", ("AuraFlowPipeline",)
    classes = ("AuraFlowTransformer2DModel", "AutoencoderKL", "UMT5EncoderModel")

    def adapter(self, pipeline: Any) -> Adapter:
        return call

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        found = pipeline.encode_prompt(texts, do_classifier_free_guidance=False, device=device)
        return {"encoder_hidden_states": found[0]}

    def shapes(self, network: Any) -> dict[str, Tensor]:
        return {"encoder_hidden_states": torch.zeros(1, 256, network.config.joint_attention_dim)}


def call(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Any:
    """Call the transformer with time in [0, 1]."""
    return network(noisy, timestep=time / 1000, **condition)


FAMILY = AuraFlow()
