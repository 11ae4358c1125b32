"""The section on credit: each group's share of the positive scores with its interval, for all pictures and for one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.credit import Credit
from dtrak.attribution.scores import Scores

MAX_GROUPS = 12  # that are shown, the largest ones
CREDIT_COLUMNS = ("artist", "label")  # the columns whose values are groups


@dataclass(frozen=True)
class Chart:
    """The credit of groups by one method."""

    column: str
    method: str
    bars: list[tuple[Credit, float]]  # the largest groups, with their share of the training images
    others: list[Credit]  # the groups without a bar
    groups: list[tuple[str, float]]  # all groups, with their share of the training images in percent
    by_query: list[list[tuple[int, float, float, float]]]  # for each shown picture: index in `groups`, percents

    @property
    def end(self) -> float:
        """Return the share at which the scale of the bars ends."""
        return max(max(credit.high, of_training) for credit, of_training in self.bars)


def charts(scores: Mapping[str, Scores], queries: int) -> list[Chart]:
    """Return a chart for every credit column of the images and every method.

    A chart also has the credit for each of the first `queries` pictures alone.
    """
    return [
        _chart(one, column, queries)
        for column in CREDIT_COLUMNS
        for one in scores.values()
        if column in one.credit_columns
    ]


def _chart(scores: Scores, column: str, queries: int) -> Chart:
    credits = scores.credit(column)
    found = scores.groups(column)
    names, shares, intervals = found.names, found.shares, found.intervals
    of_training = dict(zip(names.tolist(), (found.sizes / scores.images).tolist(), strict=True))
    bars = [(credit, of_training[credit.group]) for credit in credits[:MAX_GROUPS]]
    groups = [(str(name), round(100 * share, 2)) for name, share in of_training.items()]
    by_query = [_largest(*of_query) for of_query in zip(shares[:queries], intervals[:queries], strict=True)]
    return Chart(column, scores.method, bars, credits[MAX_GROUPS:], groups, by_query)


def _largest(shares: NDArray[np.float64], intervals: NDArray[np.float64]) -> list[tuple[int, float, float, float]]:
    """Return the largest of one picture's shares [G] with their intervals [G, 2]: index and percents, largest first."""
    percents = np.round(100 * np.column_stack([shares, intervals]), 1)
    return [(int(g), *percents[g].tolist()) for g in np.argsort(-shares, kind="stable")[:MAX_GROUPS]]
