"""Scores: one number for every training image and every query. A positive score marks a proponent, for all methods.

On disk, scores are an .npz file with `values`, `train_ids` and `query_ids`. It also has the columns of the training
images as `train_column.NAME`, so that credit can be computed later, `self_influence` if the method has it, and the λ
that was used as `damping` (relative, absolute, directions kept, rank) with its `damping_rule`.

Scores may hold only the strongest images of each query. Then `values`, `train_ids` and columns are [Q, H], the highest
score first, and `positions` [Q, H] are the images' places among all `images`.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution import score_tables as tables
from dtrak.attribution import showing
from dtrak.attribution.held import MOST_GROUPS, Groups, Held, grouped, held_arrays
from dtrak.attribution.matches import Credit, Match
from dtrak.attribution.score_arrays import fields_by_method
from dtrak.attribution.score_tables import COLUMN
from dtrak.attribution.used_damping import UsedDamping
from dtrak.checks import check_number
from dtrak.errors import DtrakError, UsageError
from dtrak.files import write_bytes, write_text
from dtrak.images.metadata import plain_column
from dtrak.noise import stream

if TYPE_CHECKING:
    import pandas

    from dtrak.figures import PaperFigure
    from dtrak.images.images import Images


@dataclass(frozen=True, eq=False)
class Scores:
    """values [Q, N] float32: how much training on image n lowers the loss of query q, up to one factor for all.

    `dtrak.attribute` returns them, and `Scores.load` reads them from a file:

    >>> import dtrak
    >>> scores = dtrak.Scores.load("runs/digits/scores.npz")
    >>> scores.values.shape
    (60, 1000)
    >>> len(scores.top(3)[0])  # the three strongest proponents of the first query
    3
    """

    values: NDArray[np.float32]
    train_ids: NDArray[Any]
    query_ids: NDArray[Any]
    method: str
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of the training images, each [N]
    self_influence: NDArray[np.float32] | None = None  # [N], of the kernel: τ(x^n)_n, from 0 to 1
    damping: UsedDamping | None = None  # the λ that was used; None if the method has none, or if it is not known
    train: "Images | None" = None  # the images themselves, for figures; a file of scores does not have them
    queries: "Images | None" = None
    held: Held | None = None  # if only the strongest are held: values, train_ids and columns are [Q, H]

    @property
    def images(self) -> int:
        """Return N, how many training images were scored."""
        return len(self.train_ids) if self.held is None else self.held.images

    def __repr__(self) -> str:
        return showing.text(self)

    def _repr_html_(self) -> str:
        return showing.html(self)

    def only(self, count: int) -> "Scores":
        """Return the scores of the first `count` queries."""
        return self.of_queries(range(len(self.values))[:count])

    def one(self, place: int) -> "Scores":
        """Return the scores of one query, by its place."""
        return self.of_queries([place])

    def plot(
        self,
        queries: int | Sequence[Any] = 4,
        top: int = 5,
        bottom: int = 3,
        *,
        train: "Images | None" = None,
        query_images: "Images | None" = None,
    ) -> "PaperFigure":
        """Draw queries with their strongest proponents and opponents: the first ones, or those with these ids.

        A notebook shows the figure; `.save("figure.pdf")` writes it. Scores from a file need `train` and
        `query_images`, as the file has no images.

        >>> import dtrak
        >>> run = dtrak.open_run("runs/digits")
        >>> run.scores().plot(2).save("figure.svg")
        """
        return showing.plot(self, queries, top, bottom, train, query_images)

    def plot_credit(self, by: str, groups: int = 12) -> "PaperFigure":
        """Draw the shares of the largest groups as bars, with their intervals.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().plot_credit(by="label").save("credit.pdf")
        """
        return showing.plot_credit(self, by, groups)

    def plot_self_influence(
        self, each: int = 4, classes: int = 10, *, least: int | None = None, train: "Images | None" = None
    ) -> "PaperFigure":
        """Draw the `each` most and the `least` least self-influential training images of the largest classes.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().plot_self_influence().save("self-influence.pdf")
        """
        return showing.plot_self_influence(self, each, classes, least, train)

    def top(self, count: int = 5) -> list[list[Match]]:
        """Return the `count` strongest proponents of each query, the strongest first. Only held ones are returned.

        >>> import dtrak
        >>> first = dtrak.Scores.load("runs/digits/scores.npz").top(5)[0]
        >>> first[0].score > first[1].score > 0
        True
        """
        return self._matches(self.order(count))

    def bottom(self, count: int = 3) -> list[list[Match]]:
        """Return the `count` strongest opponents of each query, the strongest first. Only held ones are returned.

        >>> import dtrak
        >>> dtrak.Scores.load("runs/digits/scores.npz").bottom(3)[0][0].score < 0
        True
        """
        return self._matches(self.order(count, lowest=True))

    def order(self, count: int | None, lowest: bool = False) -> NDArray[np.int64]:
        """Return the places in `values` of the `count` strongest, [Q, count]."""
        if count is not None:
            check_number("count", count)
        if self.held is None:
            return np.asarray(np.argsort(self.values if lowest else -self.values, axis=1, kind="stable")[:, :count])
        each = self.held.each if self.held.has_lowest or not lowest else 0
        places = np.arange(self.values.shape[1])[:: -1 if lowest else 1][:each][:count]
        return np.tile(places, (len(self.values), 1))

    def _matches(self, order: NDArray[np.int64]) -> list[list[Match]]:
        return [
            [self.match(int(place), float(self.values[query, place]), query) for place in row]
            for query, row in enumerate(order)
        ]

    def match(self, place: int, score: float, query: int = 0) -> Match:
        """Return a training image with a score: the one at this place, of a query if only the strongest are held."""
        at = slice(place, place + 1) if self.held is None else (query, slice(place, place + 1))
        columns = {name: values[at].tolist()[0] for name, values in self.columns.items()}
        position = place if self.held is None else int(self.held.positions[query, place])
        return Match(self.train_ids[at].tolist()[0], score, position, columns)

    def credit(self, by: str, resamples: int = 1000) -> list[Credit]:
        """Return each group's share of the positive scores, the largest first.

        share_g = mean over queries of Σ_{n in g} max(τ_n, 0) / Σ_n max(τ_n, 0). The interval is that of a bootstrap
        over queries; for one query, it is that of `share_intervals`. Groups are the values of the column `by`.

        >>> import dtrak
        >>> credits = dtrak.Scores.load("runs/digits/scores.npz").credit(by="label")
        >>> len(credits), round(sum(one.share for one in credits), 3)
        (10, 1.0)
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
        grouped = self._grouped(by)
        totals = grouped.sums.sum(1, keepdims=True)
        shares = np.divide(grouped.sums, totals, out=np.zeros_like(grouped.sums), where=totals > 0)
        return grouped.names, shares

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
        grouped = self._grouped(by)
        sums = grouped.sums
        variances = (grouped.squares - sums**2 / grouped.sizes).clip(min=0)
        total, all_variance = sums.sum(1, keepdims=True), variances.sum(1, keepdims=True)
        spread = (total - sums) ** 2 * variances + sums**2 * (all_variance - variances)
        deviation = np.sqrt(np.divide(spread, total**4, out=np.zeros_like(spread), where=total > 0))
        share = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
        return np.stack([share - 1.96 * deviation, share + 1.96 * deviation], axis=-1).clip(0, 1)

    def sizes(self, by: str) -> NDArray[np.int64]:
        """Return the number of training images in each of these groups, [G]."""
        return self._grouped(by).sizes

    def _grouped(self, by: str) -> Groups:
        """Return the groups of the column `by` with the sums of their positive scores."""
        column = self.groups(by)
        if self.held is None:
            return grouped(self.values, *np.unique(column, return_inverse=True))
        if by not in self.held.groups:
            raise UsageError(
                f"only the strongest scores are held, and the column {by!r} has more than {MOST_GROUPS:,} values, too "
                "many for the sums that credit needs: make scores without --top"
            )
        return self.held.groups[by]

    def groups(self, by: str) -> NDArray[Any]:
        """Return the group of each training image [N], or of each held one [Q, H]: its value in the column `by`."""
        if by not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UsageError(f"the training images have no column {by!r}: there is {known}")
        return plain_column(self.columns[by])

    @property
    def credit_columns(self) -> list[str]:
        """Return the columns that credit can be computed by."""
        return list(self.columns if self.held is None else self.held.groups)

    def of_queries(self, which: Sequence[int]) -> "Scores":
        """Return the scores of some queries alone."""
        chosen = list(which)
        cut = replace(self, values=self.values[chosen], query_ids=self.query_ids[chosen])
        if self.held is None:
            return cut
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return replace(cut, train_ids=self.train_ids[chosen], columns=columns, held=self.held.of_queries(chosen))

    def to_pandas(self, top: int | None = None) -> "pandas.DataFrame":
        """Return a line for each query and training image: query, rank, train, score and the columns of the image.

        The strongest image of a query comes first. `top` is the number of lines for each query; None means all N, or
        all proponents that are held. If a column of the images has the name of another column of the table, it is
        called train_column.NAME.

        >>> import dtrak
        >>> list(dtrak.Scores.load("runs/digits/scores.npz").to_pandas(top=5).columns)
        ['query', 'rank', 'train', 'score', 'label']
        """
        return tables.frame(self, top)

    def to_csv(self, path: str | Path, top: int | None = None) -> None:
        """Write `to_pandas` as a .csv file, with text as `spreadsheets.original` reads it.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().to_csv("strongest.csv", top=5)
        """
        write_text(Path(path), self.csv(top))

    def csv(self, top: int | None = None, *, header: bool = True, with_method: bool = False) -> str:
        """Return the text of such a file. Where λ is known, a column `damping` has it, ÷ the mean eigenvalue."""
        return tables.csv_text(self, top, header, with_method)

    def save(self, path: str | Path) -> None:
        """Write an .npz file, or a table if the path ends in .csv.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().save("copy.npz")
        >>> dtrak.Scores.load("copy.npz").method
        'step-trak'
        """
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
    first, held = every[0], [one.held for one in every if one.held is not None]

    def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        return arrays[0] if len(every) == 1 else np.stack(arrays)

    arrays = {
        "values": joined([one.values for one in every]),
        "train_ids": joined([one.train_ids for one in every]) if held else first.train_ids,
        "query_ids": first.query_ids,
        "methods": np.array([one.method for one in every]),
    }
    for name, values in first.columns.items():
        arrays[COLUMN + name] = (
            joined([plain_column(one.columns[name]) for one in every]) if held else plain_column(values)
        )
    arrays |= held_arrays(held) if held else {}
    if any(one.self_influence is not None for one in every):
        unknown = np.full(first.images, np.nan, dtype=np.float32)
        rows = [unknown if one.self_influence is None else one.self_influence for one in every]
        arrays["self_influence"] = rows[0] if len(every) == 1 else np.stack(rows)
    if any(one.damping is not None for one in every):
        known = [one.damping or UsedDamping("", np.nan, np.nan, np.nan, 0) for one in every]
        arrays["damping"] = np.array([[one.relative, one.absolute, one.kept, one.rank] for one in known])
        arrays["damping_rule"] = np.array([one.rule for one in known])
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
            found_fields = fields_by_method(dict(file))
            scores = {method: Scores(method=method, **of_method) for method, of_method in found_fields.items()}
    except FileNotFoundError:
        raise UsageError(f"no scores at {path}") from None
    except Exception as error:  # zip and numpy raise a dozen kinds of errors for damaged files
        raise DtrakError(f"{path} is not a file of scores: {getattr(error, 'strerror', None) or error}") from error
    for one in scores.values():
        _check_finite(one, str(path))
    return scores


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
        name = train_ids[image] if train_ids.ndim == 1 else train_ids[query, image]
        raise DtrakError(
            f"{what}: {method} scores training image {name} for the query {query_ids[query]} with "
            f"{values[query, image]}, which is no score"
        )
