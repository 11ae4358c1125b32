"""Scores: one number for every training image and every query. A positive score marks a proponent, for all methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution import display
from dtrak.attribution.credit import Credit, Groups
from dtrak.attribution.score_files import csv_text, fields_by_method, frame, write_scores
from dtrak.attribution.top_scores import MOST_GROUPS, Held
from dtrak.checks import check_number
from dtrak.errors import DtrakError, UsageError
from dtrak.files import write_text
from dtrak.images.metadata import plain_column
from dtrak.kernels.damping import UsedDamping

if TYPE_CHECKING:
    import pandas

    from dtrak.figures import PaperFigure
    from dtrak.images.images import Images


@dataclass(frozen=True)
class Match:
    """A training image with its score for a query.

    >>> import dtrak
    >>> strongest = dtrak.open_run("runs/digits").scores().top(1)[0][0]
    >>> strongest.score > 0, strongest.columns
    (True, {'label': 9})
    """

    id: Any
    score: float
    position: int  # its index in the training set
    columns: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Scores:
    """values [Q, N] float32: how much training on image n lowers the loss of query q, up to one factor for all.

    Scores may hold only the strongest images of each query. Then `values`, `train_ids` and columns are [Q, H], the
    highest score first, and `held` says which they are.

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
    self_influence: NDArray[np.float32] | None = None  # [N], of the kernel: τ(x^n)_n
    damping: UsedDamping | None = None  # the λ that was used; None if the method has none, or if it is not known
    train: "Images | None" = None  # the images themselves, for figures; a file of scores does not have them
    queries: "Images | None" = None
    held: Held | None = None  # if only the strongest are held
    question: Mapping[str, Any] | None = None  # what was asked, as plain data; None if it is not known

    @property
    def images(self) -> int:
        """Return N, how many training images were scored."""
        return len(self.train_ids) if self.held is None else self.held.images

    def __repr__(self) -> str:
        return display.text(self)

    def _repr_html_(self) -> str:
        return display.html(self)

    # single images

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

    # some of the queries

    def only(self, count: int) -> "Scores":
        """Return the scores of the first `count` queries."""
        return self.of_queries(range(len(self.values))[:count])

    def one(self, place: int) -> "Scores":
        """Return the scores of one query, by its place."""
        return self.of_queries([place])

    def of_queries(self, which: Sequence[int]) -> "Scores":
        """Return the scores of some queries alone."""
        chosen = list(which)
        queries = None if self.queries is None else self.queries.select(chosen)
        cut = replace(self, values=self.values[chosen], query_ids=self.query_ids[chosen], queries=queries)
        if self.held is None:
            return cut
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return replace(cut, train_ids=self.train_ids[chosen], columns=columns, held=self.held.of_queries(chosen))

    # credit

    def credit(self, by: str) -> list[Credit]:
        """Return each group's share of the positive scores, the largest first.

        share_g = mean over queries of Σ_{n in g} max(τ_n, 0) / Σ_n max(τ_n, 0). The interval is that of a bootstrap
        over queries; for one query, that of other images of each group. Groups are the values of the column `by`.

        >>> import dtrak
        >>> credits = dtrak.Scores.load("runs/digits/scores.npz").credit(by="label")
        >>> len(credits), round(sum(one.share for one in credits), 3)
        (10, 1.0)
        """
        return self.groups(by).credit()

    def groups(self, by: str) -> Groups:
        """Return the groups of the column `by` with the sums of their positive scores."""
        column = self.column(by)
        if self.held is None:
            return Groups.of(self.values, *np.unique(column, return_inverse=True))
        if by not in self.held.groups:
            raise UsageError(
                f"only the strongest scores are held, and the column {by!r} has more than {MOST_GROUPS:,} values, too "
                "many for the sums that credit needs: make scores without --top"
            )
        return self.held.groups[by]

    def column(self, name: str) -> NDArray[Any]:
        """Return the value of each training image in a column, [N], or of each held one, [Q, H]."""
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UsageError(f"the training images have no column {name!r}: there is {known}")
        return plain_column(self.columns[name])

    @property
    def credit_columns(self) -> list[str]:
        """Return the columns that credit can be computed by."""
        return list(self.columns if self.held is None else self.held.groups)

    def only_highest(self, count: int | None) -> "Scores":
        """Return the scores with zero for all but the `count` highest of each query; None keeps all."""
        if count is None or count >= self.images:
            return self
        if self.held is not None:
            return self._only_highest_held(self.held, count)
        kept = np.argsort(-self.values, axis=1, kind="stable")[:, :count]
        values = np.zeros_like(self.values)
        np.put_along_axis(values, kept, np.take_along_axis(self.values, kept, axis=1), axis=1)
        return replace(self, values=values)

    def _only_highest_held(self, held: Held, count: int) -> "Scores":
        if count > held.each:
            raise UsageError(
                f"highest {count:,}: only the {held.each:,} highest scores of each picture are held; give at most as "
                "many, or make scores without --top"
            )
        values = self.values.copy()
        values[:, count:] = 0
        groups = {}
        for name, known in held.groups.items():
            members = np.searchsorted(known.names, plain_column(self.columns[name])[:, :count])
            rows = zip(values[:, :count], members, strict=True)
            parts = [Groups.of(row[None], known.names, at) for row, at in rows]
            groups[name] = replace(
                known,
                sums=np.concatenate([one.sums for one in parts]),
                squares=np.concatenate([one.squares for one in parts]),
            )
        return replace(self, values=values, held=replace(held, groups=groups))

    # figures

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
        return display.plot(self, queries, top, bottom, train, query_images)

    def plot_credit(self, by: str, groups: int = 12) -> "PaperFigure":
        """Draw the shares of the largest groups as bars, with their intervals.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().plot_credit(by="label").save("credit.pdf")
        """
        return display.plot_credit(self, by, groups)

    def plot_self_influence(
        self, each: int = 4, classes: int = 10, *, least: int | None = None, train: "Images | None" = None
    ) -> "PaperFigure":
        """Draw the `each` most and the `least` least self-influential training images of the largest classes.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().plot_self_influence().save("self-influence.pdf")
        """
        return display.plot_self_influence(self, each, classes, least, train)

    # tables and files

    def to_pandas(self, top: int | None = None) -> "pandas.DataFrame":
        """Return a line for each query and training image: query, rank, train, score and the columns of the image.

        The strongest image of a query comes first. `top` is the number of lines for each query; None means all N, or
        all proponents that are held. If a column of the images has the name of another column of the table, it is
        called train_column.NAME.

        >>> import dtrak
        >>> list(dtrak.Scores.load("runs/digits/scores.npz").to_pandas(top=5).columns)
        ['query', 'rank', 'train', 'score', 'label']
        """
        return frame(self, top)

    def to_csv(self, path: str | Path, top: int | None = None) -> None:
        """Write `to_pandas` as a .csv file, in which no text is a formula.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().to_csv("strongest.csv", top=5)
        """
        write_text(Path(path), self.csv(top))

    def csv(self, top: int | None = None, *, header: bool = True) -> str:
        """Return the text of such a file. Where λ is known, a column `damping` has it, ÷ the mean eigenvalue."""
        return csv_text(self, top, header)

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
    for one in scores.values():
        check_finite(one, f"cannot write {path}")
    write_scores(Path(path), list(scores.values()))


