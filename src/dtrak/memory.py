"""How much memory there is, and how much a noised copy of an image takes on its way through a model."""

import os
from pathlib import Path

import torch
from torch import Tensor

from dtrak.backward import gradient_of_the_batch
from dtrak.models import DiffusionModel
from dtrak.models.prompts import Condition
from dtrak.models.views import moved

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def total_memory(device: torch.device) -> int:
    """Bytes of the device; for a CPU those of the machine, or as many of them as its container may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return machine if limit == "max" else min(machine, int(limit))


def activation_bytes(model: DiffusionModel, condition: Condition | None = None) -> int:
    """What autograd keeps of one copy between the forward and the backward pass, for what is trained of the model.

    `condition` is what the model is told about one image, each [1, …].
    """
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    image = torch.zeros(1, *model.shape, device=model.device)
    timestep = torch.zeros(1, dtype=torch.long, device=model.device)
    with (
        gradient_of_the_batch(model.network, set(model.parameters()), lambda name, gradient: None),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        answer = model.predict_target(image, timestep, moved(condition or {}, model.device))
    weights = {value.untyped_storage().data_ptr() for value in model.network.parameters()}
    return sum(size for place, size in kept.items() if place not in weights) + answer.nbytes
