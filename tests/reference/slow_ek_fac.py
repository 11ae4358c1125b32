"""EK-FAC with the whole Gauss–Newton matrix, which a Kronecker product and a diagonal give for each layer."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from xxhash import xxh3_128

from reference.slow_damping import absolute
from reference.slow_gradients import Array, Asked, chosen, gaussian, gradient, opened, pictures, predicted


def ek_fac(asked: Asked) -> Array:
    """∇ℓ(x)ᵀ (G + λI)⁻¹ ∇ℓ_n."""
    train, queries = (asked.means("simple", images) for images in (asked.train, asked.queries))
    matrix = gauss_newton(asked)
    spectrum = np.linalg.eigvalsh(matrix)
    damping = absolute(asked.damping, spectrum[spectrum > 0], len(train), lambda: 0.1 * spectrum.mean(), len(matrix))
    return queries @ np.linalg.solve(matrix + damping * np.eye(len(matrix)), train.T)


def probed(asked: Asked) -> Iterator[Tensor]:
    """√(2/D) v·ε_θ of every copy of every training image, with v ~ N(0, I).

    The v are the product's own: they are named by the seed, the timestep, the draw and a hash of the image's pixels.
    """
    for picture, name in zip(pictures(asked.train), hashes(asked.train), strict=True):
        for copy in asked.uniform:
            v = gaussian(tuple(picture[0].shape), asked.seed, *copy, f"probe {name}")
            yield (2 / v.numel()) ** 0.5 * (v * predicted(asked.model, picture, *copy, asked.seed)[0]).sum()


def hashes(images: Path) -> list[str]:
    """xxh3 of the type, the shape and the pixels [H, W] of each image."""
    with np.load(images) as arrays:
        pixels = arrays["images"][..., 0]
        return [xxh3_128(f"{one.dtype.str} {one.shape}".encode() + one.tobytes()).hexdigest() for one in pixels]


def gauss_newton(asked: Asked) -> Array:
    """Q diag(s) Qᵀ with Q = U ⊗ V for a layer, where U, V are the eigenvectors of Σ g gᵀ and Σ a aᵀ over all copies
    and positions, and s_j = E[(Qᵀ∇)_j²]. Q = I for all other parameters."""
    network = opened(asked.model)[0]
    named = {name: one for name, one in network.named_parameters() if re.search(asked.parameters or "", name)}
    ends = np.cumsum([0, *(one.numel() for one in named.values())])
    places = {name: np.arange(ends[i], ends[i + 1]) for i, name in enumerate(named)}
    modules = {name.rpartition(".")[0]: network.get_submodule(name.rpartition(".")[0]) for name in named}
    layers = {path: layer for path, layer in modules.items() if isinstance(layer, nn.Linear | nn.Conv2d)}
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    hooks = [one.register_forward_hook(lambda of, a, out: seen.update({of: (a[0], out)})) for one in layers.values()]
    inputs, outputs = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    for value in probed(asked):
        of_outputs = torch.autograd.grad(value, [seen[layer][1] for layer in layers.values()])
        for (path, layer), of_output in zip(layers.items(), of_outputs, strict=True):
            a, g = rows_of(layer, seen[layer][0].detach(), of_output)
            inputs[path], outputs[path] = inputs[path] + (a.T @ a).numpy(), outputs[path] + (g.T @ g).numpy()
    mask = chosen(asked.model, asked.parameters or "")
    found = np.stack([gradient(asked.model, value)[mask] for value in probed(asked)])
    for hook in hooks:
        hook.remove()
    matrix = np.diag((found**2).mean(0))
    for path in layers:
        weight, bias = places[f"{path}.weight"], places[f"{path}.bias"]
        columns = np.concatenate([weight.reshape(len(bias), -1), bias[:, None]], 1).ravel()
        q = np.kron(np.linalg.eigh(outputs[path])[1], np.linalg.eigh(inputs[path])[1])
        matrix[np.ix_(columns, columns)] = q * ((found[:, columns] @ q) ** 2).mean(0) @ q.T
    return matrix


def rows_of(layer: nn.Module, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The input (a, 1) and the gradient g of the output at every position, [positions, …]."""
    if isinstance(layer, nn.Conv2d):
        a, g = F.unfold(a, layer.kernel_size, 1, layer.padding, layer.stride).mT, g.flatten(2).mT
    return F.pad(a.reshape(-1, a.shape[-1]), (0, 1), value=1), g.reshape(-1, g.shape[-1])
