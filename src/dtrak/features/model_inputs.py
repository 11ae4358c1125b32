"""Images as the inputs of a model: x [C, H, W] in the space that the model denoises, and a condition for each image.

For most models, x is pixels in [−1, 1], and there is no condition. For latent models, an autoencoder encodes the
pixels. For conditional models, a conditioner makes the conditions from the images' columns. Each is computed once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.features.filling import kept_rows
from dtrak.fingerprints import hash_of
from dtrak.images.images import Images
from dtrak.models.autoencoder import pictures_in_a_pass
from dtrak.models.conditions import Condition, Conditioner, selected
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.prompts import TEXTS_AT_ONCE

Rows = Sequence[int] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Images, with the latents and the conditions that a model takes instead of pixels and columns."""

    images: Images
    latents: tuple[Tensor, ...] = ()  # μ and σ [N, 2, C, H, W], of mirrored images second; none for pixels
    texts: Sequence[str] = ()  # [N], such as the prompts or the classes of the images
    conditions: Condition = field(default_factory=dict)  # [P, …], one for each different text
    which: NDArray[np.int64] | None = None  # [N], the row of each image in `conditions`
    names: Sequence[str] = ()  # [N], hashes of the images' pixels, where these are needed

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
        return hash_of([self.images.fingerprint, list(self.texts)]) if self.texts else self.images.fingerprint

    @cached_property
    def hashes(self) -> NDArray[np.void]:
        """Return 16 bytes for each image, [N], that change with its pixels and its text."""
        pairs = zip(self.images.digests, self.texts or [""] * len(self), strict=True)
        return hashes_of(f"{digest.tobytes().hex()} {text}" for digest, text in pairs)

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
        return selected(self.conditions, torch.from_numpy(self.which[list(rows)]))

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, list[Any], Condition, list[Any]]:
        """Return what the featurizer takes of some images: x, ids, conditions and names."""
        ids = self.ids[list(rows)].tolist()
        return self.tensor(rows), ids, self.condition(rows), [self.names[row] for row in rows] if self.names else ids

    def select(self, rows: Rows) -> "ModelInputs":
        """Return the inputs of some images."""
        chosen = list(rows)
        return replace(
            self,
            images=self.images.select(chosen),
            latents=tuple(value[chosen] for value in self.latents),
            texts=[self.texts[row] for row in chosen] if self.texts else (),
            which=None if self.which is None else self.which[chosen],
            names=[self.names[row] for row in chosen] if self.names else (),
        )

    def named(self) -> "ModelInputs":
        """Return the inputs with a name for each image that changes with its pixels alone."""
        return replace(self, names=[one.tobytes().hex() for one in self.images.digests])

    def sent(self, by_name: bool) -> "ModelInputs":
        """Return the inputs as other processes get them, which read images by name if they can; without columns."""
        named = self.images if self.latents else self.images.by_name() if by_name else None
        images = replace(named or self.images.in_memory(), columns={})
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
        sides = {"latents": False, "mirrored": True} if mirrored else {"latents": False}
        latents = tuple(_latents(model, images, name, flip, folder) for name, flip in sides.items())
    if model.conditions is None:
        return ModelInputs(images, latents)
    texts = model.conditions.texts(images)
    place_of = {text: place for place, text in enumerate(sorted(set(texts)))}
    conditions = _conditions(model.conditions, list(place_of), folder)
    model.conditions.release()
    return ModelInputs(images, latents, texts, conditions, np.array([place_of[text] for text in texts]))


def _latents(model: DiffusionModel, images: Images, name: str, flip: bool, folder: Path | None) -> Tensor:
    """Return μ and σ of the images, or of their mirror images, [N, 2, C, h, w]."""
    autoencoder, (_, height, width) = model.autoencoder, images.shape
    assert autoencoder is not None
    shape = (2, autoencoder.channels[1], height // autoencoder.reduction, width // autoencoder.reduction)

    def encode(rows: Sequence[int]) -> Tensor:
        pixels = images.tensor(rows)
        return autoencoder.moments(pixels.flip(-1) if flip else pixels)

    part = {"autoencoder": autoencoder.facts, "mirrored": flip, "images": images.fingerprint}
    few, hashes = pictures_in_a_pass(height, width), images.digests
    return torch.from_numpy(kept_rows(folder, name, part, (len(images), *shape), encode, few, hashes))


def _conditions(conditioner: Conditioner, texts: Sequence[str], folder: Path | None) -> Condition:
    """Return the condition of each of the P texts: tensors [P, …] by name, each in its own type.

    Only numbers with a fraction are kept in the folder; whole numbers, such as class labels, are made again.
    """
    first = conditioner.encode(texts[:1])
    if not any(value.is_floating_point() for value in first.values()):
        return {name: value.cpu() for name, value in conditioner.encode(texts).items()}
    part, found = {"conditions": conditioner.facts, "images": hash_of(list(texts))}, {}
    for name, value in first.items():

        def embed(rows: Sequence[int], name: str = name) -> Tensor:
            return conditioner.encode([texts[row] for row in rows])[name]

        shape = (len(texts), *value.shape[1:])
        kept = kept_rows(folder, name, part, shape, embed, TEXTS_AT_ONCE, hashes_of(texts))
        found[name] = torch.from_numpy(kept).to(value.dtype)
    return found


def hashes_of(texts: Iterable[str]) -> NDArray[np.void]:
    """Return 16 bytes for each text."""
    return np.frombuffer(b"".join(blake2b(one.encode(), digest_size=16).digest() for one in texts), dtype="V16")
