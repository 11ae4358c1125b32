"""A benchmark folder of twelve training images, as other tools would write it, with losses that are noise."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dtrak
import tiny
from dtrak.models import save_model

TRAIN = dtrak.load_images("digits:train").select(range(12))
VALIDATION = dtrak.load_images("digits:validation").select(range(4))
GENERATED = dtrak.load_images("digits:validation").select(range(10, 13))
SUBSETS, SEEDS = 6, 2


def write_images(path: Path, images: dtrak.Images, **columns: Any) -> Path:
    np.savez(path, images=images.pixels(range(len(images))), **columns)
    return path


def random_halves(subsets: int, images: int, seed: int = 0) -> NDArray[np.bool_]:
    return np.argsort(np.random.default_rng(seed).random((subsets, images)), axis=1) < images // 2


def write_benchmark(folder: Path, retrained: Mapping[str, dtrak.DiffusionModel] | None = None) -> Path:
    """The files of the contract, with losses that are noise; and the models of `retrained` by their names."""
    random = np.random.default_rng(1)
    save_model(tiny.unet(), folder / "model")
    write_images(folder / "train.npz", TRAIN, labels=TRAIN.columns["label"])
    np.save(folder / "masks.npy", random_halves(SUBSETS, len(TRAIN)))
    for name, losses, images in (
        ("validation.npz", "losses.npy", VALIDATION),
        ("generated.npz", "generated_losses.npy", GENERATED),
    ):
        write_images(folder / name, images)
        np.save(folder / losses, random.random((SUBSETS, SEEDS, len(images)), dtype=np.float32))
    for name, model in (retrained or {}).items():
        save_model(model, folder / "retrained" / name)
    return folder
