"""Find how large a model is without making it: on torch's meta device, where tensors have shapes but no memory."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import CLIPTextConfig, CLIPTextModel

from dtrak.errors import UsageError
from dtrak.models import ddpm
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.memory import PeakMemory, kept_bytes
from dtrak.models.pipelines import check_kind, local_configs
from dtrak.models.settings import LoRA, Shape
from dtrak.models.stable_diffusion import add_lora

# The settings of Stable Diffusion 1 that differ from the defaults of diffusers and transformers.
UNET: dict[str, Any] = {"cross_attention_dim": 768, "attention_head_dim": 8}
VAE: dict[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
}
TEXT_ENCODER: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}


@dataclass(frozen=True)
class Layout:
    """The sizes of a model, and what one image takes."""

    trained: int  # parameters that are trained and attributed
    frozen: int  # parameters that are not trained
    activations: int  # at most, bytes that training keeps for one image between the forward and the backward pass
    working: int  # at most, bytes that a forward pass without gradients takes for one image
    network: nn.Module = field(repr=False)  # on the meta device
    latents: int = 0  # numbers that an autoencoder makes of an image; 0 for models that work on pixels
    prompt: int = 0  # numbers that a text encoder makes of a prompt
    encoding: int = 0  # at most, bytes that the autoencoder takes to encode one image
    decoding: int = 0  # at most, bytes that it takes to decode one
    is_assumed: bool = False  # whether the sizes are those of Stable Diffusion 1, as the pipeline cannot be read


class FusedAttention(TorchFunctionMode):
    """Compute attention as one operation, as devices do; the meta device would divide it and keep large matrices."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args[:3])[0]
        return function(*args, **(kwargs or {}))


def lay_out_ddpm(unet: dict[str, Any], schedule: dict[str, Any], shape: Shape, source: str) -> Layout:
    """Return the sizes of an unconditional U-Net for images of `shape` (C, H, W)."""
    return lay_out_network(lambda: ddpm.new(unet, schedule, shape, source), shape, source)


def lay_out_network(new: Callable[[], DiffusionModel], shape: Shape, source: str) -> Layout:
    """Return the sizes of a model without encoders that maps x_t of `shape` (C, H, W) and t to a prediction."""
    with torch.device("meta"), FusedAttention():
        built = new()
        try:
            return _measured(built.network, 0, lambda: built.predict(torch.zeros(1, *shape), _timestep()))
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"{source}: model.unet: no image can go through it: {error}") from error


def lay_out_stable_diffusion(base: str, lora: LoRA, shape: Shape, source: str) -> Layout:
    """Return the sizes of a pipeline with a LoRA, for images of `shape` (C, H, W)."""
    configs = local_configs(base)
    if configs is not None:
        check_kind(configs, base)
    with torch.device("meta"), FusedAttention():
        return _stable_diffusion(configs, lora, shape, source)


def _stable_diffusion(configs: Path | None, lora: LoRA, shape: Shape, source: str) -> Layout:
    """Measure a pipeline with a LoRA; without `configs`, that of Stable Diffusion 1."""
    unet, vae, text_encoder = _unet(configs), _vae(configs), _text_encoder(configs)
    add_lora(unet, lora, source)
    halvings = len(vae.config.block_out_channels) - 1
    latents = torch.zeros(1, unet.config.in_channels, *(side // 2**halvings for side in shape[1:]))
    prompt = torch.zeros(1, text_encoder.config.max_position_embeddings, unet.config.cross_attention_dim)
    frozen = _count(vae) + _count(text_encoder)
    measured = _measured(unet, frozen, lambda: unet(latents, _timestep(), prompt).sample)
    return replace(
        measured,
        latents=latents.numel(),
        prompt=prompt.numel(),
        encoding=_peak(lambda: vae.encode(torch.zeros(1, *shape))),
        decoding=_peak(lambda: vae.decode(latents)),
        is_assumed=configs is None,
    )


def _unet(configs: Path | None) -> Any:
    kind = UNet2DConditionModel
    return kind.from_config(UNET if configs is None else kind.load_config(configs / "unet"))


def _vae(configs: Path | None) -> Any:
    return AutoencoderKL.from_config(VAE if configs is None else AutoencoderKL.load_config(configs / "vae"))


def _text_encoder(configs: Path | None) -> Any:
    if configs is None:
        return CLIPTextModel(CLIPTextConfig(**TEXT_ENCODER))
    return CLIPTextModel(CLIPTextConfig.from_pretrained(configs / "text_encoder"))


def _measured(network: nn.Module, frozen: int, forward: Callable[[], Tensor]) -> Layout:
    """Measure a network beside `frozen` parameters of other networks; `forward` passes one image through it."""
    trained = sum(value.numel() for value in network.parameters() if value.requires_grad)
    network.eval()
    working = _peak(forward)
    network.train()  # so that the masks of dropout are counted
    return Layout(trained, frozen + _count(network) - trained, kept_bytes(network, forward), working, network)


def _peak(forward: Callable[[], object]) -> int:
    """Return the most bytes that a forward pass takes at once."""
    peak = PeakMemory()
    with torch.no_grad(), peak:
        forward()
    return peak.bytes


def _count(network: nn.Module) -> int:
    return sum(value.numel() for value in network.parameters())


def _timestep() -> Tensor:
    return torch.zeros(1, dtype=torch.long)
