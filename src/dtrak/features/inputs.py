"""Images as the inputs of a model: x [C, H, W] in the space that the model denoises, and a condition for each image.

For most models, x is pixels in [−1, 1], and there is no condition. For latent models, an autoencoder encodes the
pixels. For conditional models, a conditioner makes the conditions from the images' columns. Each is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.features.encodings import conditions_of, latents_of
from dtrak.images.images import Images
from dtrak.models.conditions import Condition, selected
from dtrak.models.diffusion import DiffusionModel
from dtrak.noise import stable_hash

Rows = Sequence[int] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Images, with the latents and the conditions that a model takes instead of pixels and columns."""

    images: Images
    latents: tuple[Tensor, ...] = ()  # μ and σ [N, 2, C, H, W], of mirrored images second; none for pixels
    texts: Sequence[str] = ()  # [N], such as the prompts or the classes of the images
    conditions: Condition = field(default_factory=dict)  # [P, …], one for each different text
    which: NDArray[np.int64] | None = None  # [N], the row of each image in `conditions`

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
        """Return (C, H, W) of x."""
        if not self.latents:
            return self.images.shape
        channels, height, width = self.latents[0].shape[2:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that depend on the images and their conditions."""
        if not self.texts:
            return self.images.fingerprint
        return f"{stable_hash(repr((self.images.fingerprint, list(self.texts)))):016x}"

    @property
    def hashes(self) -> NDArray[np.void]:
        """Return 16 bytes for each image, [N], that change with its content and its text."""
        texts = self.texts or [""] * len(self)
        how, pairs = self.images.transformation, zip(self.images.digests, texts, strict=True)
        said = (f"{digest.tobytes().hex()} {how} {text}" for digest, text in pairs)
        return np.frombuffer(b"".join(blake2b(one.encode(), digest_size=16).digest() for one in said), dtype="V16")

    def tensor(self, rows: Rows) -> Tensor:
        """Return x [B, C, H, W]: pixels in [−1, 1], or the mode of the latents."""
        return self.latents[0][list(rows), 0] if self.latents else self.images.tensor(rows)

    def drawn(self, rows: Rows, random: np.random.Generator, flip: bool) -> Tensor:
        """Draw x for training: mirror half of the images if `flip`, and draw latents from their distribution."""
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
        """Return the condition of these images, tensors [B, …] by name; it is empty for unconditional models."""
        if self.which is None:
            return {}
        chosen = torch.from_numpy(self.which[list(rows)])
        return selected(self.conditions, chosen)

    def select(self, rows: Rows) -> "ModelInputs":
        """Return the inputs of some images."""
        chosen = list(rows)
        return replace(
            self,
            images=self.images.select(chosen),
            latents=tuple(value[chosen] for value in self.latents),
            texts=[self.texts[row] for row in chosen] if self.texts else (),
            which=None if self.which is None else self.which[chosen],
        )

    def by_name(self) -> "ModelInputs | None":
        """Return the inputs as another process gets them, which reads the images itself; None if it cannot."""
        if self.latents:
            return self
        named = self.images.by_name()
        return None if named is None else replace(self, images=named)

    def alone(self) -> "ModelInputs":
        """Return the inputs without what belongs to other images, and without columns and texts."""
        images = replace(self.images, columns={})
        if self.which is None:
            return replace(self, images=images, texts=())
        used, which = np.unique(self.which, return_inverse=True)
        conditions = selected(self.conditions, torch.from_numpy(used))
        return replace(self, images=images, texts=(), conditions=conditions, which=which)

    def in_memory(self) -> "ModelInputs":
        """Return the same inputs with the images in memory, for workers that cannot read the images' files."""
        return self if self.latents else replace(self, images=self.images.in_memory())


def model_inputs(
    model: DiffusionModel, images: Images | ModelInputs, folder: Path | None = None, mirrored: bool = False
) -> ModelInputs:
    """Turn images into the inputs of a model. With a `folder`, latents and embeddings are kept there and read again.

    `mirrored` encodes the mirrored images as well, for training. Inputs are returned as they are.
    """
    if isinstance(images, ModelInputs):
        return images
    model.check_fits(images.shape, images.source)
    latents: tuple[Tensor, ...] = ()
    if model.autoencoder is not None:
        sides = (False, True) if mirrored else (False,)
        latents = tuple(latents_of(model.autoencoder, images, side, folder) for side in sides)
    if model.conditions is None:
        return ModelInputs(images, latents)
    texts = model.conditions.texts(images)
    place_of = {text: place for place, text in enumerate(sorted(set(texts)))}
    which = np.array([place_of[text] for text in texts])
    conditions = conditions_of(model.conditions, list(place_of), folder)
    model.conditions.release()
    return ModelInputs(images, latents, texts, conditions, which)
