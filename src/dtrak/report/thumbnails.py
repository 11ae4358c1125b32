"""Images made small enough to be shown by the hundred."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dtrak.images.images import Images

SMALL = 32  # up to so many pixels a side, every single one is kept and drawn as a square
BUDGET = 12_000_000  # letters that a page's pictures may take
FEWEST = 0.1  # of their pixels a side, that are kept whatever the budget


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture that a page shows: how to read it, [H, W, C], and at most how many pixels a side it gets."""

    read: Callable[[], NDArray[np.uint8]]
    side: int

    @classmethod
    def of(cls, images: Images, position: int, side: int) -> "Shown":
        return cls(lambda: images.pixels([position])[0], side)


def thumbnail(images: Images, position: int, side: int) -> tuple[bytes, str]:
    """The file of one image with at most `side` pixels a side, and its media type.

    One image at a time, as thousands of large ones would fill the memory.
    """
    return encoded(images.pixels([position])[0], side)


def encoded(pixels: NDArray[np.uint8], side: int) -> tuple[bytes, str]:
    """The same of pixels [H, W, C]."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    kind = "png" if max(image.size) <= SMALL else "webp"
    image.thumbnail((side, side))
    buffer = BytesIO()
    image.save(buffer, kind, quality=80)
    return buffer.getvalue(), f"image/{kind}"


def embedded(pictures: Mapping[str, Shown], budget: int = BUDGET) -> dict[str, str]:
    """The pictures as data URIs to be written into a page; all of them smaller, if they would go beyond the budget."""
    scale = 1.0
    while True:
        found = {name: _data_uri(one, scale) for name, one in pictures.items()}
        total = sum(map(len, found.values()))
        if total <= budget or scale <= FEWEST:
            return found
        scale *= min(0.9, (budget / total) ** 0.5)


def _data_uri(picture: Shown, scale: float) -> str:
    pixels = picture.read()
    side = round(scale * min(picture.side, max(pixels.shape[:2])))
    content, kind = encoded(pixels, max(1, side))
    return f"data:{kind};base64,{b64encode(content).decode()}"
