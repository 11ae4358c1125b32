"""Describe images for the page: pages of lists, neighbours, and the strongest."""

from typing import Any

import numpy as np

from dtrak.contracts import Values
from dtrak.explorer.catalog import Catalog, Entry


def listed(entries: list[Entry], page: int, size: int) -> dict[str, Any]:
    """Return one page of a list of images; pages are counted from 0."""
    page = min(page, max(0, len(entries) - 1) // size)  # the last page, if there are not so many
    shown = entries[page * size : (page + 1) * size]
    return {"total": len(entries), "page": page, "size": size, "items": [described(one) for one in shown]}


def described(entry: Entry) -> dict[str, Any]:
    """Describe an image."""
    return {"id": entry.id, "number": entry.number, "columns": entry.columns}


def neighbours(catalog: Catalog, entry: Entry) -> dict[str, str | None]:
    """Return the ids of the images before and after this one."""
    before, after = catalog.neighbours(entry)
    return {"previous": None if before is None else before.id, "next": None if after is None else after.id}


def strongest(entries: list[Entry], keys: Values, count: int, sign: int = 1) -> list[dict[str, Any]]:
    """Describe the entries with the largest positive keys, the largest first; their score is `sign` × key."""
    order = np.argsort(-keys, kind="stable")[:count]
    return [described(entries[n]) | {"score": sign * float(keys[n])} for n in order if keys[n] > 0]
