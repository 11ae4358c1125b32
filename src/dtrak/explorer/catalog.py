"""A set of images to look through: found by id, searched by their columns, shown page by page."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.images.images import Images


@dataclass(frozen=True, eq=False)
class Entry:
    """One image of a catalog."""

    number: int  # that no other image of the catalog has or gets
    images: Images
    position: int  # its place among these
    id: str
    columns: dict[str, Any]
    text: str  # the id and the columns in lower case, which a search looks in


@dataclass(frozen=True, eq=False)
class Part:
    """Images that were added together, which are scored together."""

    images: Images
    entries: list[Entry]


class Catalog:
    """Images by id, in the order of their numbers.

    One thread adds and removes. Readers need no lock: what is added comes at the end, and where something is removed,
    new lists take the place of the old ones, which stay as they are for whoever reads them.
    """

    def __init__(self, title: str, *parts: Images) -> None:
        self.title = title
        self.parts: list[Part] = []
        self.entries: list[Entry] = []
        self.by_id: dict[str, Entry] = {}
        self.by_number: dict[int, Entry] = {}
        self._numbered = 0
        for part in parts:
            self.add(part)

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, images: Images) -> None:
        """Add images, unless they are there."""
        rows = plain_rows(images)
        if any(str(one) in self.by_id for one in images.ids):
            return
        part = Part(images, [])
        for position, id_ in enumerate(images.ids):
            text = "\n".join(map(str, (id_, *rows[position].values()))).lower()
            part.entries.append(Entry(self._numbered + position, images, position, str(id_), rows[position], text))
        self._numbered += len(images)
        self.by_id |= {entry.id: entry for entry in part.entries}
        self.by_number |= {entry.number: entry for entry in part.entries}
        self.entries += part.entries
        self.parts.append(part)

    def remove(self, entry: Entry) -> None:
        """Remove an image and those that were added with it."""
        self.parts = [part for part in self.parts if part.images is not entry.images]
        self.entries = [one for one in self.entries if one.images is not entry.images]
        self.by_id = {one.id: one for one in self.entries}
        self.by_number = {one.number: one for one in self.entries}

    def neighbours(self, entry: Entry) -> tuple[Entry | None, Entry | None]:
        """The images before and after it."""
        entries = self.entries[:]
        place = bisect_left(entries, entry.number, key=lambda one: one.number)
        after = bisect_left(entries, entry.number + 1, key=lambda one: one.number)
        return entries[place - 1] if place else None, entries[after] if after < len(entries) else None

    def found(self, search: str, label: str = "") -> list[Entry]:
        """Those that have every word of the search in their id or columns, and that label if one is given."""
        words = set(search.lower().split())
        return [
            entry
            for entry in [*self.entries]
            if all(word in entry.text for word in words) and (not label or str(entry.columns.get("label")) == label)
        ]


def plain_rows(images: Images) -> list[dict[str, Any]]:
    """The columns of each image, as JSON has them."""
    columns = {name: _plain(column) for name, column in images.columns.items()}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(images))]


def _plain(column: NDArray[Any]) -> list[Any]:
    """Numbers, text and truth stay as they are; what is missing is None; all else becomes text."""
    return [_as_json(value) for value in column.tolist()]


def _as_json(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


def labels(catalog: Catalog) -> Sequence[str]:
    """The values of the column `label`, as text, numbers in their order."""
    found = {entry.columns["label"] for entry in catalog.entries if entry.columns.get("label") is not None}
    numbers = all(isinstance(one, int | float) for one in found)
    return [str(one) for one in (sorted(found) if numbers else sorted(found, key=str))]
