"""What a method returns: a score for every training image and every query. Positive = proponent, one sign everywhere.

On disk, an .npz with `values`, `train_ids` and `query_ids`; the training images' columns lie beside them as
`train_column.NAME`, so that credit can be summed long after, and so does `self_influence` where a method has it.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError, UsageError
from dtrak.files import write_bytes, write_text
from dtrak.noise import stream

if TYPE_CHECKING:
    import pandas

COLUMN = "train_column."


@dataclass(frozen=True)
class Match:
    """One training image in answer to one query."""

    id: Any
    score: float
    position: int  # its place in the training set
    columns: dict[str, Any]


@dataclass(frozen=True)
class Credit:
    """A group's share of the positive influence, with its 95% interval over the queries."""

    group: Any
    share: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Scores:
    """values [Q, N] float32: how much training on image n lowers the loss of query q, up to one factor for all."""

    values: NDArray[np.float32]
    train_ids: NDArray[Any]
    query_ids: NDArray[Any]
    method: str
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of the training images, each [N]
    self_influence: NDArray[np.float32] | None = None  # [N], of the kernel: τ(x^n)_n, from 0 to 1

    def top(self, count: int = 5) -> list[list[Match]]:
        """For each query, the `count` strongest proponents, the strongest first."""
        return self._ranked(-self.values, count)

    def bottom(self, count: int = 3) -> list[list[Match]]:
        """For each query, the `count` strongest opponents, the strongest first."""
        return self._ranked(self.values, count)

    def _ranked(self, keys: NDArray[np.float32], count: int) -> list[list[Match]]:
        order = np.argsort(keys, axis=1, kind="stable")[:, :count]
        return [[self.match(int(n), float(self.values[query, n])) for n in row] for query, row in enumerate(order)]

    def match(self, n: int, score: float) -> Match:
        """The training image at place n, with a score."""
        columns = {name: values[n : n + 1].tolist()[0] for name, values in self.columns.items()}
        return Match(self.train_ids[n].item(), score, n, columns)

    def credit(self, by: str, resamples: int = 1000) -> list[Credit]:
        """Each group's share of the positive scores, the largest first.

        share_g = mean over queries of Σ_{n in g} max(τ_n, 0) / Σ_n max(τ_n, 0); the interval is that of a bootstrap
        over queries. Groups are the values of the column `by`.
        """
        groups, shares = self.shares(by)
        queries = len(shares)
        drawn = stream("credit").multinomial(queries, np.full(queries, 1 / queries), size=resamples)  # [R, Q]
        low, high = np.percentile(drawn @ shares / queries, [2.5, 97.5], axis=0)
        share = shares.mean(0)
        return [
            Credit(groups[g].item(), float(share[g]), float(low[g]), float(high[g]))
            for g in np.argsort(-share, kind="stable")
        ]

    def shares(self, by: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """The groups [G] that the column `by` has, and their shares of each query's positive scores [Q, G]."""
        groups, membership = np.unique(self.groups(by), return_inverse=True)
        positive = self.values.clip(min=0).astype(np.float64)
        sums = np.stack([positive[:, membership == g].sum(1) for g in range(len(groups))], axis=1)
        totals = sums.sum(1, keepdims=True)
        return groups, np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)

    def sizes(self, by: str) -> NDArray[np.int64]:
        """How many training images each of these groups has, [G]."""
        return np.unique(self.groups(by), return_counts=True)[1]

    def groups(self, by: str) -> NDArray[Any]:
        """The group of each training image [N]: its value in the column `by`."""
        if by not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UsageError(f"the training images have no column {by!r}: there is {known}")
        return _plain(self.columns[by])

    def to_pandas(self, top: int | None = None) -> "pandas.DataFrame":
        """A line for each query and training image, the strongest first: query, rank, train, score and the columns.

        `top` keeps so many lines for each query; all N if None.
        """
        import pandas

        order = np.argsort(-self.values, axis=1, kind="stable")[:, :top]  # [Q, top]
        queries, ranks = np.indices(order.shape)
        flat = order.ravel()
        return pandas.DataFrame(
            {
                "query": self.query_ids[queries.ravel()],
                "rank": ranks.ravel() + 1,
                "train": self.train_ids[flat],
                "score": self.values[queries.ravel(), flat],
                **{name: column[flat] for name, column in self.columns.items()},
            }
        )

    def to_csv(self, path: str | Path, top: int | None = None) -> None:
        """Write `to_pandas` as a .csv file."""
        write_text(Path(path), self.to_pandas(top).to_csv(index=False))

    def save(self, path: str | Path) -> None:
        save_scores(path, {self.method: self})

    @classmethod
    def load(cls, path: str | Path, method: str | None = None) -> "Scores":
        """Read the scores of one method; the file's only one if none is named."""
        found = load_scores(path)
        if method is None and len(found) == 1:
            return next(iter(found.values()))
        if method not in found:
            asked = "no method was named" if method is None else f"it has none of {method!r}"
            raise UsageError(f"{path} holds scores of {', '.join(found)}: {asked}")
        return found[method]


def save_scores(path: str | Path, scores: Mapping[str, Scores]) -> None:
    """Write the scores of one method, or of several over the same images with a leading axis and `methods`.

    A path that ends in .csv gets a table with the column `method` instead.
    """
    every = list(scores.values())
    if Path(path).suffix == ".csv":
        import pandas

        tables = [one.to_pandas().assign(method=one.method) for one in every]
        write_text(Path(path), pandas.concat(tables).to_csv(index=False))
        return
    first = every[0]
    arrays = {
        "values": first.values if len(every) == 1 else np.stack([one.values for one in every]),
        "train_ids": first.train_ids,
        "query_ids": first.query_ids,
        "methods": np.array([one.method for one in every]),
    }
    arrays |= {COLUMN + name: _plain(values) for name, values in first.columns.items()}
    if any(one.self_influence is not None for one in every):
        unknown = np.full(len(first.train_ids), np.nan, dtype=np.float32)
        rows = [unknown if one.self_influence is None else one.self_influence for one in every]
        arrays["self_influence"] = rows[0] if len(every) == 1 else np.stack(rows)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(Path(path), buffer.getvalue())


def load_scores(path: str | Path) -> dict[str, Scores]:
    """Read what `save_scores` wrote, by method."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        values = arrays["values"].reshape(-1, *arrays["values"].shape[-2:])
        methods = arrays["methods"].tolist() if "methods" in arrays else ["scores"]
        columns = {name.removeprefix(COLUMN): value for name, value in arrays.items() if name.startswith(COLUMN)}
        rows = arrays.get("self_influence", np.full((len(methods), values.shape[-1]), np.nan))
        on_itself = [None if np.isnan(row).all() else row for row in rows.reshape(len(methods), -1)]
        return {
            method: Scores(of_method, arrays["train_ids"], arrays["query_ids"], method, columns, own)
            for method, of_method, own in zip(methods, values, on_itself, strict=True)
        }
    except FileNotFoundError:
        raise UsageError(f"no scores at {path}") from None
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise DtrakError(f"{path} is not a file of scores: {error}") from error


def _plain(column: NDArray[Any]) -> NDArray[Any]:
    """Columns with gaps are arrays of objects, which neither sort nor store without pickle: they become text."""
    if column.dtype.kind != "O":
        return column
    return np.array(["" if value is None else str(value) for value in column])
