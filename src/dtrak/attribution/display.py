"""Scores as text, as HTML for notebooks, and as figures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dtrak.attribution.self_influence import CLASS_COLUMNS, self_influence_by_class
from dtrak.errors import UsageError
from dtrak.wording import number

if TYPE_CHECKING:
    from dtrak.attribution.scores import Match, Scores
    from dtrak.figures import PaperFigure
    from dtrak.images.images import Images

SHOWN_QUERIES, SHOWN_MATCHES, SHOWN_GROUPS = 3, 6, 8  # in a notebook


def text(scores: "Scores") -> str:
    """Describe scores in a few lines."""
    count, total = len(scores.values), scores.images
    lines = [f"Scores by {scores.method}: {count:,} queries × {total:,} training images"]
    if scores.damping is not None:
        lines.append(f"damping {scores.damping}")
    best = scores.only(1).top(3)[0]
    lines.append(f"query {scores.query_ids[0]}: " + ", ".join(f"{one.id} {number(one.score)}" for one in best) + " …")
    if scores.columns:
        lines.append(f"columns: {', '.join(scores.columns)}")
    return "\n".join(lines)


def html(scores: "Scores") -> str:
    """Show the first queries beside their strongest proponents, and the credit of groups as bars."""
    from dtrak.figures.html_pictures import bars, part, row

    shown = scores.only(SHOWN_QUERIES)
    parts = []
    for place, matches in enumerate(shown.top(SHOWN_MATCHES)):
        cells = [_picture(scores.queries, place, [f"query {scores.query_ids[place]}"])]
        cells += [_picture(scores.train, one.position, _lines(one)) for one in matches]
        parts.append(row(cells))
    count, total = len(scores.values), scores.images
    heads = [f"{scores.method}: {count:,} queries × {total:,} training images"]
    heads += [] if scores.damping is None else [f"damping {scores.damping}"]
    page = part(", ".join(heads), *parts)
    column = next((one for one in CLASS_COLUMNS if one in scores.columns), None)
    if column is not None:
        found = [
            (str(one.group), one.share, f"{one.share:.1%} ({one.low:.1%}–{one.high:.1%})")
            for one in scores.credit(column)[:SHOWN_GROUPS]
        ]
        page += part(
            f"credit by {column}: share of the positive scores, with its 95% interval over queries", bars(found)
        )
    return page


def plot(
    scores: "Scores", queries: int | Sequence[Any], top: int, bottom: int, train: "Images | None", of: "Images | None"
) -> "PaperFigure":
    """Draw queries with their proponents and opponents: the first ones, or those with the given ids."""
    from dtrak.figures import proponents_and_opponents

    train, of = images(scores, train), of if of is not None else scores.queries
    if of is None:
        raise UsageError("these scores were read from a file, which has no images: give query_images=…")
    ids = scores.query_ids[:queries] if isinstance(queries, int) else queries
    return proponents_and_opponents(scores, train, of.select(of.positions(list(ids), "queries")), top, bottom)


def plot_credit(scores: "Scores", by: str, groups: int) -> "PaperFigure":
    """Draw the shares of the largest groups, with their intervals and their shares of the training images."""
    from dtrak.figures import credit

    of = scores.groups(by)
    of_training = dict(zip(of.names.tolist(), (of.sizes / scores.images).tolist(), strict=True))
    return credit(scores.credit(by), of_training, groups)


def plot_self_influence(
    scores: "Scores", each: int, classes: int, least: int | None, train: "Images | None"
) -> "PaperFigure":
    """Draw the most and least self-influential training images of each class."""
    from dtrak.figures import self_influence

    found = self_influence_by_class(scores, max(each, least or 0), classes)
    return self_influence(found, images(scores, train), least)


def images(scores: "Scores", train: "Images | None") -> "Images":
    """Return the training images in the order of the scores."""
    given = train if train is not None else scores.train
    if given is None:
        raise UsageError("these scores were read from a file, which has no images: give train=…")
    if scores.held is not None:
        return given  # matches have positions among all images
    return given.select(given.positions(scores.train_ids, "the scores"))


def _picture(of: "Images | None", position: int, lines: list[str]) -> str:
    from dtrak.figures.html_pictures import picture

    pixels = np.full((8, 8, 1), 200, np.uint8) if of is None else of.pixels([position])[0]
    return picture(pixels, lines)


def _lines(match: "Match") -> list[str]:
    """Return what is written below a training image: its score, its id and its class."""
    classes = [f"{column} {match.columns[column]}" for column in CLASS_COLUMNS if column in match.columns]
    return [number(match.score), str(match.id), *classes[:1]]
