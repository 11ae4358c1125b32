"""How much memory there is, and how much a noised copy of an image takes on its way through a model."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtrak.models.conditions import Condition, moved
from dtrak.models.diffusion import DiffusionModel

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
MEMORY_SHARE = 1 / 4  # for what a pass keeps; the rest is for weights, data and others


def total_memory(device: torch.device) -> int:
    """Bytes of the device; for a CPU those of the machine, or as many of them as its container may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return machine if limit == "max" else min(machine, int(limit))


def fitting(bytes_each: int, memory: int) -> int:
    """How many copies of images share a pass at most, if each takes so many bytes."""
    return max(1, int(MEMORY_SHARE * memory / bytes_each))


def training_bytes(model: DiffusionModel, condition: Condition) -> int:
    """What autograd keeps of one image in training, dropout's masks included; `condition` as for `activation_bytes`."""
    image = one_image(model, condition)
    model.network.train()
    kept = kept_bytes(model.network, lambda: model.predict(*image))
    model.network.eval()
    return kept


def one_image(model: DiffusionModel, condition: Condition) -> tuple[Tensor, Tensor, Condition]:
    """x_t, t and what the model is told, on its device."""
    image = torch.zeros(1, *model.shape, device=model.device)
    return image, torch.zeros(1, dtype=torch.long, device=model.device), moved(condition, model.device)


def kept_bytes(network: nn.Module, forward: Callable[[], Tensor]) -> int:
    """What autograd keeps of a forward pass for the backward one, weights aside; on the meta device as well."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()  # its place in memory is 0 on the meta device
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        answer = forward()
    weights = {value.untyped_storage()._cdata for value in network.parameters()}
    return sum(size for place, size in kept.items() if place not in weights) + answer.nbytes


class Peak(TorchDispatchMode):
    """Within it, the most bytes that tensors made there have taken at once; on the meta device as well."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: int = 0
        self._alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        given = _storages((args, kwargs))  # a view of a weight takes nothing
        self._alive |= {place: size for place, size in _storages(made).items() if place not in given}
        self._alive = {place: size for place, size in self._alive.items() if not place.expired()}
        self.bytes = max(self.bytes, sum(self._alive.values()))
        return made


def _storages(tree: Any) -> dict[StorageWeakRef, int]:
    """The places of the tensors somewhere in nested arguments or results, and their bytes."""
    storages = [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {StorageWeakRef(storage): storage.nbytes() for storage in storages}
