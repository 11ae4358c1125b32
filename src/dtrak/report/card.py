"""An attribution card: one picture, the training images that made it, credit, method and trust, on one page."""

import textwrap
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dtrak.attribution.scores import Match, Scores
from dtrak.errors import UsageError
from dtrak.figures.style import AGAINST, FAINT, FOR, INK, PALE, STYLE, PaperFigure
from dtrak.report.measured import trust_of, trust_words
from dtrak.report.sections import CREDIT_COLUMNS
from dtrak.runs.run import Run
from dtrak.wording import number

SIZE = 8.27, 5.83  # inches, a sheet of A5 on its side
PROPONENTS, OPPONENTS, GROUPS = 6, 3, 6
LINE = 118  # characters in a line of small text
PITCH = 0.1  # from one training image to the next, so that small ones have room for their scores, too
WARNING = (
    "Scores are estimates of what training on an image did to the model's loss on this picture. They are not "
    "probabilities, and no proof that anything was copied."
)


def card_of_run(run: Run, picture: str, method: str | None = None) -> PaperFigure:
    """Draw the card of one of the pictures that were attributed last in a run."""
    asked = run.asked
    scores = run.scores(method or (None if asked is None else next(iter(asked["facts"]["methods"]))))
    places = np.flatnonzero(scores.query_ids.astype(str) == picture)
    if not len(places):
        first, last = scores.query_ids[0], scores.query_ids[-1]
        raise UsageError(f"{run.folder} has no scores of the picture {picture!r}: there are {first} to {last}")
    one = scores.one(int(places[0]))
    assert one.queries is not None
    return card(run, one, one.queries.pixels([0])[0], trust_words(run, trust_of(run), scores.method))


def card(run: Run, scores: Scores, picture: NDArray[np.uint8], trust: str) -> PaperFigure:
    """Draw the card of a picture [H, W, C], from its scores and from the words on how far to trust them."""
    (top,), (bottom,) = scores.top(PROPONENTS), scores.bottom(OPPONENTS)
    column = next((one for one in CREDIT_COLUMNS if one in scores.columns), None)
    with matplotlib.rc_context(STYLE):
        figure = PaperFigure(figsize=SIZE)
        figure.text(0.05, 0.925, "Which training images made this picture?", fontsize=17, va="center")
        about = f"{run.folder.resolve().name} · {scores.query_ids[0]} · {run.summary}"
        figure.text(0.05, 0.875, about[:LINE], color=FAINT)
        _show(figure.add_axes((0.05, 0.42, 0.27, 0.40)), picture)
        _row(figure, scores, "Strongest proponents: training on them lowered the picture’s loss", top, 0.667, 0.093)
        opponents = [one for one in bottom if one.score < 0]
        _row(figure, scores, "Strongest opponents: training on them raised it", opponents, 0.437, 0.062)
        if column is not None:
            _credit(figure, scores, column)
        figure.text(0.05, 0.325, "How far to trust it", fontsize=9, va="center")
        words = textwrap.wrap(trust.replace("`", ""), 44)
        figure.text(0.05, 0.30, "\n".join(words), fontsize=7, va="top", linespacing=1.4)
        method = f"Method {scores.method}" + ("" if scores.damping is None else f", damping {scores.damping}")
        made = f"{method}. {scores.images:,} training images. dtrak {version('dtrak')}, {date.today().isoformat()}."
        figure.text(0.05, 0.08, WARNING, fontsize=7, color=INK, va="center")
        figure.text(0.05, 0.045, made, fontsize=7, color=FAINT, va="center")
    return figure


def _row(figure: PaperFigure, scores: Scores, title: str, found: Sequence[Match], bottom: float, side: float) -> None:
    """Draw a row of training images with their scores and ids."""
    assert scores.train is not None
    height = side * SIZE[0] / SIZE[1]
    figure.text(0.37, bottom + height + 0.03, title, fontsize=9, va="center")
    for place, match in enumerate(found):
        left = 0.37 + place * PITCH
        _show(figure.add_axes((left, bottom, side, height)), scores.train.pixels([match.position])[0])
        colour = FOR if match.score > 0 else AGAINST
        figure.text(left, bottom - 0.025, number(match.score), fontsize=7.5, color=colour, weight="bold")
        figure.text(left, bottom - 0.05, str(match.id)[-20:], fontsize=6.5, color=FAINT)
        column = next((one for one in CREDIT_COLUMNS if one in match.columns), None)
        if column is not None:
            said = f"label {match.columns[column]}" if column == "label" else str(match.columns[column])
            figure.text(left, bottom - 0.073, said[:20], fontsize=6.5, color=FAINT)


def _credit(figure: PaperFigure, scores: Scores, column: str) -> None:
    """Draw the largest shares of this picture's positive scores, with their 95% intervals."""
    found = scores.credit(column)[:GROUPS]
    figure.text(
        0.37, 0.325, f"Credit by {column}: share of the positive scores, and its 95% interval", fontsize=9, va="center"
    )
    axes = figure.add_axes((0.45, 0.145, 0.33, 0.16))
    rows, shares = np.arange(len(found)), np.array([100 * one.share for one in found])
    ends = 100 * np.array([[one.share - one.low, one.high - one.share] for one in found]).T.clip(min=0)
    axes.barh(rows, shares, 0.65, color=PALE[0])
    axes.errorbar(shares, rows, xerr=ends, fmt="none", ecolor=FOR, elinewidth=1.6)
    axes.set_yticks(rows, [str(one.group)[:14] for one in found], fontsize=7)
    axes.set_ylim(max(len(found), 4) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    for row, one in enumerate(found):
        text = f"{100 * one.share:.1f}% ({100 * one.low:.1f} to {100 * one.high:.1f})"
        axes.text(1.03, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7)


def _show(axes: Axes, picture: NDArray[np.uint8]) -> None:
    axes.imshow(np.broadcast_to(picture, (*picture.shape[:2], 3)), interpolation="nearest", aspect="equal")
    axes.set_anchor("NW")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#d0d0d0")
