"""Scores on disk: an .npz file, or a table with a line for each query and training image.

The .npz file has `values`, `train_ids`, `query_ids` and `methods`. It also has the columns of the training images as
`train_column.NAME`, so that credit can be computed later, `self_influence` if a method has it, the λ that was used as
`damping` (relative, absolute, directions kept, rank) with its `damping_rule`, and as `question` what was asked, in
JSON. If only the strongest are held, it has their places among all `images` as `positions` [Q, H], and the sums of
`top_scores.py`.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.top_scores import check_array, held_arrays, held_of
from dtrak.files import readable, write_bytes, write_text
from dtrak.images.metadata import plain_column
from dtrak.kernels.damping import UsedDamping
from dtrak.tables import harmless, quoting

if TYPE_CHECKING:
    import pandas

    from dtrak.attribution.scores import Scores

COLUMN = "train_column."  # begins the name of a column of the training images
RESERVED = ("query", "rank", "train", "score", "method", "damping")  # heads that are no columns of the images
ANY = "biufcSUmM"  # the kinds of arrays that a column may have


def write_scores(path: Path, every: "Sequence[Scores]") -> None:
    """Write the scores of one method, or of several methods for the same images, stacked along a new first axis."""
    if path.suffix.lower() == ".csv":
        tables = [csv_text(one, None, header=number == 0, with_method=True) for number, one in enumerate(every)]
        write_text(path, "".join(tables))
        return
    first, held = every[0], [one.held for one in every if one.held is not None]

    def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        return arrays[0] if len(every) == 1 else np.stack(arrays)

    def of_images(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        """The same images for all methods, or each method's own strongest."""
        return joined(arrays) if held else arrays[0]

    arrays = {
        "values": joined([one.values for one in every]),
        "train_ids": of_images([one.train_ids for one in every]),
        "query_ids": first.query_ids,
        "methods": np.array([one.method for one in every]),
        **{COLUMN + name: of_images([plain_column(one.columns[name]) for one in every]) for name in first.columns},
        **(held_arrays(held) if held else {}),
    }
    if any(one.self_influence is not None for one in every):
        unknown = np.full(first.images, np.nan, dtype=np.float32)
        arrays["self_influence"] = joined(
            [unknown if one.self_influence is None else one.self_influence for one in every]
        )
    if any(one.damping is not None for one in every):
        known = [one.damping or UsedDamping("", np.nan, np.nan, np.nan, 0) for one in every]
        arrays["damping"] = np.array([[one.relative, one.absolute, one.kept, one.rank] for one in known])
        arrays["damping_rule"] = np.array([one.rule for one in known])
    if first.question is not None:
        arrays["question"] = np.array(json.dumps(first.question))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getvalue())


