"""Sets of images that the page lists: find an image by its id or number, search ids and columns, describe them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrak.contracts import Array
from dtrak.images.images import Images


@dataclass(frozen=True, eq=False)
class Entry:
    """One image of a catalog."""

    number: int  # no other image of the catalog ever gets the same
    images: Images
    position: int  # in `images`
    id: str
    columns: dict[str, Any]
    text: str = ""  # the id and the columns in lower case, for searches

    def described(self) -> dict[str, Any]:
        return {"id": self.id, "number": self.number, "columns": self.columns}


@dataclass(frozen=True, eq=False)
class Part:
    """Images that were added together, and are scored together."""

    images: Images
    entries: list[Entry]


class Catalog:
    """A set of images, in the order of their numbers.

    Only one thread may add and remove images. Others may read without a lock: `add` appends to the lists, and `remove`
    replaces them by new ones and leaves the old ones unchanged.
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
        """Add images, unless one of them is in the catalog already."""
        if any(str(one) in self.by_id for one in images.ids):
            return
        named = {name: [as_json(value) for value in column.tolist()] for name, column in images.columns.items()}
        part = Part(images, [])
        for position, id_ in enumerate(images.ids):
            columns = {name: column[position] for name, column in named.items()}
            text = "\n".join(map(str, (id_, *columns.values()))).lower()
            part.entries.append(Entry(self._numbered + position, images, position, str(id_), columns, text))
        self._numbered += len(images)
        self.by_id |= {entry.id: entry for entry in part.entries}
        self.by_number |= {entry.number: entry for entry in part.entries}
        self.entries += part.entries
        self.parts.append(part)

    def remove(self, entry: Entry) -> None:
        """Remove an image and all that were added together with it."""
        self.parts = [part for part in self.parts if part.images is not entry.images]
        self.entries = [one for one in self.entries if one.images is not entry.images]
        self.by_id = {one.id: one for one in self.entries}
        self.by_number = {one.number: one for one in self.entries}

    def neighbours(self, entry: Entry) -> dict[str, str | None]:
        """Return the ids of the images before and after this one, which may have been removed."""
        entries = self.entries[:]
        before = bisect_left(entries, entry.number, key=lambda one: one.number)
        after = bisect_left(entries, entry.number + 1, key=lambda one: one.number)
        return {
            "previous": entries[before - 1].id if before else None,
            "next": entries[after].id if after < len(entries) else None,
        }

    def search(self, text: str, label: str = "") -> list[Entry]:
        """Return the images that have every word of the text in their id or columns, and the label if one is given."""
        words = set(text.lower().split())
        return [
            entry
            for entry in [*self.entries]
            if all(word in entry.text for word in words) and (not label or str(entry.columns.get("label")) == label)
        ]

    def labels(self) -> list[str]:
        """Return the values of the column `label` as sorted texts; numbers are sorted by size."""
        found = {entry.columns["label"] for entry in self.entries if entry.columns.get("label") is not None}
        numbers = all(isinstance(one, int | float) for one in found)
        return [str(one) for one in (sorted(found) if numbers else sorted(found, key=str))]


def as_json(value: Any) -> Any:
    """Keep numbers, texts and booleans; missing values and infinite numbers become None, everything else a text."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


def strongest(entries: Sequence[Entry], keys: Array, count: int, sign: int = 1) -> list[dict[str, Any]]:
    """Describe the entries with the largest positive keys, the largest first; their score is `sign` × key."""
    order = np.argsort(-keys, kind="stable")[:count]
    return [entries[n].described() | {"score": sign * float(keys[n])} for n in order if keys[n] > 0]
