"""The classes of images, for networks that take a class label: y int64 [B].

The class of an image is its column `class` or `label`: a whole number, or the name of a class that the model knows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dtrak.errors import UsageError
from dtrak.images.images import Images
from dtrak.models.conditions import Condition
from dtrak.noise import stable_hash

COLUMNS = ("class", "label", "prompt")  # pictures that were drawn of a class have it as their prompt


@dataclass(frozen=True, eq=False)
class Classes:
    """The conditioner of models that take a class label."""

    argument: str  # the name of the network's argument, such as class_labels
    count: int  # labels are from 0 to count − 1
    names: Mapping[str, int] = field(default_factory=dict)  # the labels of classes with names
    null: int | None = None  # the label that stands for no class, if the network was trained with one
    source: str = "the model"

    @property
    def fingerprint(self) -> str:
        return f"{stable_hash(repr((self.argument, self.count, sorted(self.names.items()), self.null))):016x}"

    def check(self, images: Images) -> None:
        """Refuse images without classes, or with one that the model does not know."""
        self.encode(sorted(set(self.texts(images))), images.source)

    def texts(self, images: Images) -> list[str]:
        column = next((images.columns[name] for name in COLUMNS if name in images.columns), None)
        if column is None:
            raise UsageError(
                f"{self.source} takes a class for each image, but {images.source} has no column "
                f"{' or '.join(map(repr, COLUMNS))}: give class folders, or `labels` in an .npz file"
            )
        return [str(value) for value in column.tolist()]

    def encode(self, texts: Sequence[str], images: str = "an image") -> Condition:
        return {self.argument: torch.tensor([self._label(text, images) for text in texts], dtype=torch.long)}

    def without(self) -> Condition:
        if self.null is None:
            raise UsageError(f"guidance: {self.source} was not trained without classes, so there is nothing to compare")
        return {self.argument: torch.tensor([self.null])}

    def _label(self, text: str, images: str) -> int:
        if text in self.names:
            return self.names[text]
        label = int(text) if text.isdecimal() else -1
        if not 0 <= label < self.count:
            known = f", or {', '.join(list(self.names)[:3])}, …" if self.names else ""
            raise UsageError(f"{images} has the class {text!r}, but {self.source} knows 0 to {self.count - 1}{known}")
        return label

    def to(self, device: str | torch.device) -> None:
        """Do nothing: there are no encoders."""

    def release(self) -> None:
        """Do nothing: there are no encoders."""
