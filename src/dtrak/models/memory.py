"""How much memory a pass through a model takes, measured without making the model: on torch's meta device.

Tensors on the meta device have shapes but no memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtrak.contracts import Shape
from dtrak.errors import UsageError
from dtrak.models.conditions import Classes, Condition, moved
from dtrak.models.diffusion import DiffusionModel

MEMORY_SHARE = 1 / 4  # the share that a pass may keep; the rest is for weights, data and other programs


def copies_that_fit(bytes_each: int, memory: int) -> int:
    """Return how many noised copies of images may go through a pass at once, if each takes `bytes_each` bytes."""
    return max(1, int(MEMORY_SHARE * memory / bytes_each))


def recomputes(model: DiffusionModel, bytes_each: int, memory: int) -> bool:
    """Let a network compute activations again in the backward pass, if those of one image take too much memory.

    Return whether it does so from now on. It must be a network of diffusers that can.
    """
    network: Any = model.network
    if bytes_each <= MEMORY_SHARE * memory or not getattr(network, "_supports_gradient_checkpointing", False):
        return False
    network.enable_gradient_checkpointing()
    return True


def training_bytes(model: DiffusionModel, condition: Condition) -> int:
    """Return the bytes that autograd keeps of one image in training, with the masks of dropout.

    `condition` is that of one image, each [1, …].
    """
    image = one_image(model, condition)
    model.network.train()
    kept = kept_bytes(model.network, lambda: model.predict(*image))
    model.network.eval()
    return kept


def one_image(model: DiffusionModel, condition: Condition) -> tuple[Tensor, Tensor, Condition]:
    """Return x_t, t and the condition of one image, on the model's device."""
    image = torch.zeros(1, *model.shape, device=model.device)
    return image, torch.zeros(1, dtype=torch.long, device=model.device), moved(condition, model.device)


def kept_bytes(network: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that autograd keeps for the backward pass, without the weights; also on the meta device."""
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()  # not by its address, which is 0 on the meta device
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        output = forward()
    weights = {value.untyped_storage()._cdata for value in network.parameters()}
    return sum(size for storage, size in kept.items() if storage not in weights) + output.nbytes


class PeakMemory(TorchDispatchMode):
    """As a context, count the most bytes that the tensors made in it take at once; also on the meta device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.bytes: int = 0
        self._alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        given = _storages((args, kwargs))  # a view of an argument takes no new memory
        self._alive |= {storage: size for storage, size in _storages(made).items() if storage not in given}
        self._alive = {storage: size for storage, size in self._alive.items() if not storage.expired()}
        self.bytes = max(self.bytes, sum(self._alive.values()))
        return made


def _storages(tree: Any) -> dict[StorageWeakRef, int]:
    """Return the storages of all tensors in nested arguments or results, with their bytes."""
    storages = [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {StorageWeakRef(storage): storage.nbytes() for storage in storages}


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


def lay_out_network(new: Callable[[], DiffusionModel], shape: Shape, source: str) -> Layout:
    """Return the sizes of a model without encoders that maps x_t of `shape` (C, H, W) and t to a prediction."""
    with torch.device("meta"), FusedAttention():
        built, timestep = new(), torch.zeros(1, dtype=torch.long)
        first_class = {one.argument: timestep} if isinstance(one := built.conditioner, Classes) else {}
        try:
            forward = partial(built.predict, torch.zeros(1, *shape), timestep, first_class)
            return Layout(*_sizes(built.network, forward), built.network)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"{source}: model.unet: no image can go through it: {error}") from error


def lay_out_pipeline(
    new: Callable[[], tuple[DiffusionModel, Mapping[str, Any]]], condition: Callable[[nn.Module], Condition]
) -> Layout:
    """Return the sizes of a latent model; `new` makes it and the parts of its pipeline on the current device.

    `condition` returns that of one image for a network.
    """
    with torch.device("meta"), FusedAttention():
        model, parts = new()
        assert model.autoencoder is not None
        vae, latents, told = model.autoencoder.network, torch.zeros(1, *model.shape), condition(model.network)
        forward = partial(model.predict, latents, torch.zeros(1, dtype=torch.long), told)
        trained, frozen, activations, working = _sizes(model.network, forward)
        frozen += sum(_count(part) for name, part in parts.items() if name.startswith("text_encoder"))
        return Layout(
            trained,
            frozen + _count(vae),
            activations,
            working,
            model.network,
            latents=latents.numel(),
            prompt=sum(value.numel() for value in told.values()),
            encoding=_peak(lambda: vae.encode(torch.zeros(1, *model.image_shape))),
            decoding=_peak(lambda: vae.decode(latents)),
            frozen_bytes=4 * _count(vae) + model.precision.itemsize * frozen,
        )


def _sizes(network: nn.Module, forward: Callable[[], Tensor]) -> tuple[int, int, int, int]:
    """Return the first four sizes of a layout; `forward` passes one image through the network."""
    trained = sum(value.numel() for value in network.parameters() if value.requires_grad)
    network.eval()
    working = _peak(forward)
    network.train()  # so that the masks of dropout are counted
    return trained, _count(network) - trained, kept_bytes(network, forward), working


def _peak(forward: Callable[[], object]) -> int:
    """Return the most bytes that a forward pass takes at once."""
    peak = PeakMemory()
    with torch.no_grad(), peak:
        forward()
    return peak.bytes


def _count(network: nn.Module) -> int:
    return sum(value.numel() for value in network.parameters())
