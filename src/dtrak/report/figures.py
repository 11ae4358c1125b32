"""Figures for a paper or a notebook: each function gives a `matplotlib.figure.Figure`, and `save_figure` writes it."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.files import write_bytes

FORMATS: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".png": {"Software": None}}
DPI = 300
WIDTH = 6.75  # inches, the text of a page
IN_A_ROW = 12  # pictures
GAP = 0.06  # between them, of a picture's width
COLOURS = ("#c9d8ea", "#f6d9b8", "#cfe5c8", "#f1c9c7", "#dccfe8", "#e4d6cd", "#f4d3e4", "#dcdcdc", "#e6e6b0", "#c5e6ea")
INK, FAINT = "#333333", "#8a8a8a"
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
    "pdf.fonttype": 42,  # text stays text
}


def boxplots(panels: Mapping[str, Mapping[str, NDArray[np.floating[Any]]]]) -> Figure:
    """A panel for each label; in it a box for each name, with its values [Q] as points and their median as a number.

    Boxes reach from quartile to quartile, whiskers to the farthest value within 1.5 times that from them.
    """
    names = list(next(iter(panels.values())))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.75 + 0.3 * len(names)), layout="constrained")
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (label, by_name) in zip(grid, panels.items(), strict=True):
            _draw_boxes(axes, [np.asarray(by_name[name], dtype=np.float64) for name in names])
            axes.set_xlabel(label)
        grid[0].set_yticks(range(len(names)), names)
        grid[0].set_ylim(len(names) - 0.5, -0.5)  # the first on top
    return figure


def _draw_boxes(axes: Axes, values: list[NDArray[np.float64]]) -> None:
    line = {"color": INK, "linewidth": 0.7}
    drawn = axes.boxplot(
        values,
        positions=range(len(values)),
        orientation="horizontal",
        widths=0.6,
        patch_artist=True,
        showfliers=False,
        manage_ticks=False,
        boxprops={"edgecolor": INK, "linewidth": 0.7},
        whiskerprops=line,
        capprops=line,
        medianprops={"color": INK, "linewidth": 1.4},
    )
    for index, (box, of_box) in enumerate(zip(drawn["boxes"], values, strict=True)):
        box.set_facecolor(COLOURS[index % len(COLOURS)])
        # The golden ratio spreads neighbours apart, and always in the same way.
        heights = index + 0.4 * (np.arange(len(of_box)) * 0.618034 % 1 - 0.5)
        axes.scatter(of_box, heights, s=4, color=FAINT, alpha=0.6, linewidths=0, zorder=3)
        axes.text(1.02, index, f"{np.median(of_box):.3g}", transform=axes.get_yaxis_transform(), va="center", ha="left")
    axes.text(1.02, 1.02, "median", transform=axes.transAxes, va="bottom", ha="left", color=FAINT, fontsize=7)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=3, width=0.6)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def side_by_side(pictures: Mapping[str, NDArray[np.uint8]], captions: Sequence[str]) -> Figure:
    """A row for each name with its pictures [Q, H, W, C], so that those of one caption [Q] stand below each other.

    More pictures than fit into a row go on in further bands of rows.
    """
    names, count = list(pictures), len(captions)
    _, height, width, _ = pictures[names[0]].shape
    columns = min(count, IN_A_ROW)
    bands = -(-count // IN_A_ROW)
    across, down, head = 1 + GAP, height / width + GAP, 0.4  # of a picture's width; of a band, its captions
    band = head + down * len(names)
    with matplotlib.rc_context(STYLE):
        label = 0.1 + 0.06 * max(map(len, names))  # inches
        inch = min((WIDTH - label) / (IN_A_ROW * across), 1.0)
        figure = Figure(figsize=(label + inch * columns * across, inch * bands * band))
        total = figure.get_figwidth()
        axes = figure.add_axes((label / total, 0, 1 - label / total, 1))
        axes.set_xlim(0, columns * across)
        axes.set_ylim(bands * band, 0)
        axes.set_axis_off()
        for index, caption in enumerate(captions):
            row, column = divmod(index, IN_A_ROW)
            left, top = column * across, row * band + head
            axes.text(left + 0.5, top - 0.08, caption, ha="center", va="bottom", fontsize=6, color=FAINT)
            for place, name in enumerate(names):
                _show(axes, pictures[name][index], left, top + place * down, height / width)
        for row in range(bands):
            for place, name in enumerate(names):
                axes.text(-0.12, row * band + head + place * down + height / width / 2, name, ha="right", va="center")
    return figure


def _show(axes: Axes, picture: NDArray[np.uint8], left: float, top: float, height: float) -> None:
    """One picture [H, W, C], one unit wide."""
    rgb = np.broadcast_to(picture, (*picture.shape[:2], 3))
    axes.imshow(rgb, extent=(left, left + 1, top + height, top), interpolation="nearest", aspect="auto")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as the path's ending says: .pdf or .png; the same figure gives the same bytes."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"cannot write a figure to {path}: its ending has to be one of {', '.join(FORMATS)}")
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=ending[1:], dpi=DPI, metadata=FORMATS[ending])
    write_bytes(path, buffer.getvalue())
