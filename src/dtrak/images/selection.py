"""Select some of a source's images: certain classes, and a number of images drawn at random with a seed.

A `count` is drawn with scikit-learn's `train_test_split`, the same share of every class, as the paper's authors did.
With their seed, 42, this gives their images in their order.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dtrak.checks import Positive, Section, Seed
from dtrak.errors import UsageError

Rows = NDArray[np.int64]


class Selection(Section):
    """Which of a source's images are selected: certain classes, and a number of images drawn with a seed."""

    classes: Annotated[list[str], Field(min_length=1)] | None = None  # by the column `label`; all if None
    count: Positive | None = None  # in all, the same share of every class
    per_class: Positive | None = None  # or so many of each class
    seed: Seed = 0

    @property
    def known_count(self) -> int | None:
        """The number of selected images, or None if it depends on the source."""
        if self.per_class is not None and self.classes is not None:
            return self.per_class * len(self.classes)
        return self.count

    @model_validator(mode="after")
    def _one_number(self) -> "Selection":
        if self.count is not None and self.per_class is not None:
            raise ValueError(f"a selection has count {self.count} and per_class {self.per_class}: give one of them")
        return self


def chosen_rows(labels: NDArray[np.generic] | None, total: int, selection: Selection, source: str) -> Rows:
    """Return the rows [B] of the selected images, in the order in which they were drawn, else in the source's order.

    `labels` [total] are the classes of the images, if they have any.
    """
    classes, count, per_class, seed = selection.classes, selection.count, selection.per_class, selection.seed
    rows, named = np.arange(total), None if labels is None else labels.astype(str)
    if classes is not None:
        if named is None:
            raise UsageError(f"{source} has no labels, but select.classes selects by label")
        known = sorted(set(named.tolist()))
        for name in classes:
            if name not in known:
                raise UsageError(f"select.classes: {source} has no class {name!r}, only {', '.join(known)}")
        rows = np.flatnonzero(np.isin(named, classes))
    if per_class is not None:
        if named is None:
            raise UsageError(f"{source} has no labels, but select.per_class selects some images of each label")
        random, drawn = np.random.default_rng(seed), []
        for name in np.unique(named[rows]):
            members = rows[named[rows] == name]
            if per_class > len(members):
                raise UsageError(
                    f"{source} has {len(members):,} images of {name}, but select.per_class is {per_class:,}"
                )
            drawn.append(random.permutation(members)[:per_class])
        return random.permutation(np.concatenate(drawn))
    if count is None or count == len(rows):
        return rows
    if count > len(rows):
        raise UsageError(f"{source} has {len(rows):,} images to select from, but select.count is {count:,}")
    from sklearn.model_selection import train_test_split  # slow to load

    try:
        of_each = None if named is None else named[rows]
        return np.asarray(train_test_split(rows, train_size=count, random_state=seed, stratify=of_each)[0])
    except ValueError as error:  # a class is too small to be divided
        raise UsageError(f"{source}: select.count {count:,}: no equal share of every class: {error}") from None
