"""Make images small enough that a page can show hundreds of them."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from dtrak.images.images import Images

SMALL = 32  # images of at most so many pixels a side keep every pixel, and pages draw their pixels as squares
BUDGET = 12_000_000  # characters that the pictures of a page may take
MIN_SCALE = 0.1  # pictures are not scaled further down, even if they exceed the budget


@dataclass(frozen=True, eq=False)
class ShownPicture:
    """A picture that a page shows."""

    read: Callable[[], NDArray[np.uint8]]  # returns its pixels [H, W, C]
    side: int  # the greatest number of pixels a side on the page

    @classmethod
    def of(cls, images: "Images", position: int, side: int) -> "ShownPicture":
        """Show one of the images."""
        return cls(lambda: images.pixels([position])[0], side)


def thumbnail(images: "Images", position: int, side: int) -> tuple[bytes, str]:
    """Return one image as a file with at most `side` pixels a side, and its media type.

    Only this image is read, as thousands of large ones would fill the memory.
    """
    return encoded(images.pixels([position])[0], side)


def encoded(pixels: NDArray[np.uint8], side: int) -> tuple[bytes, str]:
    """Return pixels [H, W, C] as a file with at most `side` pixels a side, and its media type."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    kind = "png" if max(image.size) <= SMALL else "webp"
    image.thumbnail((side, side))
    buffer = BytesIO()
    image.save(buffer, kind, quality=80)
    return buffer.getvalue(), f"image/{kind}"


def embedded(pictures: Mapping[str, ShownPicture]) -> dict[str, str]:
    """Return the pictures as data URIs; if they exceed BUDGET, all of them are scaled down."""
    scale = 1.0
    while True:
        found = {name: _data_uri(one, scale) for name, one in pictures.items()}
        total = sum(map(len, found.values()))
        if total <= BUDGET or scale <= MIN_SCALE:
            return found
        scale *= min(0.9, (BUDGET / total) ** 0.5)


def _data_uri(picture: ShownPicture, scale: float) -> str:
    pixels = picture.read()
    return data_uri(pixels, max(1, round(scale * min(picture.side, max(pixels.shape[:2])))))


def data_uri(pixels: NDArray[np.uint8], side: int) -> str:
    """Return pixels [H, W, C] as an address that contains the whole file, with at most `side` pixels a side."""
    content, kind = encoded(pixels, side)
    return f"data:{kind};base64,{b64encode(content).decode()}"
