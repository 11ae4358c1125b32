"""What a network takes beside x_t and t, and how it is called.

A condition has several named tensors, each with its own type: {"class_labels": int64 [B]}. A conditioner makes it from
the columns of images: `Classes` and `Columns` here, `Prompts` in `prompts.py`. Every image has a text that stands for
all that the network takes for it, such as its prompt or the name of its class; images with the same text have the same
condition.

    adapter(network, x_t [B, C, H, W], time [B], condition) → [B, C, H, W], or [B, 2C, H, W] with a learned variance

An adapter calls a network. Networks differ in the names and order of their arguments, in the unit of time, and in how
they arrange x_t. The usual adapter calls `network(x_t, time, **condition)`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dtrak.errors import UsageError
from dtrak.fingerprints import Facts, of_object, of_tensors
from dtrak.images.images import Images

Condition = Mapping[str, Tensor]  # by the names of the network's arguments, each [B, …]
Adapter = Callable[[nn.Module, Tensor, Tensor, Condition], Any]
FromImages = Callable[[Images], Condition]


def plain(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Any:
    """Call a network that takes x_t and the time, and then its condition by name."""
    return network(noisy, time, **condition)


def called(adapter: Adapter, network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Tensor:
    """Call the adapter and return the prediction [B, C, H, W]: a tensor, `sample` of an output, or first of a tuple.

    Of twice as many channels as x_t has, the second half are a learned variance, which no objective uses. If the
    network does not take what it is given, the error says what that was.
    """
    try:
        output = adapter(network, noisy, time, condition)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        if adapter is not plain or isinstance(error, torch.OutOfMemoryError) or noisy.is_meta:
            raise
        told = "".join(f", {name} {list(value.shape)}" for name, value in condition.items())
        raise UsageError(
            f"the network {type(network).__name__} cannot be called with x_t {list(noisy.shape)}, time "
            f"{list(time.shape)}{told}: {str(error).splitlines()[0]} (an adapter can call it in another way)"
        ) from error
    found = getattr(output, "sample", output[0] if isinstance(output, tuple) else output)  # outputs are of many classes
    if not isinstance(found, Tensor):
        raise UsageError(f"the network returns {type(output).__name__}: give an adapter that returns a tensor")
    if found.dim() == noisy.dim() and found.shape[1] == 2 * noisy.shape[1]:
        found = found[:, : noisy.shape[1]]
    if found.shape != noisy.shape:
        raise UsageError(
            f"the network returns {list(found.shape)} for x_t of {list(noisy.shape)}: give an adapter that returns "
            "the prediction in the shape of x_t"
        )
    return found


def repeated(condition: Condition, times: int) -> Condition:
    """Return the condition of `times` copies of each image; the copies of an image are adjacent."""
    return {name: value.repeat_interleave(times, 0) for name, value in condition.items()}


def moved(condition: Condition, device: torch.device) -> Condition:
    return {name: value.to(device) for name, value in condition.items()}


def selected(condition: Condition, rows: slice | Tensor | list[int]) -> Condition:
    return {name: value[rows] for name, value in condition.items()}


class Conditioner(Protocol):
    """Make the conditions of images."""

    @property
    def facts(self) -> Facts:
        """Everything that turns an image's columns into its condition, read now."""

    @property
    def reads(self) -> list[str] | None:
        """The columns that it reads if images have them; None if it may read anything about the images."""

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


class WithoutEncoders:
    """What conditioners that compute nothing have in common."""

    def to(self, device: str | torch.device) -> None:
        return

    def release(self) -> None:
        return


@dataclass(frozen=True, eq=False)
class Classes(WithoutEncoders):
    """The conditioner of models that take a class label: y int64 [B].

    The class of an image is its column `class` or `label`: a whole number, or the name of a class that the model knows.
    Pictures that were drawn of a class have it as their `prompt`.
    """

    argument: str  # the name of the network's argument, such as class_labels
    count: int  # labels are from 0 to count − 1
    names: Mapping[str, int] = field(default_factory=dict)  # the labels of classes with names
    null: int | None = None  # the label that stands for no class, if the network was trained with one
    source: str = "the model"

    @property
    def facts(self) -> Facts:
        return {"argument": self.argument, "count": self.count, "names": dict(self.names), "null": self.null}

    @property
    def reads(self) -> list[str]:
        return ["class", "label", "prompt"]

    def check(self, images: Images) -> None:
        self.encode(sorted(set(self.texts(images))), images.source)

    def texts(self, images: Images) -> list[str]:
        column = next((images.columns[name] for name in self.reads if name in images.columns), None)
        if column is None:
            raise UsageError(
                f"{self.source} takes a class for each image, but {images.source} has no column 'class' or 'label' or "
                "'prompt': give class folders, or `labels` in an .npz file"
            )
        return [str(value) for value in column.tolist()]

    def encode(self, texts: Sequence[str], images: str = "an image") -> Condition:
        labels = [self.names.get(text, int(text) if text.isdecimal() else -1) for text in texts]
        for text, label in zip(texts, labels, strict=True):
            if not 0 <= label < self.count:
                known = f", or {', '.join(list(self.names)[:3])}, …" if self.names else ""
                said = f"but {self.source} knows 0 to {self.count - 1}{known}"
                raise UsageError(f"{images} has the class {text!r}, {said}")
        return {self.argument: torch.tensor(labels, dtype=torch.long)}

    def without(self) -> Condition:
        if self.null is None:
            raise UsageError(f"guidance: {self.source} was not trained without classes, so there is nothing to compare")
        return {self.argument: torch.tensor([self.null])}


class Columns(WithoutEncoders):
    """The conditioner of networks of one's own, which reads tensors from images themselves.

        {"y": "label"}                                       the argument `y` is the column `label`
        lambda images: {"y": …, "embedding": …}              tensors [N, …] of any types

    An image's text is a hash of its tensors; those of all images that were seen are kept.
    """

    def __init__(self, given: Mapping[str, str] | FromImages) -> None:
        if not callable(given) and not all(isinstance(one, str) for pair in given.items() for one in pair):
            raise UsageError(
                f"conditioner {given!r}: give the argument's name and the column, as in {{'y': 'label'}}, or a "
                "function of images that returns tensors by name"
            )
        self._given = given
        self._seen: dict[str, dict[str, Tensor]] = {}

    @property
    def facts(self) -> Facts:
        return {"function": of_object(self._given)} if callable(self._given) else {"columns": dict(self._given)}

    @property
    def reads(self) -> list[str] | None:
        return None if callable(self._given) else sorted(set(self._given.values()))

    def check(self, images: Images) -> None:
        self._tensors(images)

    def texts(self, images: Images) -> list[str]:
        tensors, found = self._tensors(images), []
        for row in range(len(images)):
            own = {name: value[row] for name, value in tensors.items()}
            found.append(of_tensors(own))
            self._seen[found[-1]] = own
        return found

    def encode(self, texts: Sequence[str]) -> Condition:
        if unknown := next((text for text in texts if text not in self._seen), None):
            raise UsageError(f"prompt {unknown!r}: this model takes no prompts, but tensors from the columns of images")
        own = [self._seen[text] for text in texts]
        return {name: torch.stack([one[name] for one in own]) for name in own[0]}

    def without(self) -> Condition:
        raise UsageError("guidance: a model that reads its conditions from columns has none without information")

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
                said = f"{name} is {list(value.shape)}, but there are {len(images)} images in {images.source}"
                raise UsageError(f"conditioner: {said}")
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
