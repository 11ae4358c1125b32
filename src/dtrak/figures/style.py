"""The style that all figures share: size on the page, fonts, colours and ticks; and how to write them to a file."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from dtrak.errors import UsageError
from dtrak.files import write_bytes
from dtrak.wording import plain

FORMATS: dict[str, dict[str, Any]] = {
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
    ".svg": {"Date": None},
}
DPI = 300
WIDTH = 6.75  # inches, as wide as the text of a page
COLUMN = 3.25  # inches, as wide as one of two columns
PALE = ("#c9d8ea", "#f6d9b8", "#cfe5c8", "#f1c9c7", "#dccfe8", "#e4d6cd", "#f4d3e4", "#dcdcdc", "#e6e6b0", "#c5e6ea")
# Wong's colours, which colour-blind readers can tell apart, and marks to tell lines apart without colour.
STRONG = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
MARKS = ("o", "s", "D", "^", "v", "P", "X")
INK, FAINT, RULE = "#333333", "#8a8a8a", "#e6e6e6"
FOR, AGAINST = "#0072b2", "#d55e00"
TICKS = 5  # on an axis, roughly
ROUND = MaxNLocator(TICKS, steps=[1, 2, 5, 10])
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "mathtext.fontset": "dejavusans",
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "pdf.fonttype": 42,  # keeps text as text
    "svg.fonttype": "none",
    "svg.hashsalt": "dtrak",  # the same figure always gives the same names of its parts
}


class PaperFigure(Figure):
    """A figure that a notebook shows by itself, and that can be saved in one call.

    >>> import dtrak
    >>> dtrak.open_run("runs/digits").scores().plot(4).save("figure.svg")
    """

    def save(self, path: str | Path) -> None:
        """Write the figure as .pdf, .svg or .png, by the path's ending."""
        save_figure(self, path)

    def file(self, ending: str) -> bytes:
        """Return the content of such a file, for "pdf", "svg" or "png"."""
        return _written(self, f".{ending}", DPI)

    def _repr_png_(self) -> bytes:
        return _written(self, ".png", 2 * 72)


def simplify_frame(axes: Axes, rule: str) -> None:
    """Remove the frame except for the axis `rule`, "x" or "y", which has the numbers, and pale lines across it."""
    other = "y" if rule == "x" else "x"
    axes.spines[["top", "right", "left" if rule == "x" else "bottom"]].set_visible(False)
    axes.tick_params(axis=other, length=0)  # type: ignore[arg-type]
    axes.tick_params(axis=rule, length=3, width=0.6)  # type: ignore[arg-type]
    axes.grid(axis=rule, color=RULE, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def nice_ticks(low: float, high: float) -> list[float]:
    """Return round numbers around low and high, 1, 2 or 5 times a power of ten apart; they span at least 1."""
    return list(map(float, ROUND.tick_values(low, max(high, low + 1))))


def x_tick_values(xs: Sequence[float], log: bool) -> Sequence[float]:
    """Return the values themselves if they are few; else powers of ten, or round numbers, between them."""

    def between(locator: Locator) -> list[float]:
        rounding = 1e-9  # of a tick at the end of the axis
        ticks = map(float, locator.tick_values(xs[0], xs[-1]))
        return [tick for tick in ticks if xs[0] * (1 - rounding) <= tick <= xs[-1] * (1 + rounding)]

    if len(xs) <= TICKS + 2:
        return xs
    powers = between(LogLocator(numticks=TICKS + 2)) if log else []
    return powers if len(powers) > 1 else between(ROUND)


def plain_value(value: float) -> str:
    """Write a value as 10, 4,096, 0.3 or 10⁻⁵."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return (f"{value:g}" if abs(value) >= 1e-3 else plain(value)).replace("1.00×", "")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as .pdf, .svg or .png, by the path's ending; the same figure always gives the same bytes.

    >>> from dtrak.figures import save_figure
    >>> from matplotlib.figure import Figure
    >>> save_figure(Figure(), "empty.pdf")
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"cannot write a figure to {path}: its ending has to be one of {', '.join(FORMATS)}")
    write_bytes(path, _written(figure, ending, DPI))


def _written(figure: Figure, ending: str, dpi: int) -> bytes:
    """Return the file of a figure."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=ending[1:], dpi=dpi, metadata=FORMATS[ending])
    return buffer.getvalue()
