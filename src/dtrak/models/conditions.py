"""A condition is what a network takes beside x_t and t: class labels, embeddings of a prompt, pooled embeddings, masks.

A condition has several named tensors, each with its own type: {"class_labels": int64 [B]}. A conditioner makes it from
the columns of images. Every image has a text that stands for all that the network takes for it, such as its prompt or
the name of its class; images with the same text have the same condition.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dtrak.images.images import Images

Condition = Mapping[str, Tensor]  # by the names of the network's arguments, each [B, …]


class Conditioner(Protocol):
    """Make the conditions of images."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that changes the conditions."""

    def check(self, images: Images) -> None:
        """Refuse images that lack what the network takes."""

    def texts(self, images: Images) -> list[str]:
        """Return the text of each image, [N]."""

    def encode(self, texts: Sequence[str]) -> Condition:
        """Return the condition of B texts, each [B, …], without gradients."""

    def without(self) -> Condition:
        """Return the condition for no information, each [1, …], which guidance compares with; refuse if none exists."""

    def to(self, device: str | torch.device) -> None:
        """Move the encoders to a device."""

    def release(self) -> None:
        """Free the memory of large encoders; they are loaded again if they are needed."""


def repeated(condition: Condition, times: int) -> Condition:
    """Return the condition of `times` copies of each image; the copies of an image are adjacent."""
    return {name: value.repeat_interleave(times, 0) for name, value in condition.items()}


def moved(condition: Condition, device: torch.device) -> Condition:
    """Return the condition on a device."""
    return {name: value.to(device) for name, value in condition.items()}


def selected(condition: Condition, rows: slice | Tensor | list[int]) -> Condition:
    """Return the condition of some rows."""
    return {name: value[rows] for name, value in condition.items()}
