"""AuraFlow: a transformer that predicts a flow, with embeddings by a UMT5."""

from typing import TYPE_CHECKING, Any, Literal

from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.settings import PromptedSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dtrak.models.adapters import Adapter
    from dtrak.models.conditions import Condition


class AuraFlowSettings(PromptedSettings):
    """AuraFlow, fine-tuned with LoRA on images and their prompts."""

    kind: Literal["aura-flow"]


class AuraFlow(PipelineFamily):
    """AuraFlow, and its LoRAs."""

    kind = "aura-flow"
    title = "AuraFlow"
    pipelines = ("AuraFlowPipeline",)
    settings = AuraFlowSettings

    def adapter(self, pipeline: Any) -> "Adapter":
        return call

    def encode(self, pipeline: Any, texts: list[str], device: "torch.device") -> "Condition":
        found = pipeline.encode_prompt(texts, do_classifier_free_guidance=False, device=device)
        return {"encoder_hidden_states": found[0]}

    def shapes(self, network: Any) -> dict[str, "Tensor"]:
        import torch

        return {"encoder_hidden_states": torch.zeros(1, 256, network.config.joint_attention_dim)}


def call(network: "nn.Module", noisy: "Tensor", time: "Tensor", condition: "Condition") -> Any:
    """Call the transformer with time in [0, 1]."""
    return network(noisy, timestep=time / 1000, **condition)