def load_scores(path: str | Path) -> dict[str, Scores]:
    """Read the scores that `save_scores` wrote, by method. Refuse a file that is damaged, misshapen or not finite."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise ValueError("it is no ordinary file")
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise ValueError("it is a single array")
        with found as file:
            fields = fields_by_method(dict(file))
            scores = {method: Scores(method=method, **of_method) for method, of_method in fields.items()}
    except FileNotFoundError:
        raise UsageError(f"no scores at {path}") from None
    except Exception as error:  # zip and numpy raise a dozen kinds of errors for damaged files
        raise DtrakError(f"{path} is not a file of scores: {getattr(error, 'strerror', None) or error}") from error
    for one in scores.values():
        check_finite(one, str(path))
    return scores


def check_finite(scores: Scores, what: str) -> None:
    """Refuse scores that are not finite, and name the first one. The message begins with `what`."""
    refuse_not_finite(scores.values, scores.method, scores.query_ids, scores.train_ids, what)
    own = scores.self_influence
    if own is not None and not np.isfinite(own).all():
        bad = np.flatnonzero(~np.isfinite(own))[0]
        raise DtrakError(f"{what}: {scores.method}'s self-influence of image {scores.train_ids[bad]} is {own[bad]}")


def refuse_not_finite(
    values: NDArray[Any], method: str, query_ids: NDArray[Any], train_ids: NDArray[Any], what: str
) -> None:
    """Refuse values [Q, N] that are not finite, and name the first one."""
    if not np.isfinite(values).all():
        query, image = np.argwhere(~np.isfinite(values))[0]
        name = train_ids[image] if train_ids.ndim == 1 else train_ids[query, image]
        raise DtrakError(
            f"{what}: {method} scores training image {name} for the query {query_ids[query]} with "
            f"{values[query, image]}, which is no score"
        )
