"""Compare credit with what leaving a whole group out does: does the group with most credit matter most?

For a query q and a group g, Δ_qg is how much higher the loss of q is for a model trained without g (`groups.py`).

    rank    = mean over queries of ρ( credit_q, Δ_q ) over the groups            Spearman's rank correlation
    first   = the share of queries whose largest credit is that of the group with the largest Δ
    off     = mean over queries of ½ Σ_g | credit_qg − max(Δ_qg, 0) / Σ_h max(Δ_qh, 0) |
    picture = the same as rank, with the distance of the pictures drawn with g and without it in place of Δ
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.evaluation.groups import LeftOut
from dtrak.evaluation.lds import spearman
from dtrak.noise import stream
from dtrak.tables import Cell, Entry, Table

Floats = NDArray[np.float64]
RESAMPLES = 1000


@dataclass(frozen=True)
class Agreement:
    """How well one method's credit agrees with the effects, each with its 95% interval over queries, in percent."""

    method: str
    rank: tuple[float, float, float]
    first: tuple[float, float, float]
    off: tuple[float, float, float]
    picture: tuple[float, float, float] | None


@dataclass(frozen=True)
class CreditComparison:
    """The agreement of several methods, and how it was measured."""

    results: list[Agreement]
    ceiling: float | None  # how well the effects of one training seed agree in rank with those of the others
    queries: int
    groups: int
    seeds: int
    kind: str  # of the queries

    def table(self) -> Table:
        """Return a table with a row for each method."""
        has_pictures = all(one.picture is not None for one in self.results)
        names = ["rank", "first", "off", *["picture"] * has_pictures]
        heads = ["method", *(head for name in names for head in (f"{name} %", f"{name} low", f"{name} high"))]
        rows: list[list[Entry]] = [
            [one.method, *(Cell(value, f"{value:.1f}") for name in names for value in getattr(one, name))]
            for one in self.results
        ]
        ceiling = "unknown, as there is one seed" if self.ceiling is None else f"{self.ceiling:.1f} %"
        notes = [
            f"Credit of {self.groups} groups for {self.queries} {self.kind} queries, against {self.seeds} trainings "
            "without each group. rank: rank correlation with the rise of the loss; first: how often the largest credit "
            "is that of the group that matters most; off: how much of the credit would have to move to other groups; "
            f"picture: as rank, with the change of the picture. low and high: 95 % interval. Noise ceiling of rank: "
            f"{ceiling}."
        ]
        return Table(heads, rows, notes=notes)

    def json(self) -> dict[str, Any]:
        return {
            "methods": {
                one.method: {"rank": one.rank, "first": one.first, "off": one.off, "picture": one.picture}
                for one in self.results
            },
            "ceiling": self.ceiling,
            "queries": self.queries,
            "groups": self.groups,
            "seeds": self.seeds,
            "kind": self.kind,
        }


def compare_credit(credit: Mapping[str, Floats], left_out: LeftOut, kind: str) -> CreditComparison:
    """Compare the credit [Q, G] of each method with the effects on the queries of a kind."""
    effects = left_out.effects(kind)
    seeds, queries, groups = effects.shape
    pictures = left_out.distances().mean(0) if kind == "generated" and left_out.pictures is not None else None
    results = [agreement(method, shares, effects.mean(0), pictures) for method, shares in credit.items()]
    return CreditComparison(results, seeds_agreement(effects), queries, groups, seeds, kind)


def agreement(method: str, credit: Floats, effects: Floats, pictures: Floats | None = None) -> Agreement:
    """Compare credit [Q, G] with effects [Q, G], and with the changes of the pictures [Q, G]."""
    first = credit.argmax(1) == effects.argmax(1)
    off = np.abs(credit - true_shares(effects)).sum(1) / 2
    picture = None if pictures is None else interval(spearman(credit, pictures))
    return Agreement(method, interval(spearman(credit, effects)), interval(first.astype(float)), interval(off), picture)


def true_shares(effects: Floats) -> Floats:
    """Return each group's share of the positive effects [Q, G]; equal shares for a query without any."""
    positive = effects.clip(min=0)
    totals = positive.sum(1, keepdims=True)
    equal = np.full_like(positive, 1 / positive.shape[1])
    shares: Floats = np.divide(positive, totals, out=equal, where=totals > 0)
    return shares


def seeds_agreement(effects: Floats) -> float | None:
    """Return the mean rank correlation of one seed's effects with the mean of the others', from [S, Q, G]."""
    seeds = len(effects)
    if seeds == 1:
        return None
    others = (np.delete(effects, seed, axis=0).mean(0) for seed in range(seeds))
    return 100 * float(np.mean([spearman(one, other) for one, other in zip(effects, others, strict=True)]))


def interval(values: Floats) -> tuple[float, float, float]:
    """Return the mean of values [Q] in percent, and its 95% interval from a bootstrap over queries."""
    count = len(values)
    drawn = stream("credit").multinomial(count, np.full(count, 1 / count), size=RESAMPLES) @ values / count
    low, high = np.percentile(drawn, [2.5, 97.5])
    return 100 * float(values.mean()), 100 * float(low), 100 * float(high)
