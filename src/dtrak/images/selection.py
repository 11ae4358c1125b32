"""Some of a source's images: of certain classes only, and of them so many, drawn by a seed.

A `count` is drawn with scikit-learn's `train_test_split`, the same share of every class, as the paper's authors drew
theirs: with their seed, 42, these are their images in their order.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dtrak.errors import UsageError
from dtrak.sections import Positive, Section, Seed

Rows = NDArray[np.int64]


class Selection(Section):
    """Some of a source's images: of these classes only, and of them so many, drawn by a seed."""

    classes: Annotated[list[str], Field(min_length=1)] | None = None  # by the column `label`; all if None
    count: Positive | None = None  # in all, the same share of every class
    per_class: Positive | None = None  # or so many of each class
    seed: Seed = 0

    @property
    def stated(self) -> int | None:
        """How many images that is, where it can be said without looking."""
        if self.per_class is not None and self.classes is not None:
            return self.per_class * len(self.classes)
        return self.count

    @model_validator(mode="after")
    def _one_number(self) -> "Selection":
        if self.count is not None and self.per_class is not None:
            raise ValueError(f"a selection has count {self.count} and per_class {self.per_class}: give one of them")
        return self


def chosen_rows(labels: NDArray[np.generic] | None, total: int, selection: Selection, source: str) -> Rows:
    """The rows of the chosen images, [B], in the order in which they were drawn; of all of them, in the source's.

    `labels` [total] are the classes of the images, if they have any.
    """
    rows, named = np.arange(total), None if labels is None else labels.astype(str)
    if selection.classes is not None:
        rows = _of_classes(named, selection.classes, source)
    if selection.per_class is not None:
        return _of_each(rows, named, selection.per_class, selection.seed, source)
    count = len(rows) if selection.count is None else selection.count
    if count > len(rows):
        raise UsageError(f"{source} has {len(rows):,} images to select from, but select.count is {count:,}")
    return rows if count == len(rows) else _in_all(rows, named, count, selection.seed, source)


def _of_classes(labels: NDArray[np.str_] | None, classes: Sequence[str], source: str) -> Rows:
    if labels is None:
        raise UsageError(f"{source} says nothing of its images' classes, by which select.classes would choose")
    known = sorted(set(labels.tolist()))
    for name in classes:
        if name not in known:
            raise UsageError(f"select.classes: {source} has no class {name!r}, only {', '.join(known)}")
    return np.flatnonzero(np.isin(labels, classes))


def _in_all(rows: Rows, labels: NDArray[np.str_] | None, count: int, seed: int, source: str) -> Rows:
    from sklearn.model_selection import train_test_split  # slow to load

    classes = None if labels is None else labels[rows]
    try:
        drawn, _ = train_test_split(rows, train_size=count, random_state=seed, stratify=classes)
    except ValueError as error:  # a class too small to be divided
        raise UsageError(f"{source}: select.count {count:,} takes no equal share of its classes: {error}") from None
    return np.asarray(drawn)


def _of_each(rows: Rows, labels: NDArray[np.str_] | None, count: int, seed: int, source: str) -> Rows:
    if labels is None:
        raise UsageError(f"{source} says nothing of its images' classes, of each of which select.per_class takes some")
    random, drawn = np.random.default_rng(seed), []
    for name in np.unique(labels[rows]):
        members = rows[labels[rows] == name]
        if count > len(members):
            raise UsageError(f"{source} has {len(members):,} images of {name}, but select.per_class is {count:,}")
        drawn.append(random.permutation(members)[:count])
    return random.permutation(np.concatenate(drawn))