def fields_by_method(arrays: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Return the fields of `Scores` of each method; raise a ValueError that names an array which does not fit."""
    for name in ("values", "train_ids", "query_ids"):
        if name not in arrays:
            raise ValueError(f"it has no array {name!r}")
    values, query_ids = np.asarray(arrays["values"]), np.asarray(arrays["query_ids"])
    methods = np.asarray(arrays.get("methods", np.array(["scores"])))
    count, queries = len(np.unique(methods)), query_ids.size
    has_all = "positions" not in arrays
    of_images = (arrays["train_ids"].size,) if has_all else (count, queries, values.shape[-1] if values.ndim else 0)
    columns = [name for name in arrays if name.startswith(COLUMN)]
    unknown = {
        "methods": methods,
        "damping": np.full((count, 4), np.nan),
        "damping_rule": np.full(count, ""),
        "self_influence": np.full((count, *of_images[-1:]), np.nan, dtype=np.float32),
    }
    found = {name: np.asarray(array) for name, array in {**unknown, **arrays}.items()}
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "values": ("f", (count, queries, of_images[-1])),
        "train_ids": ("iuU", of_images),
        "query_ids": ("iuU", (queries,)),
        "methods": ("U", (count,)),
        "damping": ("f", (count, 4)),
        "damping_rule": ("U", (count,)),
        **({"self_influence": ("f", (count, *of_images))} if has_all else {}),
        **dict.fromkeys(columns, (ANY, of_images)),
    }
    for name, (kinds, shape) in wanted.items():
        check_array(name, found[name], kinds, shape)

    def of_each(name: str) -> list[NDArray[Any]]:
        """The array of each method."""
        _, shape = wanted[name]
        return [found[name]] * count if shape == of_images and has_all else [*found[name].reshape(count, *shape[1:])]

    held = [None] * count if has_all else held_of(found, count, queries, of_images[-1])
    question = _question(found["question"]) if "question" in found else None
    plain = {name.removeprefix(COLUMN): of_each(name) for name in columns}
    on_itself = of_each("self_influence") if has_all else [np.array([np.nan])] * count
    rules = found["damping_rule"].tolist()
    return {
        method: {
            "values": of_each("values")[m],
            "train_ids": of_each("train_ids")[m],
            "query_ids": query_ids,
            "columns": {name: of_methods[m] for name, of_methods in plain.items()},
            "self_influence": None if np.isnan(on_itself[m]).all() else on_itself[m],
            "damping": _used(rules[m], of_each("damping")[m].tolist()),
            "held": held[m],
            "question": question,
        }
        for m, method in enumerate(methods.tolist())
    }


def read_question(path: Path) -> dict[str, Any] | None:
    """Return the question of a file of scores; None if there is no such file, or if it does not say."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return _question(file["question"])
    except Exception:  # damaged files raise a dozen kinds of errors, which `load_scores` tells
        return None


def _question(array: NDArray[Any]) -> dict[str, Any]:
    """Return what was asked; raise a ValueError if the array does not say."""
    try:
        found: dict[str, Any] = json.loads(str(array))
        given, facts = found["given"], found["facts"]
        parts = [one[name] for one in (given, facts) for name in ("model", "train", "queries", "settings")]
        if all(isinstance(one, dict) for one in (*parts, facts["methods"])) and isinstance(given["methods"], list):
            return found
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise ValueError("it does not say what was asked")


def _used(rule: str, row: list[float]) -> UsedDamping | None:
    return UsedDamping(rule, row[0], row[1], row[2], int(row[3])) if rule and np.isfinite(row).all() else None


def frame(scores: "Scores", top: int | None) -> "pandas.DataFrame":
    """Return the lines of a table, the strongest `top` images of each query first."""
    import pandas

    order = scores.order(top)  # [Q, top]
    queries, ranks = (one.ravel() for one in np.indices(order.shape))
    at = order.ravel() if scores.held is None else (queries, order.ravel())
    heads = {name: COLUMN + name if name in RESERVED else readable(name) for name in scores.columns}
    return pandas.DataFrame(
        {
            "query": _texts(scores.query_ids, readable)[queries],
            "rank": ranks + 1,
            "train": _texts(scores.train_ids, readable)[at],
            "score": scores.values[queries, order.ravel()],
            **{heads[name]: _texts(column, readable)[at] for name, column in scores.columns.items()},
        }
    )


def csv_text(scores: "Scores", top: int | None, header: bool = True, with_method: bool = False) -> str:
    """Return the table as CSV, with text that a spreadsheet does not run, and with λ ÷ the mean eigenvalue."""
    safe = replace(
        scores,
        train_ids=_texts(scores.train_ids, harmless),
        query_ids=_texts(scores.query_ids, harmless),
        columns={harmless(name): _texts(column, harmless) for name, column in scores.columns.items()},
    )
    table = frame(safe, top)
    if scores.damping is not None:
        table = table.assign(damping=float(f"{scores.damping.relative:.6g}"))
    if with_method:
        table = table.assign(method=harmless(scores.method))
    texts = [
        one for array in (safe.train_ids, safe.query_ids, *safe.columns.values()) for one in array.ravel().tolist()
    ]
    how = quoting(str(one) for one in [*texts, *safe.columns])
    return str(table.to_csv(index=False, header=header, quoting=how))


def _texts(array: NDArray[Any], change: Callable[[str], str]) -> NDArray[Any]:
    """Return the array with every text changed."""
    if array.dtype.kind not in "OU":
        return array
    changed = (change(one) if isinstance(one, str) else one for one in array.ravel().tolist())
    return np.fromiter(changed, dtype=np.object_).reshape(array.shape)
