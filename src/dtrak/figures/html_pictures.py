"""Pictures in pages: files small enough that a page can hold hundreds of them, and small pieces of HTML for notebooks.

The pieces carry their own styles, and take the notebook's colours, so that they look right on light and on dark pages.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from dtrak.images.images import Images

SMALL = 32  # images of at most so many pixels a side keep every pixel, and pages draw their pixels as squares
BUDGET = 12_000_000  # characters that the pictures of a page may take
MIN_SCALE = 0.1  # pictures are not scaled further down, even if they exceed the budget
SIDE = 72  # pixels of a picture in a notebook
FAINT = "opacity: 0.7; font-size: 11px"


def thumbnail(pixels: NDArray[np.uint8], side: int) -> tuple[bytes, str]:
    """Return pixels [H, W, C] as a file with at most `side` pixels a side, and its media type."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    kind = "png" if max(image.size) <= SMALL else "webp"
    image.thumbnail((side, side))
    buffer = BytesIO()
    image.save(buffer, kind, quality=80)
    return buffer.getvalue(), f"image/{kind}"


def data_uri(pixels: NDArray[np.uint8], side: int) -> str:
    """Return pixels [H, W, C] as an address that contains the whole file, with at most `side` pixels a side."""
    content, kind = thumbnail(pixels, side)
    return f"data:{kind};base64,{b64encode(content).decode()}"


@dataclass(frozen=True, eq=False)
class ShownPicture:
    """A picture that a page shows. It is read when it is needed, as thousands of large ones would fill the memory."""

    read: Callable[[], NDArray[np.uint8]]  # returns its pixels [H, W, C]
    side: int  # the greatest number of pixels a side on the page

    @classmethod
    def of(cls, images: "Images", position: int, side: int) -> "ShownPicture":
        """Show one of the images."""
        return cls(lambda: images.pixels([position])[0], side)


def embedded(pictures: Mapping[str, ShownPicture]) -> dict[str, str]:
    """Return the pictures as data URIs; if they exceed BUDGET, all of them are scaled down."""
    scale = 1.0
    while True:
        found = {}
        for name, one in pictures.items():
            pixels = one.read()
            found[name] = data_uri(pixels, max(1, round(scale * min(one.side, max(pixels.shape[:2])))))
        total = sum(map(len, found.values()))
        if total <= BUDGET or scale <= MIN_SCALE:
            return found
        scale *= min(0.9, (BUDGET / total) ** 0.5)


def picture(pixels: NDArray[np.uint8], lines: Sequence[str] = (), side: int = SIDE) -> str:
    """Return a picture [H, W, C] with lines of text below it."""
    crisp = "; image-rendering: pixelated" if max(pixels.shape[:2]) <= SMALL else ""
    style = f"display: block; width: {side}px; height: auto{crisp}"
    image = f'<img src="{data_uri(pixels, 2 * side)}" alt="" style="{style}">'
    texts = "".join(f'<div style="{FAINT if place else ""}">{escape(one)}</div>' for place, one in enumerate(lines))
    return f'<div style="width: {side}px; font-size: 12px; line-height: 1.3; overflow: hidden">{image}{texts}</div>'


def row(cells: Iterable[str]) -> str:
    """Return cells side by side."""
    return f'<div style="display: flex; flex-wrap: wrap; gap: 8px; margin: 6px 0">{"".join(cells)}</div>'


def part(title: str, *content: str) -> str:
    """Return content below a small title."""
    return f'<div style="margin: 4px 0 12px"><div style="{FAINT}">{escape(title)}</div>{"".join(content)}</div>'


def bars(shares: Sequence[tuple[str, float, str]]) -> str:
    """Return a bar for each (name, share from 0 to 1, text)."""
    longest = max((share for _, share, _ in shares), default=0) or 1
    rows = "".join(
        f'<tr><td style="text-align: left">{escape(name)}</td><td style="width: 180px"><div style="width: '
        f'{100 * share / longest:.1f}%; height: 10px; background: #0072b2; opacity: 0.6"></div></td>'
        f'<td style="text-align: right">{escape(text)}</td></tr>'
        for name, share, text in shares
    )
    return f"<table>{rows}</table>"


def facts(title: str, values: Mapping[str, Any]) -> str:
    """Return a title and a table of facts."""
    cell = '<td style="text-align: left">{}</td>'
    rows = "".join(
        f"<tr>{cell.format(escape(name))}{cell.format(escape(str(value)))}</tr>" for name, value in values.items()
    )
    return f"<div><b>{escape(title)}</b><table>{rows}</table></div>"
