"""The images as they are: pixels in [−1, 1], or the latents of models that work on those."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from dtrak.inputs.arrays import Counts, Vectors
from dtrak.inputs.task import Source, Task

if TYPE_CHECKING:
    from dtrak.features.inputs import ModelInputs

IMAGES_AT_ONCE = 64  # whose pixels are read


@dataclass(frozen=True)
class Pixels(Source):
    """What the model takes of each image, as one vector."""

    needs: str = "only the images"
    cost: str = "next to nothing"

    def inputs(self, task: Task) -> Iterator[Vectors]:
        yield task.once("pixels", lambda: self._vectors(task))

    def _vectors(self, task: Task) -> Vectors:
        queries = task.query_inputs
        return Vectors(InputRows(task.train_inputs), queries.tensor(range(len(queries))).flatten(1).numpy())


@dataclass(frozen=True, eq=False)
class InputRows:
    """Images as `Rows` of what a model takes of them, read in blocks."""

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
    """Only how many images there are: for scores that know nothing."""

    def inputs(self, task: Task) -> Iterator[Counts]:
        yield Counts(len(task.queries), len(task.train), task.settings.seed)
