"""Take the images as they are: their pixels in [−1, 1], or their latents if the model works on latents."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from dtrak.inputs.arrays import Counts, Vectors
from dtrak.inputs.task import Source, Task

if TYPE_CHECKING:
    from dtrak.features.inputs import ModelInputs

IMAGES_AT_ONCE = 64  # how many images are read at a time


@dataclass(frozen=True)
class Pixels(Source):
    """Each image is a vector: the numbers that the model takes as its input."""

    needs: str = "only the images"
    cost: str = "next to nothing"

    def inputs(self, task: Task) -> Iterator[Vectors]:
        yield task.once("pixels", lambda: self._vectors(task))

    def _vectors(self, task: Task) -> Vectors:
        queries = task.query_inputs
        return Vectors(InputRows(task.train_inputs), queries.tensor(range(len(queries))).flatten(1).numpy())


@dataclass(frozen=True, eq=False)
class InputRows:
    """The images as `Rows` of the numbers that the model takes, read in blocks."""

    images: "ModelInputs"

    @property
    def dim(self) -> int:
        return int(np.prod(self.images.shape))

    def __len__(self) -> int:
        return len(self.images)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        wanted = range(len(self)) if wanted is None else wanted
        for start in range(0, len(wanted), IMAGES_AT_ONCE):
            rows = wanted[start : start + IMAGES_AT_ONCE]
            yield rows, self.images.tensor(rows).flatten(1)


@dataclass(frozen=True)
class Nothing(Source):
    """The input of random scores: only the numbers of images, and a seed."""

    def inputs(self, task: Task) -> Iterator[Counts]:
        yield Counts(len(task.queries), len(task.train), task.settings.seed)
