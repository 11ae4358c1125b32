"""Credit: each group's share of the positive scores, over all pictures with an interval, and for each one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dtrak.scores import Credit, Scores

GROUPS = 12  # at most so many of the largest are shown
CREDITED = ("artist", "label")  # the columns that say to whom an image is owed


@dataclass(frozen=True)
class Chart:
    """The credit of the largest groups by one method, each with its share of the training images for comparison."""

    column: str
    method: str
    bars: list[tuple[Credit, float]]
    others: list[Credit]
    by_query: list[list[float]]  # for each picture shown, the share of each bar and then of all others, in percent

    @property
    def end(self) -> float:
        """The share at which the bars' scale ends."""
        return max(max(credit.high, of_training) for credit, of_training in self.bars)


def charts(scores: Mapping[str, Scores], queries: int) -> list[Chart]:
    """By every column that there is and every method; alone for the first so many `queries`."""
    return [_chart(one, column, queries) for column in CREDITED for one in scores.values() if column in one.columns]


def _chart(scores: Scores, column: str, queries: int) -> Chart:
    credits = scores.credit(column)
    groups, shares = scores.shares(column)
    places = {group: place for place, group in enumerate(groups.tolist())}
    of_bars = 100 * shares[:queries, [places[credit.group] for credit in credits[:GROUPS]]]
    with_others = np.c_[of_bars, 100 * shares[:queries].sum(1) - of_bars.sum(1)].clip(min=0)
    of_training = [float(np.mean(scores.groups(column) == credit.group)) for credit in credits[:GROUPS]]
    return Chart(
        column,
        scores.method,
        list(zip(credits, of_training, strict=False)),
        credits[GROUPS:],
        with_others.round(1).tolist(),
    )
