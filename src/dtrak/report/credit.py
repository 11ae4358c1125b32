"""Credit: each group's share of the positive scores, over all pictures with an interval, and for each one of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.scores import Credit, Scores

GROUPS = 12  # at most so many of the largest are shown
CREDITED = ("artist", "label")  # the columns that say to whom an image is owed


@dataclass(frozen=True)
class Chart:
    """The credit of the largest groups by one method, each with its share of the training images for comparison."""

    column: str
    method: str
    bars: list[tuple[Credit, float]]
    others: list[Credit]
    groups: list[tuple[str, float]]  # every group's name and its share of the training images, in percent
    by_query: list[list[tuple[int, float]]]  # for each picture shown, its largest groups by place, and their shares

    @property
    def end(self) -> float:
        """The share at which the bars' scale ends."""
        return max(max(credit.high, of_training) for credit, of_training in self.bars)


def charts(scores: Mapping[str, Scores], queries: int) -> list[Chart]:
    """By every column that there is and every method; alone for the first so many `queries`."""
    return [_chart(one, column, queries) for column in CREDITED for one in scores.values() if column in one.columns]


def _chart(scores: Scores, column: str, queries: int) -> Chart:
    credits = scores.credit(column)
    names, shares = scores.shares(column)
    of_training = dict(zip(names.tolist(), (scores.sizes(column) / len(scores.train_ids)).tolist(), strict=True))
    bars = [(credit, of_training[credit.group]) for credit in credits[:GROUPS]]
    groups = [(str(name), round(100 * share, 2)) for name, share in of_training.items()]
    return Chart(column, scores.method, bars, credits[GROUPS:], groups, [_largest(row) for row in shares[:queries]])


def _largest(shares: NDArray[np.float64]) -> list[tuple[int, float]]:
    """The places of the largest of one picture's shares [G], and what they are in percent, the largest first."""
    return [(int(g), round(100 * float(shares[g]), 1)) for g in np.argsort(-shares, kind="stable")[:GROUPS]]
