"""Find how much memory a noised copy of an image takes in a pass through a model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtrak.models.conditions import Condition, moved
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
        super().__init__()  # type: ignore[no-untyped-call]
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
