"""Scores: one number for every training image and every query. A positive score marks a proponent, for all methods.

On disk, scores are an .npz file with `values`, `train_ids` and `query_ids`. It also has the columns of the training
images as `train_column.NAME`, so that credit can be computed later, and `self_influence` if the method has it.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError, UsageError
from dtrak.files import readable, write_bytes, write_text
from dtrak.images.metadata import plain_column
from dtrak.noise import stream
from dtrak.spreadsheets import harmless, quoting

if TYPE_CHECKING:
    import pandas

COLUMN = "train_column."
RESERVED = ("query", "rank", "train", "score", "method")  # the heads of a table that are not columns of images


@dataclass(frozen=True)
class Match:
    """A training image with its score for a query."""

    id: Any
    score: float
    position: int  # its index in the training set
    columns: dict[str, Any]


@dataclass(frozen=True)
class Credit:
    """A group's share of the positive influence, with its 95% interval."""

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
        """Return the `count` strongest proponents of each query, the strongest first."""
        return self._ranked(-self.values, count)

    def bottom(self, count: int = 3) -> list[list[Match]]:
        """Return the `count` strongest opponents of each query, the strongest first."""
        return self._ranked(self.values, count)

    def _ranked(self, keys: NDArray[np.float32], count: int) -> list[list[Match]]:
        order = np.argsort(keys, axis=1, kind="stable")[:, :count]
        return [[self.match(int(n), float(self.values[query, n])) for n in row] for query, row in enumerate(order)]

    def match(self, n: int, score: float) -> Match:
        """Return the training image with index n, with a score."""
        columns = {name: values[n : n + 1].tolist()[0] for name, values in self.columns.items()}
        return Match(self.train_ids[n].item(), score, n, columns)

    def credit(self, by: str, resamples: int = 1000) -> list[Credit]:
        """Return each group's share of the positive scores, the largest first.

        share_g = mean over queries of Σ_{n in g} max(τ_n, 0) / Σ_n max(τ_n, 0). The interval is that of a bootstrap
        over queries; for one query, it is that of `share_intervals`. Groups are the values of the column `by`.
        """
        groups, shares = self.shares(by)
        queries = len(shares)
        if queries == 1:
            low, high = self.share_intervals(by)[0].T
        else:
            drawn = stream("credit").multinomial(queries, np.full(queries, 1 / queries), size=resamples)  # [R, Q]
            low, high = np.percentile(drawn @ shares / queries, [2.5, 97.5], axis=0)
        share = shares.mean(0)
        return [
            Credit(groups[g].item(), float(share[g]), float(low[g]), float(high[g]))
            for g in np.argsort(-share, kind="stable")
        ]

    def shares(self, by: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the groups [G] of the column `by`, and their shares of each query's positive scores [Q, G]."""
        groups, membership = np.unique(self.groups(by), return_inverse=True)
        positive = self.values.clip(min=0).astype(np.float64)
        sums = np.stack([positive[:, membership == g].sum(1) for g in range(len(groups))], axis=1)
        totals = sums.sum(1, keepdims=True)
        return groups, np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)

    def only_highest(self, count: int | None) -> "Scores":
        """Return the scores with zero for all but the `count` highest of each query; None keeps all."""
        if count is None or count >= self.values.shape[1]:
            return self
        kept = np.argsort(-self.values, axis=1, kind="stable")[:, :count]
        values = np.zeros_like(self.values)
        np.put_along_axis(values, kept, np.take_along_axis(self.values, kept, axis=1), axis=1)
        return replace(self, values=values)

    def share_intervals(self, by: str) -> NDArray[np.float64]:
        """Return the 95% interval of each query's shares, [Q, G, 2], if groups had shown other images of their own.

        When the images of every group are drawn again with replacement, the sum S_g of a group's positive scores p_n
        has the variance V_g = Σ_{n in g} p_n² − S_g² / |g|. To first order, with S = Σ S_g and V = Σ V_g, the variance
        of its share is ((S − S_g)² V_g + S_g² (V − V_g)) / S⁴.
        """
        groups, membership = np.unique(self.groups(by), return_inverse=True)
        positive = self.values.clip(min=0).astype(np.float64)
        of_group = membership[:, None] == np.arange(len(groups))  # [N, G]
        sums, counts = positive @ of_group, of_group.sum(0)
        variances = (positive**2 @ of_group - sums**2 / counts).clip(min=0)
        total, all_variance = sums.sum(1, keepdims=True), variances.sum(1, keepdims=True)
        spread = (total - sums) ** 2 * variances + sums**2 * (all_variance - variances)
        deviation = np.sqrt(np.divide(spread, total**4, out=np.zeros_like(spread), where=total > 0))
        share = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
        return np.stack([share - 1.96 * deviation, share + 1.96 * deviation], axis=-1).clip(0, 1)

    def sizes(self, by: str) -> NDArray[np.int64]:
        """Return the number of training images in each of these groups, [G]."""
        return np.unique(self.groups(by), return_counts=True)[1]

    def groups(self, by: str) -> NDArray[Any]:
        """Return the group of each training image [N], which is its value in the column `by`."""
        if by not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UsageError(f"the training images have no column {by!r}: there is {known}")
        return plain_column(self.columns[by])

    def to_pandas(self, top: int | None = None) -> "pandas.DataFrame":
        """Return a line for each query and training image: query, rank, train, score and the columns of the image.

        The strongest image of a query comes first. `top` is the number of lines for each query; None means all N. If
        a column of the images has the name of another column of the table, it is called train_column.NAME.
        """
        import pandas

        order = np.argsort(-self.values, axis=1, kind="stable")[:, :top]  # [Q, top]
        queries, ranks = np.indices(order.shape)
        flat = order.ravel()
        return pandas.DataFrame(
            {
                "query": _texts(self.query_ids, readable)[queries.ravel()],
                "rank": ranks.ravel() + 1,
                "train": _texts(self.train_ids, readable)[flat],
                "score": self.values[queries.ravel(), flat],
                **{_head(name): _texts(column, readable)[flat] for name, column in self.columns.items()},
            }
        )

    def to_csv(self, path: str | Path, top: int | None = None) -> None:
        """Write `to_pandas` as a .csv file, with text as `spreadsheets.original` reads it."""
        write_text(Path(path), self.csv(top))

    def csv(self, top: int | None = None, *, header: bool = True, with_method: bool = False) -> str:
        """Return the text of such a file."""
        safe = replace(
            self,
            train_ids=_texts(self.train_ids, harmless),
            query_ids=_texts(self.query_ids, harmless),
            columns={harmless(name): _texts(column, harmless) for name, column in self.columns.items()},
        )
        table = safe.to_pandas(top)
        if with_method:
            table = table.assign(method=harmless(self.method))
        texts = [one for array in (safe.train_ids, safe.query_ids, *safe.columns.values()) for one in array.tolist()]
        how = quoting(str(one) for one in [*texts, *safe.columns])
        return str(table.to_csv(index=False, header=header, quoting=how))

    def save(self, path: str | Path) -> None:
        save_scores(path, {self.method: self})

    @classmethod
    def load(cls, path: str | Path, method: str | None = None) -> "Scores":
        """Read the scores of one method. The name may be left out if the file has only one."""
        found = load_scores(path)
        if method is None and len(found) == 1:
            return next(iter(found.values()))
        if method not in found:
            reason = "no method was named" if method is None else f"it has none of {method!r}"
            raise UsageError(f"{path} holds scores of {', '.join(found)}: {reason}")
        return found[method]


