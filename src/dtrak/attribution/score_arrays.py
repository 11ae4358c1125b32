"""Read scores from the arrays of a file, and refuse arrays that do not fit each other."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.held import check_array, held_of
from dtrak.attribution.score_tables import COLUMN
from dtrak.attribution.used_damping import UsedDamping

Fields = dict[str, Any]  # the fields of `Scores`, but for the method


def fields_by_method(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Fields]:
    """Return what `Scores` of each method are made of; raise a ValueError that names an array which does not fit."""
    return _of_strongest(arrays) if "positions" in arrays else _of_all(arrays)


def _of_all(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Fields]:
    """Return the scores that a file's arrays hold; raise a ValueError that names an array which does not fit."""
    values, train_ids, query_ids = (_array(arrays, name) for name in ("values", "train_ids", "query_ids"))
    methods = _array(arrays, "methods") if "methods" in arrays else np.array(["scores"])
    columns = {name: value for name, value in arrays.items() if name.startswith(COLUMN)}
    count, queries, train = len(np.unique(methods)), query_ids.size, train_ids.size
    shapes: list[tuple[int, ...]] = [(queries, train)] * (count == 1) + [(count, queries, train)]
    unknown = np.full((count, train), np.nan, dtype=np.float32)
    itself = np.asarray(arrays.get("self_influence", unknown))
    dampings, rules = _dampings(arrays, count)
    wanted: dict[str, tuple[NDArray[Any], str, list[tuple[int, ...]]]] = {
        "values": (values, "f", shapes),
        "train_ids": (train_ids, "iuU", [(train,)]),
        "query_ids": (query_ids, "iuU", [(queries,)]),
        "methods": (methods, "U", [(count,)]),
        "self_influence": (itself, "f", [(train,)] * (count == 1) + [(count, train)]),
        "damping": (dampings, "f", [(count, 4)]),
        "damping_rule": (rules, "U", [(count,)]),
        **{name: (column, "biufcSUmM", [(train,)]) for name, column in columns.items()},
    }
    for name, (array, kinds, right) in wanted.items():
        check_array(name, array, kinds, right)
    plain = {name.removeprefix(COLUMN): column for name, column in columns.items()}
    on_itself = [None if np.isnan(row).all() else row for row in itself.reshape(count, train)]
    used = _used(dampings, rules)
    shared = {"train_ids": train_ids, "query_ids": query_ids, "columns": plain}
    return {
        method: {"values": of_method, "self_influence": own, "damping": damping, **shared}
        for method, of_method, own, damping in zip(
            methods.tolist(), values.reshape(count, queries, train), on_itself, used, strict=True
        )
    }


def _of_strongest(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Fields]:
    """Do the same for a file that holds only the strongest of each query."""
    values, query_ids, methods = (_array(arrays, name) for name in ("values", "query_ids", "methods"))
    count, queries, width = len(np.unique(methods)), query_ids.size, values.shape[-1] if values.ndim else 0
    columns = {name: value for name, value in arrays.items() if name.startswith(COLUMN)}
    shapes: list[tuple[int, ...]] = [(queries, width)] * (count == 1) + [(count, queries, width)]
    kinds = {"values": "f", "train_ids": "iuU", **dict.fromkeys(columns, "biufcSUmM")}
    for name, kind in kinds.items():
        check_array(name, _array(arrays, name), kind, shapes)
    if query_ids.dtype.kind not in "iuU" or query_ids.ndim != 1 or methods.dtype.kind != "U" or methods.ndim != 1:
        raise ValueError("query_ids and methods do not fit the other arrays")
    of_each = {name: _array(arrays, name).reshape(count, queries, width) for name in kinds}
    dampings, rules = _dampings(arrays, count)
    if dampings.shape != (count, 4) or dampings.dtype.kind != "f" or rules.shape != (count,) or rules.dtype.kind != "U":
        raise ValueError("damping and damping_rule do not fit the other arrays")
    found = held_of(arrays, count, (queries, width))
    return {
        method: {
            "values": of_each["values"][m],
            "train_ids": of_each["train_ids"][m],
            "query_ids": query_ids,
            "columns": {name.removeprefix(COLUMN): of_each[name][m] for name in columns},
            "damping": damping,
            "held": held,
        }
        for m, (method, held, damping) in enumerate(zip(methods.tolist(), found, _used(dampings, rules), strict=True))
    }


def _dampings(arrays: Mapping[str, NDArray[Any]], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the λ of each method, [methods, 4], and their rules, [methods]; NaN and "" where they are not known."""
    unknown, none = np.full((count, 4), np.nan), np.full(count, "")
    return np.asarray(arrays.get("damping", unknown)), np.asarray(arrays.get("damping_rule", none))


def _used(dampings: NDArray[Any], rules: NDArray[Any]) -> list[UsedDamping | None]:
    return [
        UsedDamping(rule, row[0], row[1], row[2], int(row[3])) if rule and np.isfinite(row).all() else None
        for rule, row in zip(rules.tolist(), dampings.tolist(), strict=True)
    ]


def _array(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"it has no array {name!r}")
    return np.asarray(arrays[name])
