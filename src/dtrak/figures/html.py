"""Small pieces of HTML for notebooks: pictures with captions, bars, and tables of facts.

They carry their own styles, and take the notebook's colours, so that they look right on light and on dark pages.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.figures.thumbnails import SMALL, data_uri

SIDE = 72  # pixels of a picture on the page
FAINT = "opacity: 0.7; font-size: 11px"


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
