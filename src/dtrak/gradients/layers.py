"""Compute the gradient of a layer's parameters for each image of a batch, from its input a and its output's gradient g.

    ∇_W ℓ(image b) = Σ_{copies, positions} g aᵀ        one product per layer, over all copies of image b

To add a layer type, write a function for each of its parameters, and add a line to `LAYERS`. Layers of all other types
are run again, one image after the other (`by_autograd`).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

# Each function takes the layer, its input [B·M, …] and its output's gradient [B·M, …], for M copies of each of B
# images, and B. It returns the gradient of one parameter, [B, n].
LayerGradient = Callable[[Any, Tensor, Tensor, int], Tensor]


def linear_weight(layer: nn.Linear, a: Tensor, g: Tensor, images: int) -> Tensor:
    a, g = a.reshape(images, -1, a.shape[-1]), g.reshape(images, -1, g.shape[-1])  # [B, M, in], [B, M, out]
    return (g.transpose(1, 2) @ a).flatten(1)


def conv2d_kernel(layer: nn.Conv2d, a: Tensor, g: Tensor, images: int) -> Tensor:
    # One call of torch's function for each image is faster than a batched computation, which would unfold the input.
    weights = [
        conv2d_weight(own_a, layer.weight.shape, own_g, layer.stride, layer.padding, layer.dilation, layer.groups)
        for own_a, own_g in zip(a.chunk(images), g.chunk(images), strict=True)
    ]
    return torch.stack(weights).flatten(1)


def layer_norm_scale(layer: nn.LayerNorm, a: Tensor, g: Tensor, images: int) -> Tensor:
    normalized = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    return (normalized * g).reshape(images, -1, layer.weight.numel()).sum(1)


def sum_of_channels(layer: nn.Conv2d, a: Tensor, g: Tensor, images: int) -> Tensor:
    return g.flatten(2).sum(2).reshape(images, -1, g.shape[1]).sum(1)


def sum_of_last(layer: nn.Linear | nn.LayerNorm, a: Tensor, g: Tensor, images: int) -> Tensor:
    return g.reshape(images, -1, layer.bias.numel()).sum(1)


def embedding_weight(layer: nn.Embedding, a: Tensor, g: Tensor, images: int) -> Tensor:
    a, g = a.reshape(images, -1), g.reshape(images, -1, g.shape[-1])  # [B, M], [B, M, width]
    weight = g.new_zeros(images, layer.num_embeddings, g.shape[-1])
    return weight.scatter_add_(1, a.unsqueeze(-1).expand_as(g), g).flatten(1)


WITHOUT_INPUT = (sum_of_channels, sum_of_last)  # the functions that do not use the layer's input
LAYERS: dict[type[nn.Module], dict[str, LayerGradient]] = {
    nn.Linear: {"weight": linear_weight, "bias": sum_of_last},
    nn.Conv2d: {"weight": conv2d_kernel, "bias": sum_of_channels},
    nn.LayerNorm: {"weight": layer_norm_scale, "bias": sum_of_last},
    nn.Embedding: {"weight": embedding_weight},
}


def gradient_of(layer: nn.Module, key: str) -> LayerGradient:
    """Return the function that computes the gradient of the parameter `key` of a layer."""
    if is_known(layer) and key in LAYERS[type(layer)]:
        return LAYERS[type(layer)][key]
    return lambda layer, a, g, images: by_autograd(layer, key, a, g, images)


def by_autograd(layer: nn.Module, key: str, a: Tensor, g: Tensor, images: int) -> Tensor:
    """Compute the gradient for a layer of any type: run the layer again, one image after the other."""
    parameter = layer.get_parameter(key)
    required = parameter.requires_grad
    parameter.requires_grad_()
    try:
        found = []
        for own_a, own_g in zip(a.chunk(images), g.chunk(images), strict=True):
            with torch.enable_grad():
                output = layer.forward(own_a)  # a call of `forward` does not run the hooks
            found.append(torch.autograd.grad(output, parameter, own_g.to(output.dtype))[0].flatten())
        return torch.stack(found).float()
    finally:
        parameter.requires_grad_(required)


def is_known(layer: nn.Module) -> bool:
    """Return whether the functions of this file are right for the layer with its settings."""
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return False
    return type(layer) in LAYERS


def has_matrix(layer: nn.Module) -> bool:
    """Return whether the gradient of a known layer's weight is Σ_positions g aᵀ, as for a linear layer."""
    return is_known(layer) and not (isinstance(layer, nn.Conv2d) and layer.groups > 1)


def owners(network: nn.Module, names: set[str]) -> dict[str, nn.Module]:
    """Return the layers that hold the named parameters, by the layer's name."""
    return {name.rpartition(".")[0]: network.get_submodule(name.rpartition(".")[0]) for name in names}


def of_blocks(network: nn.Module, names: set[str]) -> set[str]:
    """Return the named parameters that belong to a block of layers, and not to a layer."""
    layers = owners(network, names).items()
    blocks = {path for path, layer in layers if not is_known(layer) and any(layer.children())}
    return {name for name in names if name.rpartition(".")[0] in blocks}
