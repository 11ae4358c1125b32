"""Methods side by side on a benchmark: the LDS of each, its error, its damping and what it took.

What is fitted is fitted on the first half of the subsets and reported on the other: the damping, and the methods that
learn from retrained models. Where nothing is fitted, all subsets count.
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
from dtrak.evaluation.lds import LDS, ceiling, evaluate_lds, mean_lds
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

FEWEST = 2  # subsets in a half, that a rank correlation can be of
CHOSEN, BEST = "chosen", "best"  # dampings that look at retrained models: at half of them, or at those reported on


@dataclass(frozen=True)
class Result:
    """One method on a benchmark."""

    method: str
    lds: LDS
    damping: float | None  # as a fraction of the mean eigenvalue; None where there is none
    seconds: float  # to score, features included
    features: Cost  # their part of it
    training: float | None  # seconds to train the models that it asks, beside that; None where they are not known
    curve: Sequence[tuple[float, float]] = ()  # the LDS at each damping, where several were tried


@dataclass(frozen=True)
class Comparison:
    results: Sequence[Result]
    ceiling: float | None
    queries: int
    subsets: int  # that the LDS is over
    note: str  # how the damping came about
    settings: Mapping[str, Any]  # how the scores were made, and what they were to predict

    def json(self) -> str:
        """For programs, with the LDS of every query."""
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
            "queries": self.queries,
            "subsets": self.subsets,
            "note": self.note,
            "settings": dict(self.settings),
        }
        return json.dumps(content, indent=1) + "\n"

    def table(self) -> Table:
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
        notes = [
            f"{self.queries} queries, {self.subsets} subsets. ±: standard deviation, low and high: 95 % interval, of a "
            f"bootstrap over subsets. λ: ÷ the mean eigenvalue, {self.note}. Noise ceiling: {ceiling}.",
            "Seconds: TRAIN to retrain models, GRAD, PROJ to compute and project gradients; all to score, TRAIN aside.",
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
    """Score methods against a benchmark.

    `queries` are "validation" or "generated"; `output` is the objective that the scores should predict. `damping` is
    "chosen" from the `grid` on the first half of the subsets; "best" on the reported ones, as the paper has it; or what
    `Damping.parse` takes. `model` is another than the benchmark's own, such as an earlier checkpoint of it.
    """
    check_question(methods, queries, output, damping, grid, settings)
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
    if is_fitted and half < FEWEST:
        raise UsageError(
            f"{benchmark.folder} has {len(masks)} subsets: too few to fit on one half and report on the other"
        )
    first, second = Truth(masks[:half], losses[:half]), Truth(masks[half:], losses[half:])
    reported = second if is_fitted else Truth(masks, losses)
    fitted = first if damping == CHOSEN else reported
    results = [_evaluate(task, one, dampings, fitted, reported, benchmark.training_seconds) for one in chosen]
    notes = {CHOSEN: f"chosen on the other {half} subsets", BEST: "the best in hindsight, on the reported subsets"}
    made_by = _plain(settings) | {"queries": queries, "output": output, "damping": damping, "grid": grid}
    return Comparison(
        results, ceiling(reported.losses), losses.shape[2], len(reported.masks), notes.get(damping, damping), made_by
    )


def check_question(
    methods: Sequence[str], queries: str, output: str, damping: str, grid: str, settings: Settings
) -> None:
    """Refuse what `compare` would, before any model is retrained for it."""
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
class Truth:
    """What models retrained on some subsets do."""

    masks: NDArray[np.bool_]  # [M, N]
    losses: NDArray[np.float32]  # [M, S, Q]


def _evaluate(
    task: Task,
    method: Method,
    dampings: Sequence[Damping],
    fitted: Truth,
    reported: Truth,
    training_seconds: float | None,
) -> Result:
    tried = dampings if method.damped else dampings[:1]
    making = method.source.seconds(task)
    started = time.monotonic()
    scores = scores_for(task, method, tried)
    seconds = making + (time.monotonic() - started) / len(tried)
    worth = [mean_lds(values, fitted.masks, fitted.losses) for values in scores] if len(tried) > 1 else [0.0]
    best = int(np.argmax(worth))
    relative = _relative(task, method, tried)
    count = method.source.retrained_models(task)
    return Result(
        method.name,
        evaluate_lds(scores[best], reported.masks, reported.losses),
        relative[best] if relative else None,
        seconds,
        method.source.feature_cost(task),
        count * training_seconds if training_seconds is not None else None if count else 0.0,
        [*zip(relative, worth, strict=True)] if len(tried) > 1 else [],
    )


def _relative(task: Task, method: Method, dampings: Sequence[Damping]) -> list[float]:
    """Each λ over the mean eigenvalue, for the first of the method's models; nothing for methods without damping."""
    if not method.damped:
        return []
    first: Vectors = next(method.source.inputs(task))
    return [first.training.relative(damping) for damping in dampings]


def _plain(settings: Settings) -> dict[str, Any]:
    """The settings that mean the same elsewhere: no paths, and of what only some methods need, what was given."""
    always = {*asdict(settings.features), "objective"}
    return {
        name: value
        for name, value in asdict(settings).items()
        if name in always or isinstance(value, int | float | str)
    }
