"""Find how large a model is without making it: on torch's meta device, where tensors have shapes but no memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import CLIPTextConfig, CLIPTextModel

from dtrak.errors import UsageError
from dtrak.models.classes import Classes
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.loras import add_lora
from dtrak.models.memory import PeakMemory, kept_bytes
from dtrak.models.opening import PRECISIONS, on_meta, parts_of
from dtrak.models.settings import PipelineSettings, Shape

# The settings of Stable Diffusion 1 that differ from the defaults of diffusers and transformers.
UNET: dict[str, Any] = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
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
    frozen_bytes: int = 0  # of the parameters that are not trained; 0: four for each
    is_assumed: bool = False  # whether the sizes are those of Stable Diffusion 1, as the pipeline cannot be read


class FusedAttention(TorchFunctionMode):
    """Compute attention as one operation, as devices do; the meta device would divide it and keep large matrices."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
            query, key, value = (given[name] for name in ("query", "key", "value"))
            shared = query.shape[1] // key.shape[1]  # heads that share keys and values
            key, value = (one.repeat_interleave(shared, 1) if shared > 1 else one for one in (key, value))
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0]
        return function(*args, **(kwargs or {}))


def lay_out_network(new: Callable[[], DiffusionModel], shape: Shape, source: str) -> Layout:
    """Return the sizes of a model without encoders that maps x_t of `shape` (C, H, W) and t to a prediction."""
    with torch.device("meta"), FusedAttention():
        built = new()
        first_class = {one.argument: _timestep()} if isinstance(one := built.conditioner, Classes) else {}
        try:
            forward = partial(built.predict, torch.zeros(1, *shape), _timestep(), first_class)
            return _measured(built.network, 0, forward)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"{source}: model.unet: no image can go through it: {error}") from error


def lay_out_pipeline(family: Any, configs: Path, settings: PipelineSettings, shape: Shape, source: str) -> Layout:
    """Return the sizes of a pipeline with a LoRA, for images of `shape` (C, H, W), from the settings of its parts."""
    with torch.device("meta"), FusedAttention():
        parts = on_meta(configs, settings.base, parts_of(configs, settings.base, family.usual))
        return _pipeline(family, parts, settings, shape, source)


def lay_out_stable_diffusion_1(family: Any, settings: PipelineSettings, shape: Shape, source: str) -> Layout:
    """Return the sizes of Stable Diffusion 1 with a LoRA."""
    with torch.device("meta"), FusedAttention():
        parts = {
            "unet": UNet2DConditionModel.from_config(UNET),
            "vae": AutoencoderKL.from_config(VAE),
            "text_encoder": CLIPTextModel(CLIPTextConfig(**TEXT_ENCODER)),
            "scheduler": DDPMScheduler(),
        }
        return replace(_pipeline(family, parts, settings, shape, source), is_assumed=True)


def _pipeline(family: Any, parts: Mapping[str, Any], settings: PipelineSettings, shape: Shape, source: str) -> Layout:
    """Measure a pipeline on the meta device with a new LoRA."""
    model: DiffusionModel = family.of_parts(parts, settings).fitted_to(shape)
    assert model.autoencoder is not None
    vae: Any = model.autoencoder.network
    network: Any = model.network
    network.to(PRECISIONS[settings.precision])
    add_lora(network, settings.lora, source)
    latents, condition = torch.zeros(1, *model.shape), family.shapes(network)
    text = [part for name, part in parts.items() if name.startswith("text_encoder")]
    forward = partial(model.predict, latents, _timestep(), condition)
    measured = _measured(network, _count(vae) + sum(map(_count, text)), forward)
    return replace(
        measured,
        latents=latents.numel(),
        prompt=sum(value.numel() for value in condition.values()),
        encoding=_peak(lambda: vae.encode(torch.zeros(1, *model.image_shape))),
        decoding=_peak(lambda: vae.decode(latents)),
        frozen_bytes=4 * _count(vae) + PRECISIONS[settings.precision].itemsize * (measured.frozen - _count(vae)),
    )


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
