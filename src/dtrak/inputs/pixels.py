"""Take the images as they are: their pixels in [−1, 1], or their latents if the model works on latents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dtrak.contracts import Counts, NoisedQueries, Vectors
from dtrak.gradients.copies import timesteps_of
from dtrak.inputs.task import Source, Task

if TYPE_CHECKING:
    from dtrak.features.inputs import ModelInputs

IMAGES_AT_ONCE = 64  # how many images are read at a time


@dataclass(frozen=True)
class PixelSource(Source):
    """Each image is a vector: the numbers that the model takes as its input."""

    needs: str = "only the images"
    cost: str = "next to nothing"

    def inputs(self, task: Task) -> Iterator[Vectors]:
        yield task.once("pixels", lambda: self._vectors(task))

    def _vectors(self, task: Task) -> Vectors:
        queries = task.query_inputs
        return Vectors(InputRows(task.train_inputs), queries.tensor(range(len(queries))).flatten(1)[:, None].numpy())


@dataclass(frozen=True, eq=False)
class InputRows:
    """The images as `Rows` of the numbers that the model takes, read in blocks."""

    images: "ModelInputs"

    @property
    def shape(self) -> tuple[int, int]:
        return 1, int(np.prod(self.images.shape))

    def __len__(self) -> int:
        return len(self.images)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        wanted = range(len(self)) if wanted is None else wanted
        for start in range(0, len(wanted), IMAGES_AT_ONCE):
            rows = wanted[start : start + IMAGES_AT_ONCE]
            yield rows, self.images.tensor(rows).flatten(1)[:, None]

    def at(self, places: Sequence[int]) -> Tensor:
        return self.images.tensor(places).flatten(1)[:, None]


@dataclass(frozen=True)
class NoisedPixelSource(Source):
    """Each query has noised copies, as in training; training images are as they are."""

    needs: str = "only the images"
    cost: str = "K comparisons of all patches of two images"

    def inputs(self, task: Task) -> Iterator[NoisedQueries]:
        from dtrak.gradients.copies import Copies

        settings, model, queries = task.settings, task.model, task.query_inputs
        steps = timesteps_of(model, settings.timesteps, "visible")
        copies = Copies(steps, settings.draws, settings.noise, settings.seed, queries.fingerprint)
        images = [None] if copies.noise == "shared" else queries.ids.tolist()
        noises = torch.stack([copies.noises(model.shape, one) for one in images], 1)
        signal, sigma = model.process.signal_and_noise(torch.tensor([timestep for timestep, _ in copies.pairs()]))
        of_copies = (len(noises), 1, 1, 1, 1)
        clean = queries.tensor(range(len(queries)))
        noised = signal.view(of_copies) * clean + sigma.view(of_copies) * noises
        yield NoisedQueries(InputRows(task.train_inputs), noised, signal.flatten(), sigma.flatten())


@dataclass(frozen=True)
class NoSource(Source):
    """The input of random scores: only the numbers of images, and a seed."""

    def inputs(self, task: Task) -> Iterator[Counts]:
        yield Counts(len(task.queries), len(task.train), task.settings.seed)
