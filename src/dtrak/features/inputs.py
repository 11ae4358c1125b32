"""Images as a model takes them: x [C, H, W] in the space that it denoises, and the condition that goes with each.

For most models that is pixels in [−1, 1] and nothing else. For latent ones it is what an autoencoder made of the
pixels, for text-conditional ones also what a text encoder made of the prompts, each computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.features.encodings import embeddings_of, latents_of
from dtrak.images.images import Images
from dtrak.models.conditions import Condition
from dtrak.models.diffusion import DiffusionModel
from dtrak.noise import stable_hash

Rows = Sequence[int] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class ModelInputs:
    images: Images
    latents: tuple[Tensor, ...] = ()  # μ and σ [N, 2, C, H, W]; of the mirrored images as well, if wanted; else pixels
    prompts: Sequence[str] = ()  # [N]
    conditions: Condition = field(default_factory=dict)  # [P, …], of each different prompt
    which: NDArray[np.int64] | None = None  # [N], of these

    def __len__(self) -> int:
        return len(self.images)

    @property
    def ids(self) -> NDArray[Any]:
        return self.images.ids

    @property
    def source(self) -> str:
        return self.images.source

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of x."""
        if not self.latents:
            return self.images.shape
        channels, height, width = self.latents[0].shape[2:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over the images and their prompts."""
        if not self.prompts:
            return self.images.fingerprint
        return f"{stable_hash(repr((self.images.fingerprint, list(self.prompts)))):016x}"

    def tensor(self, rows: Rows) -> Tensor:
        """x [B, C, H, W]: pixels in [−1, 1], or the mode of the latents."""
        return self.latents[0][list(rows), 0] if self.latents else self.images.tensor(rows)

    def drawn(self, rows: Rows, random: np.random.Generator, flip: bool) -> Tensor:
        """x for training: half of the images mirrored if `flip`, latents drawn from their distribution."""
        chosen = list(rows)
        mirrored = torch.from_numpy(random.random(len(chosen)) < 0.5) if flip else None
        if not self.latents:
            clean = self.images.tensor(chosen)
            if mirrored is not None:
                clean[mirrored] = clean[mirrored].flip(-1)
            return clean
        moments = self.latents[0][chosen]
        if mirrored is not None:
            moments = torch.where(mirrored.view(-1, 1, 1, 1, 1), self.latents[1][chosen], moments)
        mean, deviation = moments.unbind(1)
        return mean + deviation * torch.from_numpy(random.standard_normal(mean.shape, dtype=np.float32))

    def condition(self, rows: Rows) -> Condition:
        """The condition of these images, each [B, …]; nothing for unconditional models."""
        if self.which is None:
            return {}
        chosen = torch.from_numpy(self.which[list(rows)])
        return {name: value[chosen] for name, value in self.conditions.items()}

    def select(self, rows: Rows) -> "ModelInputs":
        chosen = list(rows)
        return replace(
            self,
            images=self.images.select(chosen),
            latents=tuple(value[chosen] for value in self.latents),
            prompts=[self.prompts[row] for row in chosen] if self.prompts else (),
            which=None if self.which is None else self.which[chosen],
        )

    def in_memory(self) -> "ModelInputs":
        """The same, to be sent to where the images' files are not."""
        return self if self.latents else replace(self, images=self.images.in_memory())


def model_inputs(
    model: DiffusionModel, images: Images | ModelInputs, folder: Path | None = None, mirrored: bool = False
) -> ModelInputs:
    """Images as a model takes them; with a `folder`, what its encoders make of them is kept for the next time.

    `mirrored` encodes the mirrored images as well, for training. Inputs that were made before are given back.
    """
    if isinstance(images, ModelInputs):
        return images
    model.check_fits(images.shape, images.source)
    latents: tuple[Tensor, ...] = ()
    if model.autoencoder is not None:
        sides = (False, True) if mirrored else (False,)
        latents = tuple(latents_of(model.autoencoder, images, side, folder) for side in sides)
    if model.prompts is None:
        return ModelInputs(images, latents)
    texts = model.prompts.of(images)
    place_of = {text: place for place, text in enumerate(sorted(set(texts)))}
    which = np.array([place_of[text] for text in texts])
    embedded = embeddings_of(model.prompts.encoder, list(place_of), folder)
    return ModelInputs(images, latents, texts, embedded, which)
