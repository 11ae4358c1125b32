"""The most and least self-influential training images of each class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError

if TYPE_CHECKING:
    from dtrak.attribution.scores import Match, Scores

CLASS_COLUMNS = ("label", "artist")  # the first of these that the images have sorts them into classes
MAX_CLASSES = 12  # that are shown, the largest ones
EACH = 4  # images of a class with the highest, and with the lowest, self-influence


@dataclass(frozen=True)
class Class:
    """One class of training images."""

    name: Any
    count: int
    most: list["Match"]  # the highest first
    least: list["Match"]  # the lowest first


@dataclass(frozen=True)
class SelfInfluence:
    """The self-influence of training images by one method."""

    method: str
    column: str | None  # the column that has the classes; None if all images are one class
    classes: list[Class]
    left_out: int  # how many classes are not shown
    middle: float  # the median over all training images

    @property
    def train_positions(self) -> set[int]:
        """Return the positions of the training images that are shown."""
        return {match.position for one in self.classes for match in one.most + one.least}

    @property
    def highest(self) -> float:
        """Return the highest self-influence; the bars are relative to it."""
        return max(match.score for one in self.classes for match in one.most)


def self_influences(scores: Mapping[str, "Scores"]) -> list[SelfInfluence]:
    """Return the self-influence of each method that has it; methods with the same kernel have the same, only once."""
    different: dict[bytes, Scores] = {}
    for one in scores.values():
        if one.self_influence is not None:
            different.setdefault(one.self_influence.tobytes(), one)
    return [self_influence_by_class(one) for one in different.values()]


def self_influence_by_class(scores: "Scores", each: int = EACH, classes: int = MAX_CLASSES) -> SelfInfluence:
    """Return the `each` most and least self-influential images of the largest `classes`."""
    if scores.self_influence is None:
        raise UsageError(f"{scores.method} has no self-influence: methods with a kernel do, such as d-trak")
    column = class_column(scores)
    groups = np.zeros(len(scores.train_ids)) if column is None else scores.column(column)
    names, counts = np.unique(groups, return_counts=True)
    largest = np.sort(np.argsort(-counts, kind="stable")[:classes])
    found = [
        Class(names[g].item(), int(counts[g]), *_ends(scores, np.flatnonzero(groups == names[g]), each))
        for g in largest
    ]
    middle = float(np.median(scores.self_influence))
    return SelfInfluence(scores.method, column, found, len(names) - len(found), middle)


def class_column(scores: "Scores") -> str | None:
    """Return the column that has the classes of the training images, if there is one."""
    return next((column for column in CLASS_COLUMNS if column in scores.columns), None)


def _ends(scores: "Scores", members: NDArray[np.int64], each: int) -> "tuple[list[Match], list[Match]]":
    """Return the members with the highest and those with the lowest self-influence; no image is in both lists."""
    values = scores.self_influence
    assert values is not None
    rising = members[np.argsort(values[members], kind="stable")]
    each = min(each, len(rising) // 2) or 1
    most, least = rising[::-1][:each], rising[: min(each, len(rising) - each)]

    def matches(rows: NDArray[np.int64]) -> list["Match"]:
        return [scores.match(int(n), float(values[n])) for n in rows]

    return matches(most), matches(least)
