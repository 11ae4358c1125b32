"""Compare methods on a benchmark: the LDS of each, its error, its damping and its cost.

A chosen damping, and a method that learns from retrained models, are fitted on the first half of the subsets, and the
LDS is reported on the second half. If nothing is fitted, the LDS is reported on all subsets.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.preparing import check_objective, prepare
from dtrak.attribution.scoring import scores_for
from dtrak.engines import Engine
from dtrak.errors import UsageError, check_known
from dtrak.evaluation.lds import LDS, ceiling, evaluate_lds, mean_lds, perfect_lds
from dtrak.features.encoders import load_encoder
from dtrak.features.settings import DEFAULT_ENCODER
from dtrak.features.store import Cost
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.inputs.arrays import Vectors
from dtrak.inputs.benchmark import QUERIES, Benchmark
from dtrak.inputs.embeddings import Embeddings
from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Task
from dtrak.kernels.damping import GRIDS, Damping
from dtrak.methods import EVERY_METHOD, Method, chosen_methods
from dtrak.tables import Cell, Entry, Table

MIN_SUBSETS = 2  # a rank correlation needs as many
# Dampings that are fitted to retrained models: on the first half of the subsets, or on the reported ones.
CHOSEN, BEST = "chosen", "best"


@dataclass(frozen=True)
class Result:
    """The LDS and the cost of one method."""

    method: str
    lds: LDS
    damping: float | None  # as a fraction of the mean eigenvalue; None for a method without damping
    seconds: float  # to score, features included
    features: Cost  # the part of `seconds` that the features took
    training: float | None  # more seconds, to train the models that the method uses; None if unknown
    curve: Sequence[tuple[float, float]] = ()  # (damping, LDS), if several dampings were tried


@dataclass(frozen=True)
class Comparison:
    """The results of all methods, and how they were measured."""

    results: Sequence[Result]
    ceiling: float | None  # the noise ceiling in percent; None if unknown
    queries: int
    subsets: int  # the LDS is a correlation over these
    note: str  # how the damping was found
    settings: Mapping[str, Any]  # how the scores were computed, and what they should predict
    seeds: int = 1  # models on each subset

    @property
    def perfect(self) -> float | None:
        """Return the LDS that perfect scores would reach."""
        return perfect_lds(self.ceiling, self.seeds)

    def json(self) -> str:
        """Return all numbers as JSON, with the LDS of every query."""
        content = {
            "methods": {
                one.method: {
                    "lds": one.lds.mean,
                    "bootstrap_mean": one.lds.bootstrap_mean,
                    "bootstrap_std": one.lds.bootstrap_std,
                    "interval": [one.lds.low, one.lds.high],
                    "damping": one.damping,
                    "seconds": one.seconds,
                    "training_seconds": one.training,
                    "gradient_seconds": one.features.gradients,
                    "projection_seconds": one.features.projection,
                    "curve": [list(point) for point in one.curve],
                    "per_query": one.lds.per_query.tolist(),
                }
                for one in self.results
            },
            "ceiling": self.ceiling,
            "perfect": self.perfect,
            "seeds": self.seeds,
            "queries": self.queries,
            "subsets": self.subsets,
            "note": self.note,
            "settings": dict(self.settings),
        }
        return json.dumps(content, indent=1) + "\n"

    def table(self) -> Table:
        """Return a table with a row for each method."""
        heads = ["method", "LDS %", "±", "low", "high", "λ", "TRAIN", "GRAD", "PROJ", "all"]
        rows: list[list[Entry]] = [
            [
                one.method,
                *(Cell(value, f"{value:.1f}") for value in (one.lds.mean, one.lds.bootstrap_std)),
                *(Cell(value, f"{value:.1f}") for value in (one.lds.low, one.lds.high)),
                Cell(None, "–") if one.damping is None else Cell(one.damping, f"{one.damping:.2g}"),
                Cell(one.training, "?" if one.training is None else f"{one.training:.0f}"),
                *(
                    Cell(value, f"{value:.1f}")
                    for value in (one.features.gradients, one.features.projection, one.seconds)
                ),
            ]
            for one in self.results
        ]
        ceiling = "unknown, as there is one seed" if self.ceiling is None else f"{self.ceiling:.1f} %"
        if self.perfect is not None:
            ceiling += f"; perfect scores would reach about {self.perfect:.0f} %"
        notes = [
            f"{self.queries} queries, {self.subsets} subsets. ±: standard deviation, low and high: 95 % interval, of a "
            f"bootstrap over subsets. λ: ÷ the mean eigenvalue, {self.note}. Noise ceiling: {ceiling}.",
            "Seconds: TRAIN to retrain models, GRAD to compute gradients, PROJ to project them; all: all but TRAIN.",
        ]
        return Table(heads, rows, notes=notes)


def compare(
    benchmark: Benchmark,
    methods: Sequence[str],
    cache: Path,
    settings: Settings,
    *,
    model: Path | None = None,
    queries: str = "validation",
    output: str = "simple",
    damping: str = CHOSEN,
    grid: str = "log",
    device: str | None = None,
    engine: Engine | None = None,
) -> Comparison:
    """Compute the scores of methods and their LDS on a benchmark.

    `queries` are "validation" or "generated"; `output` is the objective that the scores should predict. `damping` is
    "chosen" (from the `grid`, on the first half of the subsets), "best" (from the `grid`, on the reported subsets, as
    in the paper), or anything that `Damping.parse` reads. `model` replaces the benchmark's model, for example with an
    earlier checkpoint of it.
    """
    check_comparison(methods, queries, output, damping, grid, settings)
    searches = damping in (CHOSEN, BEST)
    dampings = GRIDS[grid] if searches else (Damping.parse(damping),)
    masks, losses = benchmark.masks, benchmark.losses(queries, output)
    half = len(masks) // 2
    settings = replace(settings, retrained=benchmark.folder, subsets=half, output=output)
    task, chosen = prepare(
        model or benchmark.folder / "model",
        benchmark.train,
        benchmark.queries(queries),
        methods,
        settings if searches else replace(settings, damping=damping),
        cache,
        device,
        engine,
        tries_dampings=searches,
    )
    is_fitted = damping == CHOSEN or any(one.source.uses_retrained for one in chosen)
    if is_fitted and half < MIN_SUBSETS:
        raise UsageError(
            f"{benchmark.folder} has {len(masks)} subsets: too few to fit on one half and report on the other"
        )
    first, second = RetrainedModels(masks[:half], losses[:half]), RetrainedModels(masks[half:], losses[half:])
    reported = second if is_fitted else RetrainedModels(masks, losses)
    fitted = first if damping == CHOSEN else reported
    results = [_evaluate(task, one, dampings, fitted, reported, benchmark.training_seconds) for one in chosen]
    notes = {CHOSEN: f"chosen on the other {half} subsets", BEST: "the best in hindsight, on the reported subsets"}
    used = _portable(settings) | {"queries": queries, "output": output, "damping": damping, "grid": grid}
    return Comparison(
        results,
        ceiling(reported.losses),
        losses.shape[2],
        len(reported.masks),
        notes.get(damping, damping),
        used,
        losses.shape[1],
    )


def check_comparison(
    methods: Sequence[str], queries: str, output: str, damping: str, grid: str, settings: Settings
) -> None:
    """Refuse arguments that `compare` would refuse, before models are retrained for it."""
    chosen = chosen_methods(methods)
    check_objective(chosen, settings.objective)
    embeds = list(methods) != [EVERY_METHOD] and any(isinstance(one.source, Embeddings) for one in chosen)
    if settings.encoder != DEFAULT_ENCODER or embeds:
        load_encoder(settings.encoder)
    check_known("queries", queries, list(QUERIES))
    check_known("output function", output, list(OBJECTIVES))
    check_known("grid", grid, list(GRIDS))
    if damping not in (CHOSEN, BEST):
        Damping.parse(damping)


@dataclass(frozen=True, eq=False)
class RetrainedModels:
    """The subsets that models were retrained on, and the losses of these models."""

    masks: NDArray[np.bool_]  # [M, N]
    losses: NDArray[np.float32]  # [M, S, Q]


def _evaluate(
    task: Task,
    method: Method,
    dampings: Sequence[Damping],
    fitted: RetrainedModels,
    reported: RetrainedModels,
    training_seconds: float | None,
) -> Result:
    """Choose the damping whose LDS is best on `fitted`, and measure its LDS on `reported`."""
    tried = dampings if method.damped else dampings[:1]
    feature_seconds = method.source.seconds(task)
    started = time.monotonic()
    scores = scores_for(task, method, tried)
    seconds = feature_seconds + (time.monotonic() - started) / len(tried)
    means = [mean_lds(values, fitted.masks, fitted.losses) for values in scores] if len(tried) > 1 else [0.0]
    best = int(np.argmax(means))
    relative = _relative(task, method, tried)
    count = method.source.retrained_models(task)
    return Result(
        method.name,
        evaluate_lds(scores[best], reported.masks, reported.losses),
        relative[best] if relative else None,
        seconds,
        method.source.feature_cost(task),
        count * training_seconds if training_seconds is not None else None if count else 0.0,
        [*zip(relative, means, strict=True)] if len(tried) > 1 else [],
    )


def _relative(task: Task, method: Method, dampings: Sequence[Damping]) -> list[float]:
    """Divide each λ by the mean eigenvalue of the method's first model; a method without damping gets an empty list."""
    if not method.damped:
        return []
    first: Vectors = next(method.source.inputs(task))
    return [first.training.relative(damping) for damping in dampings]


def _portable(settings: Settings) -> dict[str, Any]:
    """Return the settings that mean the same on another machine: no paths, and no optional ones that were not given."""
    always = {*asdict(settings.features), "objective"}
    return {
        name: value
        for name, value in asdict(settings).items()
        if name in always or isinstance(value, int | float | str)
    }
