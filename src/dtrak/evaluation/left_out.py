"""Leave out whole groups, such as all images of an artist, and compare credit with what that changes.

    Δ_qg = mean over seeds of  L(x_q; trained without g) − L(x_q; trained on all)        L is L_Simple

A model is also trained on all images with each seed, so that the two losses differ by the group alone. Each model draws
the generated pictures again, from their seeds and prompts. For a method's credit of a query q and a group g,

    rank    = mean over queries of ρ( credit_q, Δ_q ) over the groups            Spearman's rank correlation
    first   = the share of queries whose largest credit is that of the group with the largest Δ
    off     = mean over queries of ½ Σ_g | credit_qg − max(Δ_qg, 0) / Σ_h max(Δ_qh, 0) |
    picture = the same as rank, with the distance of the pictures drawn with g and without it in place of Δ
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.answer import answer
from dtrak.attribution.settings import Settings
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings, queries_of
from dtrak.evaluation.lds import spearman
from dtrak.evaluation.training_jobs import Retraining, TrainingJob, results
from dtrak.features.trajectories import SEED, seeds_of
from dtrak.images.images import Images, ImageSource
from dtrak.images.metadata import plain_column
from dtrak.methods import Method
from dtrak.noise import stream
from dtrak.runs.run import TRAININGS, Run
from dtrak.runs.run_questions import opened_run, question_of
from dtrak.tables import Cell, Entry, Table

Floats = NDArray[np.float64]
MOST_GROUPS = 100  # each is a training
RESAMPLES = 1000
MEASURES = ("rank", "first", "off", "picture")


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What S trainings without each of G groups, and S trainings on all images, give for each kind of queries."""

    groups: NDArray[np.str_]  # [G]
    losses: Mapping[str, Floats]  # by kind of queries [G + 1, S, Q]; the last row is of all images
    pictures: NDArray[np.float32] | None  # of the generated queries, [G + 1, S, Q, C, H, W] in [−1, 1]

    def effects(self, queries: str) -> Floats:
        """Return Δ [S, Q, G], how much higher the loss of a query is without a group."""
        losses = self.losses[queries]
        return np.moveaxis(losses[:-1] - losses[-1], 0, -1)

    def distances(self) -> Floats:
        """Return ‖x − x′‖₂ [S, Q, G] of the pictures drawn with a group and without it."""
        if self.pictures is None:
            raise UsageError("the run has no generated pictures with seeds, so none could be drawn again")
        differences = (self.pictures[:-1] - self.pictures[-1]).reshape(*self.pictures[:-1].shape[:3], -1)
        return np.moveaxis(np.linalg.norm(differences.astype(np.float64), axis=-1), 0, -1)


def credit_run(
    run: Run,
    by: str,
    kind: str,
    methods: Sequence[Method],
    settings: Settings,
    retraining: RetrainingSettings,
    engine: Engine,
    device: str,
    *,
    highest: int | None = None,
    cache: Path | None = None,
    gradient_engine: Engine | None = None,
) -> "CreditComparison":
    """Compare the methods' credit by a column, from all or the `highest` scores, with trainings without each group."""
    queries = queries_of(run, retraining)
    left_out = leave_groups_out(run, by, retraining, engine, queries, device)
    question = question_of(run, ImageSource(queries[kind]), methods, settings)
    scores = answer(opened_run(run, question, cache=cache, device=device, engine=gradient_engine, one_damping=True))
    credit = {name: one.only_highest(highest).groups(by).shares for name, one in scores.items()}
    return compare_credit(credit, left_out, kind)


def leave_groups_out(
    run: Run, by: str, settings: RetrainingSettings, engine: Engine, queries: Mapping[str, Images], device: str = "cpu"
) -> LeftOut:
    """Train the run's model without each group of the column `by`, and on all images, with each of the seeds."""
    groups, membership = groups_of(run.train_images, by)
    model = run.model().to(device)
    run.check_model_is_the_recipes(model)
    masks = np.stack([*(membership != g for g in range(len(groups))), np.ones(len(membership), dtype=np.bool_)])
    context = Retraining.of(
        run, model, masks, queries, outputs=settings.outputs(model.process.timesteps), device=device
    )
    generated = context.queries.get("generated")
    draws = generated is not None and SEED in generated.images.columns
    drawn = tuple(seeds_of(generated.images)) if generated is not None and draws else ()
    prompts = tuple(generated.texts) if generated is not None and draws else ()
    seeds, rows = range(settings.seeds), range(len(masks))
    jobs = {(row, seed): TrainingJob(row, seed, drawn, prompts) for seed in seeds for row in rows}
    with results(run.folder / TRAININGS, context, list(jobs.values()), engine) as result:

        def of_all(name: str) -> NDArray[Any]:
            return np.array([[result(jobs[row, seed])[name] for seed in seeds] for row in rows])

        losses = {kind: of_all(f"outputs/{kind}/simple") for kind in queries}
        return LeftOut(groups, losses, of_all("pictures") if draws else None)


def groups_of(images: Images, by: str) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the groups [G] of a column, and the group of each image [N]; refuse a column that has no use as groups."""
    if by not in images.columns:
        known = ", ".join(images.columns) or "none"
        raise UsageError(f"{images.source} has no column {by!r}: there is {known}")
    groups, membership = np.unique(plain_column(images.columns[by]).astype(str), return_inverse=True)
    if not 2 <= len(groups) <= MOST_GROUPS:
        raise UsageError(
            f"the column {by!r} of {images.source} has {len(groups):,} different values, but leaving one out takes "
            f"from 2 to {MOST_GROUPS}"
        )
    return groups, membership


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
        names = MEASURES if all(one.picture is not None for one in self.results) else MEASURES[:-1]
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
            "methods": {one.method: {name: getattr(one, name) for name in MEASURES} for one in self.results},
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
    return np.asarray(np.divide(positive, totals, out=equal, where=totals > 0))


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
