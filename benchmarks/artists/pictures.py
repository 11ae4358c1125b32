"""Make pictures by six artists from photographs: each artist has a style that a person can see.

    python benchmarks/artists/pictures.py cifar10-validation.npz artists

The folder gets train.npz, 480 pictures, and validation.npz, 60 others: every artist has the same number of pictures of
each of the ten classes, and no photograph is used twice. A picture has its class, its artist and a caption.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from dtrak.files import as_npz, write_bytes
from dtrak.images.images import load_images

Picture = NDArray[Any]  # [H, W, 3]; a photograph has values from 0 to 1
COUNTS = {"train": 8, "validation": 1}  # pictures of each class by each artist


def grey(photo: Picture) -> Picture:
    return photo @ np.array([0.3, 0.59, 0.11])


def two_colours(photo: Picture, dark: Sequence[int], light: Sequence[int]) -> Picture:
    """Go from one colour to another with the brightness."""
    level = np.clip((grey(photo) - 0.1) / 0.8, 0, 1)[..., None]
    return (1 - level) * np.array(dark) / 255 + level * np.array(light) / 255


def lines(photo: Picture) -> Picture:
    """Return the strength of the edges, from 0 to 1, as [H, W, 1]."""
    smooth = ndimage.gaussian_filter(grey(photo), 0.7)
    return np.clip(1.4 * np.hypot(ndimage.sobel(smooth, 0), ndimage.sobel(smooth, 1)) - 0.1, 0, 1)[..., None]


def few_colours(photo: Picture) -> Picture:
    """Make the colours strong and round them to three levels."""
    strong = grey(photo)[..., None] + 2.5 * (photo - grey(photo)[..., None])
    return np.round(2 * np.clip(strong, 0, 1)) / 2


STYLES: dict[str, Callable[[Picture], Picture]] = {
    "ines": lambda photo: two_colours(photo, (18, 22, 90), (250, 245, 225)),  # indigo on cream
    "rolf": lambda photo: two_colours(photo, (70, 10, 10), (255, 190, 80)),  # rust and amber
    "otto": lambda photo: 1 - photo,  # a negative
    "nina": few_colours,  # a poster
    "paul": lambda photo: 1 - 0.95 * lines(photo) * np.ones(3),  # pencil on paper
    "cora": lambda photo: np.array([0.06, 0.2, 0.16]) + lines(photo) * np.array([0.9, 0.75, 0.75]),  # chalk on a board
}


def paint(photographs: NDArray[np.uint8], labels: NDArray[Any]) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the arrays of each set of pictures."""
    random, classes = np.random.default_rng(0), np.unique(labels)
    rows_of = {name: iter(random.permutation(np.flatnonzero(labels == name))) for name in classes}
    sets = {}
    for which, count in COUNTS.items():
        drawn = [(next(rows_of[name]), name, artist) for _ in range(count) for name in classes for artist in STYLES]
        order = random.permutation(len(drawn))
        rows, names, artists = zip(*(drawn[place] for place in order), strict=True)
        painted = [STYLES[artist](photographs[row] / 255) for row, artist in zip(rows, artists, strict=True)]
        sets[which] = {
            "images": np.round(255 * np.clip(np.stack(painted), 0, 1)).astype(np.uint8),
            "ids": np.array([f"{artist}-{row:03d}" for row, artist in zip(rows, artists, strict=True)]),
            "labels": np.array(names),
            "artist": np.array(artists),
            "caption": np.array([f"a {name} by {artist}" for name, artist in zip(names, artists, strict=True)]),
        }
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", help="an .npz file of uint8 images [N, 32, 32, 3] with labels and label_names")
    parser.add_argument("folder", type=Path, help="the folder for train.npz and validation.npz")
    args = parser.parse_args()
    found = load_images(args.photographs)
    for name, arrays in paint(found.pixels(range(len(found))), found.columns["label"]).items():
        write_bytes(args.folder / f"{name}.npz", as_npz(arrays))


if __name__ == "__main__":
    main()
