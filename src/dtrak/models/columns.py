"""Conditions from the columns of images, or from a function of images, for networks of one's own.

{"y": "label"}                                       the argument `y` is the column `label`
lambda images: {"y": …, "embedding": …}              tensors [N, …] of any types
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.images.images import Images
from dtrak.models.conditions import Condition

FromImages = Callable[[Images], Condition]


class Columns:
    """The conditioner that reads conditions from images themselves.

    An image's text is a digest of its tensors; those of all images that were seen are kept.
    """

    def __init__(self, given: Mapping[str, str] | FromImages) -> None:
        if not callable(given) and not (
            isinstance(given, Mapping) and all(isinstance(one, str) for pair in given.items() for one in pair)
        ):
            raise UsageError(
                f"conditioner {given!r}: give the argument's name and the column, as in {{'y': 'label'}}, or a "
                "function of images that returns tensors by name"
            )
        self._given = given
        self._seen: dict[str, dict[str, Tensor]] = {}

    @property
    def fingerprint(self) -> str:
        """Digits of the arguments alone, as the text of an image changes with its tensors."""
        said = getattr(self._given, "__qualname__", None) or repr(sorted(self._given.items()))  # type: ignore[union-attr]
        return blake2b(said.encode(), digest_size=8).hexdigest()

    def check(self, images: Images) -> None:
        self._tensors(images)

    def texts(self, images: Images) -> list[str]:
        tensors, found = self._tensors(images), []
        for row in range(len(images)):
            own = {name: value[row] for name, value in tensors.items()}
            digest = blake2b(digest_size=16)
            for name, value in sorted(own.items()):
                digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
                digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            found.append(digest.hexdigest())
            self._seen[found[-1]] = own
        return found

    def encode(self, texts: Sequence[str]) -> Condition:
        own = []
        for text in texts:
            if text not in self._seen:
                raise UsageError(
                    f"prompt {text!r}: this model takes no prompts, but tensors from the columns of images"
                )
            own.append(self._seen[text])
        return {name: torch.stack([one[name] for one in own]) for name in own[0]}

    def without(self) -> Condition:
        raise UsageError("guidance: a model that reads its conditions from columns has none without information")

    def to(self, device: str | torch.device) -> None:
        """Do nothing: there are no encoders."""

    def release(self) -> None:
        """Do nothing: there are no encoders."""

    def _tensors(self, images: Images) -> dict[str, Tensor]:
        """Return the tensors of all images, each [N, …], on the CPU."""
        if callable(self._given):
            made = self._given(images)
        else:
            made = {name: _column(images, column) for name, column in self._given.items()}
        if not isinstance(made, Mapping) or not all(isinstance(one, Tensor) for one in made.values()):
            raise UsageError(f"conditioner: the function must return tensors by name, not {type(made).__name__}")
        for name, value in made.items():
            if value.dim() == 0 or len(value) != len(images):
                shape = list(value.shape)
                raise UsageError(
                    f"conditioner: {name} is {shape}, but there are {len(images)} images in {images.source}"
                )
        return {name: value.detach().cpu() for name, value in made.items()}


def _column(images: Images, name: str) -> Tensor:
    """Return a column as a tensor: whole numbers as int64, others as float32."""
    if name not in images.columns:
        known = ", ".join(images.columns) or "none"
        raise UsageError(f"conditioner: {images.source} has no column {name!r}; its columns are {known}")
    values: Any = images.columns[name]
    if values.dtype.kind == "U" and all(one.isdecimal() for one in values.tolist()):
        values = values.astype(np.int64)
    if values.dtype.kind not in "iufb":
        raise UsageError(
            f"conditioner: the column {name!r} of {images.source} holds text such as {str(values[0])!r}, not numbers; "
            "give a function of images that turns it into a tensor"
        )
    return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))
