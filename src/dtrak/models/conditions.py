"""A condition is what a network takes beside x_t and t, such as the embedding of a prompt."""

from collections.abc import Mapping

import torch
from torch import Tensor

Condition = Mapping[str, Tensor]  # by the names of the network's arguments, each [B, …]


def repeated(condition: Condition, times: int) -> Condition:
    """Return the condition of `times` copies of each image; the copies of an image are adjacent."""
    return {name: value.repeat_interleave(times, 0) for name, value in condition.items()}


def moved(condition: Condition, device: torch.device) -> Condition:
    """Return the condition on a device."""
    return {name: value.to(device) for name, value in condition.items()}