def save_scores(path: str | Path, scores: Mapping[str, Scores]) -> None:
    """Write the scores of one method, or of several methods for the same images, stacked along a new first axis.

    If the path ends in .csv, write a table with the column `method` instead.
    """
    every = list(scores.values())
    for one in every:
        _check_finite(one, f"cannot write {path}")
    if Path(path).suffix.lower() == ".csv":
        tables = [one.csv(header=number == 0, with_method=True) for number, one in enumerate(every)]
        write_text(Path(path), "".join(tables))
        return
    first = every[0]
    arrays = {
        "values": first.values if len(every) == 1 else np.stack([one.values for one in every]),
        "train_ids": first.train_ids,
        "query_ids": first.query_ids,
        "methods": np.array([one.method for one in every]),
    }
    arrays |= {COLUMN + name: plain_column(values) for name, values in first.columns.items()}
    if any(one.self_influence is not None for one in every):
        unknown = np.full(len(first.train_ids), np.nan, dtype=np.float32)
        rows = [unknown if one.self_influence is None else one.self_influence for one in every]
        arrays["self_influence"] = rows[0] if len(every) == 1 else np.stack(rows)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(Path(path), buffer.getvalue())


def load_scores(path: str | Path) -> dict[str, Scores]:
    """Read the scores that `save_scores` wrote, by method. Refuse a file that is damaged, misshapen or not finite."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise ValueError("it is no ordinary file")
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise ValueError("it is a single array")
        with found as file:
            scores = _by_method(dict(file))
    except FileNotFoundError:
        raise UsageError(f"no scores at {path}") from None
    except Exception as error:  # zip and numpy raise a dozen kinds of errors for damaged files
        raise DtrakError(f"{path} is not a file of scores: {getattr(error, 'strerror', None) or error}") from error
    for one in scores.values():
        _check_finite(one, str(path))
    return scores


def _by_method(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Scores]:
    """Return the scores that a file's arrays hold; raise a ValueError that names an array which does not fit."""
    values, train_ids, query_ids = (_array(arrays, name) for name in ("values", "train_ids", "query_ids"))
    methods = _array(arrays, "methods") if "methods" in arrays else np.array(["scores"])
    columns = {name: value for name, value in arrays.items() if name.startswith(COLUMN)}
    count, queries, train = len(np.unique(methods)), query_ids.size, train_ids.size
    shapes: list[tuple[int, ...]] = [(queries, train)] * (count == 1) + [(count, queries, train)]
    unknown = np.full((count, train), np.nan, dtype=np.float32)
    itself = np.asarray(arrays.get("self_influence", unknown))
    wanted: dict[str, tuple[NDArray[Any], str, list[tuple[int, ...]]]] = {
        "values": (values, "f", shapes),
        "train_ids": (train_ids, "iuU", [(train,)]),
        "query_ids": (query_ids, "iuU", [(queries,)]),
        "methods": (methods, "U", [(count,)]),
        "self_influence": (itself, "f", [(train,)] * (count == 1) + [(count, train)]),
        **{name: (column, "biufcSUmM", [(train,)]) for name, column in columns.items()},
    }
    for name, (array, kinds, right) in wanted.items():
        if array.dtype.kind not in kinds or array.shape not in right or array.size == 0:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, which does not fit the other arrays")
    plain = {name.removeprefix(COLUMN): column for name, column in columns.items()}
    on_itself = [None if np.isnan(row).all() else row for row in itself.reshape(count, train)]
    return {
        method: Scores(of_method, train_ids, query_ids, method, plain, own)
        for method, of_method, own in zip(
            methods.tolist(), values.reshape(count, queries, train), on_itself, strict=True
        )
    }


