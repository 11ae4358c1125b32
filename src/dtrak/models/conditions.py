"""A condition: what a network takes beside x_t and t, such as the embedding of a prompt."""

from collections.abc import Mapping

import torch
from torch import Tensor

Condition = Mapping[str, Tensor]  # by the names that the network has for its arguments, each [B, …]


def repeated(condition: Condition, times: int) -> Condition:
    """The condition of `times` copies of each image, side by side."""
    return {name: value.repeat_interleave(times, 0) for name, value in condition.items()}


def moved(condition: Condition, device: torch.device) -> Condition:
    return {name: value.to(device) for name, value in condition.items()}
