"""Figures that show pictures: proponents and opponents, self-influence, originals and counterfactuals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.figures.style import AGAINST, FAINT, FOR, INK, STYLE, WIDTH, PaperFigure
from dtrak.wording import number, plain

if TYPE_CHECKING:
    from dtrak.attribution.scores import Match, Scores
    from dtrak.attribution.self_influence import SelfInfluence
    from dtrak.images.images import Images

IN_A_ROW = 12  # pictures
# Lengths in widths of a picture:
GAP = 0.06  # between two pictures
BETWEEN = 0.3  # between two parts of a row
CAPTION = 0.26  # the height of the text below a picture
HEAD = 0.35  # the height of the text above a part


@dataclass(frozen=True, eq=False)
class Cell:
    """A picture with its caption."""

    picture: NDArray[np.uint8]  # [H, W, C]
    caption: str = ""
    colour: str = INK


@dataclass(frozen=True, eq=False)
class Row:
    """A row of pictures, in several parts."""

    name: str  # the text to its left
    parts: list[list[Cell]]
    above: float = 0.0  # extra space above the row


def proponents_and_opponents(
    scores: "Scores | Mapping[str, Scores]", train: "Images", queries: "Images", top: int = 5, bottom: int = 3
) -> PaperFigure:
    """Draw the paper's figure: each query with its `top` proponents and `bottom` opponents, and their scores.

    With several methods, each has a row. `train` has the training images of the scores, and `queries` the queries to
    show: `queries.select(range(4))` shows the first four.

    >>> import dtrak
    >>> from dtrak import figures
    >>> scores = dtrak.open_run("runs/digits").scores()
    >>> figures.proponents_and_opponents(scores, scores.train, scores.queries.first(4)).save("proponents.pdf")
    """
    by_method = dict(scores) if isinstance(scores, Mapping) else {scores.method: scores}
    first = next(iter(by_method.values()))
    places = {str(id_): place for place, id_ in enumerate(first.query_ids)}
    unknown = [str(id_) for id_ in queries.ids if str(id_) not in places]
    if unknown:
        raise UsageError(f"there are no scores of {unknown[0]} from {queries.source}")
    images = train if first.held is not None else train.select(train.positions(first.train_ids, "the scores"))
    cell = partial(_cell, images, format_score=number)
    ranked = {name: list(zip(one.top(top), one.bottom(bottom), strict=True)) for name, one in by_method.items()}
    rows = [
        Row(
            name if len(ranked) > 1 else "",
            [[Cell(picture)] * (index == 0), *([cell(match) for match in part] for part in matches[places[str(id_)]])],
            above=BETWEEN * (index == 0 and shown > 0 and len(ranked) > 1),
        )
        for shown, (id_, picture) in enumerate(zip(queries.ids, queries.pixels(range(len(queries))), strict=True))
        for index, (name, matches) in enumerate(ranked.items())
    ]
    return _sheet({"query": 1, "proponents": top, "opponents": bottom}, rows)


def self_influence(found: "SelfInfluence", train: "Images", least: int | None = None) -> PaperFigure:
    """Draw the most and least self-influential training images of each class, a row for each class.

    `train` has all training images of the scores, in their order. With `least`, fewer of the least are drawn.

    >>> import dtrak
    >>> from dtrak import figures
    >>> from dtrak.attribution.self_influence import self_influence_by_class
    >>> scores = dtrak.open_run("runs/digits").scores()
    >>> figures.self_influence(self_influence_by_class(scores), scores.train).save("self-influence.pdf")
    """
    cell = partial(_cell, train, format_score=plain)
    each = max(len(one.most) for one in found.classes)
    fewest = each if least is None else least
    rows = [
        Row(
            str(one.name) if found.column else "",
            [[cell(match) for match in part] for part in (one.most[:each], one.least[:fewest])],
        )
        for one in found.classes
    ]
    return _sheet({"most self-influential": each, "least self-influential": fewest}, rows)


def _cell(images: "Images", match: "Match", format_score: Callable[[float], str]) -> Cell:
    return Cell(images.pixels([match.position])[0], format_score(match.score), FOR if match.score > 0 else AGAINST)


def _sheet(parts: Mapping[str, int], rows: Sequence[Row]) -> PaperFigure:
    """Draw rows of pictures; `parts` gives the heading of each part and its number of columns."""
    height, width, _ = rows[0].parts[-1][0].picture.shape
    starts = np.cumsum([0.0, *(count * (1 + GAP) - GAP + BETWEEN for count in parts.values())])
    across, down = starts[-1] - BETWEEN, height / width + CAPTION + GAP
    tops = HEAD + np.cumsum([row.above for row in rows]) + down * np.arange(len(rows))
    with matplotlib.rc_context(STYLE):
        label = 0.08 + 0.065 * max(len(row.name) for row in rows)  # inches
        inch = min((WIDTH - label) / across, 1.0)
        figure, axes = _canvas(label, inch, across, tops[-1] + down)
        for start, head in zip(starts, parts, strict=False):
            axes.text(start, HEAD - 0.1, head, ha="left", va="bottom", fontsize=7)
        for top, row in zip(tops, rows, strict=True):
            axes.text(-0.1, top + height / width / 2, row.name, ha="right", va="center", fontsize=7)
            for start, cells in zip(starts, row.parts, strict=False):
                for column, cell in enumerate(cells):
                    left = start + column * (1 + GAP)
                    _show(axes, cell.picture, left, top, height / width)
                    below = top + height / width + 0.03
                    axes.text(left + 0.5, below, cell.caption, ha="center", va="top", fontsize=6, color=cell.colour)
    return figure


def _canvas(label: float, inch: float, across: float, down: float) -> tuple[PaperFigure, Axes]:
    """Make an empty figure of `across` × `down` pictures, each `inch` inches wide, right of `label` inches for text."""
    figure = PaperFigure(figsize=(label + inch * across, inch * down))
    part = label / figure.get_figwidth()
    axes = figure.add_axes((part, 0, 1 - part, 1))
    axes.set_xlim(0, across)
    axes.set_ylim(down, 0)
    axes.set_axis_off()
    return figure, axes


def side_by_side(pictures: Mapping[str, NDArray[np.uint8]], captions: Sequence[str]) -> PaperFigure:
    """Draw a row of pictures [Q, H, W, C] for each name, so that pictures with the same caption [Q] share a column.

    If the pictures do not fit into one row, they continue in further bands of rows.

    >>> import dtrak
    >>> from dtrak import figures
    >>> digits = dtrak.load_images("digits:train")
    >>> rows = {"before": digits.pixels(range(3)), "after": digits.pixels(range(3, 6))}
    >>> figures.side_by_side(rows, ["a", "b", "c"]).save("pairs.pdf")
    """
    names, count = list(pictures), len(captions)
    _, height, width, _ = pictures[names[0]].shape
    columns = min(count, IN_A_ROW)
    bands = -(-count // IN_A_ROW)
    across, down, head = 1 + GAP, height / width + GAP, 0.4  # sizes of a picture and of a band's captions
    band = head + down * len(names)
    with matplotlib.rc_context(STYLE):
        label = 0.1 + 0.06 * max(map(len, names))  # inches
        inch = min((WIDTH - label) / (IN_A_ROW * across), 1.0)
        figure, axes = _canvas(label, inch, columns * across, bands * band)
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
    """Draw one picture [H, W, C], one unit wide."""
    rgb = np.broadcast_to(picture, (*picture.shape[:2], 3))
    axes.imshow(rgb, extent=(left, left + 1, top + height, top), interpolation="nearest", aspect="auto")