def _array(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"it has no array {name!r}")
    return np.asarray(arrays[name])


def _check_finite(scores: Scores, what: str) -> None:
    """Refuse scores that are not finite, and name the first one."""
    refuse_not_finite(scores.values, scores.method, scores.query_ids, scores.train_ids, what)
    own = scores.self_influence
    if own is not None and not np.isfinite(own).all():
        bad = np.flatnonzero(~np.isfinite(own))[0]
        raise DtrakError(f"{what}: {scores.method}'s self-influence of image {scores.train_ids[bad]} is {own[bad]}")


def refuse_not_finite(
    values: NDArray[Any], method: str, query_ids: NDArray[Any], train_ids: NDArray[Any], what: str
) -> None:
    """Refuse scores [Q, N] that are not finite, and name the first one. The message begins with `what`."""
    if not np.isfinite(values).all():
        query, image = np.argwhere(~np.isfinite(values))[0]
        raise DtrakError(
            f"{what}: {method} scores training image {train_ids[image]} for the query {query_ids[query]} with "
            f"{values[query, image]}, which is no score"
        )


def _head(column: str) -> str:
    """Return the name that a column of the images has in a table."""
    return COLUMN + column if column in RESERVED else readable(column)


def _texts(array: NDArray[Any], change: Callable[[str], str]) -> NDArray[Any]:
    """Return the array with every text changed."""
    if array.dtype.kind not in "OU":
        return array
    return np.fromiter((change(one) if isinstance(one, str) else one for one in array.tolist()), dtype=np.object_)
