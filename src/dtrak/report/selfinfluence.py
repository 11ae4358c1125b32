"""Self-influence: the training images that the model owes most and least to themselves, class by class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.scores import Match, Scores
from dtrak.report.proponents import class_column

CLASSES, EACH = 12, 4  # at most so many of the largest classes, and so many images of each at either end


@dataclass(frozen=True)
class Class:
    name: Any
    count: int
    most: list[Match]  # the highest first
    least: list[Match]  # the lowest first


@dataclass(frozen=True)
class SelfInfluence:
    """Of one method's kernel."""

    method: str
    column: str | None  # that has the classes; None if all images are one
    classes: list[Class]
    left_out: int  # classes that are not shown
    middle: float  # the median over all training images

    @property
    def train_positions(self) -> set[int]:
        return {match.position for one in self.classes for match in one.most + one.least}

    @property
    def highest(self) -> float:
        """The length of the bars is relative to this."""
        return max(match.score for one in self.classes for match in one.most)


def self_influences(scores: Mapping[str, Scores]) -> list[SelfInfluence]:
    """Of each method that has it; methods that share a kernel have the same, which is shown once."""
    different: dict[bytes, Scores] = {}
    for one in scores.values():
        if one.self_influence is not None:
            different.setdefault(one.self_influence.tobytes(), one)
    return [self_influence_by_class(one) for one in different.values()]


def self_influence_by_class(scores: Scores, each: int = EACH, classes: int = CLASSES) -> SelfInfluence:
    """The `each` most and least self-influential images of the largest `classes`."""
    assert scores.self_influence is not None
    column = class_column(scores)
    groups = np.zeros(len(scores.train_ids)) if column is None else scores.groups(column)
    names, counts = np.unique(groups, return_counts=True)
    largest = np.sort(np.argsort(-counts, kind="stable")[:classes])
    found = [
        Class(names[g].item(), int(counts[g]), *_ends(scores, np.flatnonzero(groups == names[g]), each))
        for g in largest
    ]
    middle = float(np.median(scores.self_influence))
    return SelfInfluence(scores.method, column, found, len(names) - len(found), middle)


def _ends(scores: Scores, members: NDArray[np.int64], each: int) -> tuple[list[Match], list[Match]]:
    """The members with the highest and with the lowest self-influence; none is both."""
    own = scores.self_influence
    assert own is not None
    rising = members[np.argsort(own[members], kind="stable")]
    each = min(each, len(rising) // 2) or 1
    most, least = rising[::-1][:each], rising[: min(each, len(rising) - each)]
    return [scores.match(int(n), float(own[n])) for n in most], [scores.match(int(n), float(own[n])) for n in least]
