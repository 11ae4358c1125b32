"""Credit: each group's share of the positive scores. Groups are the values of a column of the training images.

share_g(x) = Σ_{n in g} max(τ_n, 0) / Σ_n max(τ_n, 0)        of a query x; of several, the mean over them
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.noise import stream
from dtrak.tables import Cell, Entry, Table

if TYPE_CHECKING:
    from dtrak.attribution.scores import Scores

ALL, NOBODY = "all pictures", "(none)"
RESAMPLES = 1000


@dataclass(frozen=True)
class Credit:
    """A group's share of the positive influence, with its 95% interval.

    >>> import dtrak
    >>> largest = dtrak.open_run("runs/digits").scores().credit(by="label")[0]
    >>> largest.low < largest.share < largest.high
    True
    """

    group: Any
    share: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of a column, with sums over all training images n of a group, also of those that are not held."""

    names: NDArray[Any]  # [G]
    sizes: NDArray[np.int64]  # [G], how many training images each has
    sums: NDArray[np.float64]  # S_g [Q, G], of max(τ_n, 0)
    squares: NDArray[np.float64]  # [Q, G], of max(τ_n, 0)²

    @classmethod
    def of(cls, values: NDArray[np.float32], names: NDArray[Any], members: NDArray[np.int64]) -> "Groups":
        """Return the groups of scores [Q, N]; `members` [N] says in which of the groups `names` each image is."""
        count = len(names)
        positive = values.clip(min=0).astype(np.float64)
        sums, squares = (
            np.stack([np.bincount(members, row, count) for row in rows]).astype(np.float64)
            for rows in (positive, positive**2)
        )
        return cls(names, np.bincount(members, minlength=count), sums, squares)

    @property
    def shares(self) -> NDArray[np.float64]:
        """Return the share of each group for each query, [Q, G]."""
        totals = self.sums.sum(1, keepdims=True)
        return np.asarray(np.divide(self.sums, totals, out=np.zeros_like(self.sums), where=totals > 0))

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Return the 95% interval of each query's shares, [Q, G, 2], if groups had shown other images of their own.

        When the images of every group are drawn again with replacement, the sum S_g of a group's positive scores p_n
        has the variance V_g = Σ_{n in g} p_n² − S_g² / |g|. To first order, with S = Σ S_g and V = Σ V_g, the variance
        of its share is ((S − S_g)² V_g + S_g² (V − V_g)) / S⁴.
        """
        variances = (self.squares - self.sums**2 / self.sizes).clip(min=0)
        total, all_variance = self.sums.sum(1, keepdims=True), variances.sum(1, keepdims=True)
        spread = (total - self.sums) ** 2 * variances + self.sums**2 * (all_variance - variances)
        deviation = np.sqrt(np.divide(spread, total**4, out=np.zeros_like(spread), where=total > 0))
        return np.stack([self.shares - 1.96 * deviation, self.shares + 1.96 * deviation], axis=-1).clip(0, 1)

    def credit(self) -> list[Credit]:
        """Return each group's share, the largest first, with the interval of a bootstrap over queries.

        For one query, the interval is that of `intervals`.
        """
        shares = self.shares
        queries = len(shares)
        if queries == 1:
            low, high = self.intervals[0].T
        else:
            drawn = stream("credit").multinomial(queries, np.full(queries, 1 / queries), size=RESAMPLES)  # [R, Q]
            low, high = np.percentile(drawn @ shares / queries, [2.5, 97.5], axis=0)
        share = shares.mean(0)
        return [
            Credit(self.names[g].item(), float(share[g]), float(low[g]), float(high[g]))
            for g in np.argsort(-share, kind="stable")
        ]


def parse_groups(text: str) -> tuple[str, list[str]]:
    """Divide `artist` or `artist=Claude,Vincent` into the column and the groups that are asked for; [] means all."""
    column, equals, names = text.partition("=")
    chosen = [name.strip() for name in names.split(",")]
    if not column or (equals and not all(chosen)):
        raise UsageError(f"by {text!r}: give a column such as artist, or some of its values: artist=Claude,Vincent")
    return column, chosen if equals else []


def credit_tables(scores: "Scores", by: str, only: Sequence[str] = (), top: int | None = None) -> tuple[Table, Table]:
    """Return the credit for all pictures together, and the same with that of each picture, for a file.

    `only` some groups of the column `by` are in the tables, and the `top` largest of them; all if not given.
    """
    groups = scores.groups(by)
    sizes = dict(zip(map(str, groups.names.tolist()), groups.sizes.tolist(), strict=True))
    for name in only:
        if name not in sizes:
            known = sorted(sizes)
            more = f" and {len(known) - 12:,} more" if len(known) > 12 else ""
            raise UsageError(f"no training image has {by} {name!r}: there are {', '.join(known[:12])}{more}")

    def rows(of: "Scores", picture: str) -> list[list[Entry]]:
        found = [one for one in of.credit(by) if not only or str(one.group) in only]
        return [
            [
                picture,
                str(one.group) or NOBODY,
                sizes[str(one.group)],
                *(Cell(value, f"{100 * value:.1f}%") for value in (one.share, one.low, one.high)),
            ]
            for one in found[:top]
        ]

    count = len(scores.query_ids)
    heads = [by, "images", "share", "low", "high"]
    apart = [row for query in range(count) for row in rows(scores.of_queries([query]), str(scores.query_ids[query]))]
    together = rows(scores, ALL) if count > 1 else apart
    what = f"over {count:,} pictures" if count > 1 else "if each group had shown other images of its own"
    notes = [
        f"Shares of the positive scores of {scores.method}; low and high: 95 % interval {what}. If a picture was "
        "scored with a prompt, its credit follows the prompt as well as what it shows."
    ]
    return (
        Table(heads, [row[1:] for row in together], notes=notes),
        Table(["picture", *heads], [*together, *apart] if count > 1 else apart, notes=notes),
    )
