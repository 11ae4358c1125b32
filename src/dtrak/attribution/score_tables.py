"""Scores as tables: a line for each query and training image, for pandas and for spreadsheets."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.files import readable
from dtrak.spreadsheets import harmless, quoting

if TYPE_CHECKING:
    import pandas

    from dtrak.attribution.scores import Scores

COLUMN = "train_column."  # begins the name of a column of the training images in a file of scores
RESERVED = ("query", "rank", "train", "score", "method", "damping")  # heads that are no columns of the images


def frame(scores: "Scores", top: int | None) -> "pandas.DataFrame":
    """Return the lines of a table, the strongest `top` images of each query first."""
    import pandas

    order = scores.order(top)  # [Q, top]
    queries, ranks = (one.ravel() for one in np.indices(order.shape))
    at = order.ravel() if scores.held is None else (queries, order.ravel())
    return pandas.DataFrame(
        {
            "query": _texts(scores.query_ids, readable)[queries],
            "rank": ranks + 1,
            "train": _texts(scores.train_ids, readable)[at],
            "score": scores.values[queries, order.ravel()],
            **{_head(name): _texts(column, readable)[at] for name, column in scores.columns.items()},
        }
    )


def csv_text(scores: "Scores", top: int | None, header: bool, with_method: bool) -> str:
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


def _head(column: str) -> str:
    """Return the name that a column of the images has in a table."""
    return COLUMN + column if column in RESERVED else readable(column)


def _texts(array: NDArray[Any], change: Callable[[str], str]) -> NDArray[Any]:
    """Return the array with every text changed."""
    if array.dtype.kind not in "OU":
        return array
    changed = (change(one) if isinstance(one, str) else one for one in array.ravel().tolist())
    return np.fromiter(changed, dtype=np.object_).reshape(array.shape)
