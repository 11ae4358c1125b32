"""What a source of images gives: ids, columns, and pictures that are not opened yet."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtrak.images.pictures import Picture

IMAGE_EXTENSIONS = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class FoundImages(NamedTuple):
    """The images of a source; most sources have not opened them yet."""

    ids: NDArray[Any]  # [N] int64 or str
    columns: Mapping[str, NDArray[Any]]  # each [N]
    pictures: list[Picture]  # [N]
    digests: NDArray[np.void] | None = None  # [N], if all contents were read already; then all have the same shape
