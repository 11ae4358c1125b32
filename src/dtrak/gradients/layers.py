"""The gradient of a layer's parameters for each image of a batch, from its input a and its output's gradient g.

    ∇_W ℓ(image b) = Σ_{copies, positions} g aᵀ        one product per layer, over all copies of image b

Adding a layer type is one function and one line in `LAYERS`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

# Each function takes the layer, its input and its output's gradient, both with B·M copies in front, and B;
# it gives the gradient of `weight` and of `bias`, each [B, …].
LayerGradient = Callable[[Any, Tensor, Tensor, int], dict[str, Tensor]]


def linear(layer: nn.Linear, a: Tensor, g: Tensor, images: int) -> dict[str, Tensor]:
    a, g = a.reshape(images, -1, a.shape[-1]), g.reshape(images, -1, g.shape[-1])  # [B, M, in], [B, M, out]
    return {"weight": g.transpose(1, 2) @ a, "bias": g.sum(1)}


def conv2d(layer: nn.Conv2d, a: Tensor, g: Tensor, images: int) -> dict[str, Tensor]:
    # One call of the ordinary kernel for each image is faster than any batched form that unfolds the input.
    weights = [
        conv2d_weight(own_a, layer.weight.shape, own_g, layer.stride, layer.padding, layer.dilation, layer.groups)
        for own_a, own_g in zip(a.chunk(images), g.chunk(images), strict=True)
    ]
    return {"weight": torch.stack(weights), "bias": g.reshape(images, -1, *g.shape[1:]).sum((1, 3, 4))}


def group_norm(layer: nn.GroupNorm, a: Tensor, g: Tensor, images: int) -> dict[str, Tensor]:
    normalized = F.group_norm(a, layer.num_groups, eps=layer.eps)
    return _scale_and_shift(normalized.transpose(1, -1), g.transpose(1, -1), images)


def layer_norm(layer: nn.LayerNorm, a: Tensor, g: Tensor, images: int) -> dict[str, Tensor]:
    normalized = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    rank = len(layer.normalized_shape)
    return _scale_and_shift(normalized.flatten(-rank), g.flatten(-rank), images)


def _scale_and_shift(normalized: Tensor, g: Tensor, images: int) -> dict[str, Tensor]:
    normalized, g = (value.reshape(images, -1, value.shape[-1]) for value in (normalized, g))
    return {"weight": (normalized * g).sum(1), "bias": g.sum(1)}


def embedding(layer: nn.Embedding, a: Tensor, g: Tensor, images: int) -> dict[str, Tensor]:
    a, g = a.reshape(images, -1), g.reshape(images, -1, g.shape[-1])  # [B, M], [B, M, width]
    weight = g.new_zeros(images, layer.num_embeddings, g.shape[-1])
    return {"weight": weight.scatter_add_(1, a.unsqueeze(-1).expand_as(g), g)}


LAYERS: dict[type[nn.Module], LayerGradient] = {
    nn.Linear: linear,
    nn.Conv2d: conv2d,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.Embedding: embedding,
}


def owners(network: nn.Module, names: set[str]) -> dict[str, nn.Module]:
    """The layers that hold the named parameters, by the layer's name."""
    return {name.rpartition(".")[0]: network.get_submodule(name.rpartition(".")[0]) for name in names}


def supported(network: nn.Module, names: set[str]) -> bool:
    """Whether every named parameter sits in a layer whose gradients this file knows."""
    return all(
        type(layer) in LAYERS
        and getattr(layer, "padding_mode", "zeros") == "zeros"
        and not isinstance(getattr(layer, "padding", 0), str)
        for layer in owners(network, names).values()
    )
