"""The latents of images: computed once, kept in a store that a kill does not cost."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from dtrak.data import Images
from dtrak.features import FeatureStore, Manifest, fill
from dtrak.models.autoencoder import Autoencoder
from dtrak.progress import progress_bar

PIXELS_AT_ONCE = 4 * 512 * 512


def latents_of(autoencoder: Autoencoder, images: Images, mirrored: bool, folder: Path | None) -> Tensor:
    """μ and σ of the images, or of their mirror images, [N, 2, C, h, w]."""
    if folder is None:
        with TemporaryDirectory() as temporary:
            return latents_of(autoencoder, images, mirrored, Path(temporary))
    _, height, width = images.shape
    reduction = autoencoder.reduction
    shape = (2, autoencoder.channels[1], height // reduction, width // reduction)
    side = "mirrored" if mirrored else "latents"
    manifest = Manifest(
        model=autoencoder.fingerprint,
        data=images.fingerprint,
        objective=side,
        timesteps=[],
        draws=0,
        noise="none",
        seed=0,
        parameters="none",
        projection="identity",
        dim=shape[0] * shape[1] * shape[2] * shape[3],
        rows=len(images),
    )
    name = f"{side}-{autoencoder.fingerprint[:8]}-{images.fingerprint[:8]}"
    store = FeatureStore.create(folder / name, manifest)
    if store.missing():
        _fill(store, autoencoder, images, mirrored)
    return torch.from_numpy(store.numpy()).view(-1, *shape)


def _fill(store: FeatureStore, autoencoder: Autoencoder, images: Images, mirrored: bool) -> None:
    at_once = max(1, PIXELS_AT_ONCE // (images.shape[1] * images.shape[2]))
    with progress_bar("latents", len(images), "images") as advance:

        def encode(rows: range) -> Tensor:  # [1, b, k]
            parts = []
            for start in range(0, len(rows), at_once):
                part = rows[start : start + at_once]
                pixels = images.tensor(part)
                parts.append(autoencoder.moments(pixels.flip(-1) if mirrored else pixels).flatten(1).cpu())
                advance(len(part))
            return torch.cat(parts)[None]

        fill([store], encode, advance)
