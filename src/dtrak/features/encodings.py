"""Encode images and prompts once, and keep the results in a store. A killed command does not lose them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from dtrak.features.store import FeatureStore, fill
from dtrak.fingerprints import hash_of
from dtrak.images.images import Images
from dtrak.models.autoencoder import Autoencoder, pictures_in_a_pass
from dtrak.models.conditions import Condition, Conditioner
from dtrak.models.prompts import TEXTS_AT_ONCE
from dtrak.noise import stable_hash
from dtrak.progress import progress_bar


def latents_of(autoencoder: Autoencoder, images: Images, mirrored: bool, folder: Path | None) -> Tensor:
    """Return μ and σ of the images, or of their mirror images, [N, 2, C, h, w]."""
    _, height, width = images.shape
    shape = (2, autoencoder.channels[1], height // autoencoder.reduction, width // autoencoder.reduction)

    def encode(rows: Sequence[int]) -> Tensor:
        pixels = images.tensor(rows)
        return autoencoder.moments(pixels.flip(-1) if mirrored else pixels)

    what = "mirrored" if mirrored else "latents"
    made_from = (hash_of(autoencoder.facts), images.fingerprint)
    return computed_or_read(what, made_from, (len(images), *shape), encode, pictures_in_a_pass(height, width), folder)


def conditions_of(conditioner: Conditioner, texts: Sequence[str], folder: Path | None) -> Condition:
    """Return the condition of each of the P texts: tensors [P, …] by name, each in its own type.

    Only numbers with a fraction are kept in the folder; whole numbers, such as class labels, are made again.
    """
    made_from = (hash_of(conditioner.facts), f"{stable_hash(repr(list(texts))):016x}")

    def embed(name: str, rows: Sequence[int]) -> Tensor:
        return conditioner.encode([texts[row] for row in rows])[name].float()

    first = conditioner.encode(texts[:1])
    if not any(value.is_floating_point() for value in first.values()):
        return {name: value.cpu() for name, value in conditioner.encode(texts).items()}
    return {
        name: computed_or_read(
            name, made_from, (len(texts), *value.shape[1:]), partial(embed, name), TEXTS_AT_ONCE, folder
        ).to(value.dtype)
        for name, value in first.items()
    }


def computed_or_read(
    what: str,
    made_from: tuple[str, str],
    shape: tuple[int, ...],
    compute: Callable[[Sequence[int]], Tensor],
    few: int,
    folder: Path | None,
) -> Tensor:
    """Return a tensor of this shape, [N, …]: read it if the folder has it, or compute it and keep it there.

    `compute(rows)` returns [b, …], and is called with `few` rows at a time. `made_from` are the fingerprints of the
    network and of its inputs.
    """
    if folder is None:
        with TemporaryDirectory() as temporary:
            return computed_or_read(what, made_from, shape, compute, few, Path(temporary))
    model, data = made_from
    store = FeatureStore.create(folder / what, {"kind": what, "model": model, "images": data}, shape[0], shape[1:])
    if store.missing():
        with progress_bar(what.replace("_", " "), shape[0], "rows") as advance:

            def counted(rows: Sequence[int]) -> Tensor:  # [1, b, …]
                parts = []
                for start in range(0, len(rows), few):
                    part = rows[start : start + few]
                    parts.append(compute(part).cpu())
                    advance(len(part))
                return torch.cat(parts)[None]

            fill([store], counted, advance)
    return torch.from_numpy(store.numpy())
