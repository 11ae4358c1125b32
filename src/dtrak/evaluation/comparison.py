"""Methods side by side on a benchmark: the LDS of each, its error, its damping and what it took.

What is fitted is fitted on the first half of the subsets and reported on the other: the damping, and the methods that
learn from retrained models. Where nothing is fitted, all subsets count.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.attributing import check_objective, gather
from dtrak.attribution.benchmark import QUERIES, Benchmark
from dtrak.attribution.evidence import Evidence, Resources
from dtrak.errors import UsageError, choose
from dtrak.evaluation.lds import LDS, ceiling, evaluate_lds, mean_lds
from dtrak.features.encoders import DEFAULT_ENCODER, load_encoder
from dtrak.features.featurizing import feature_settings
from dtrak.features.store import Cost
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.kernels.damping import GRIDS, Damping
from dtrak.methods import ALL, Method, chosen_methods
from dtrak.methods.inputs import Vectors
from dtrak.methods.method import Embeddings, Gradients, Outcomes
from dtrak.models import load_model
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
    *,
    model: Path | None = None,
    queries: str = "validation",
    output: str = "simple",
    damping: str = CHOSEN,
    grid: str = "log",
    **settings: Any,
) -> Comparison:
    """Score methods against a benchmark.

    `queries` are "validation" or "generated"; `output` is the objective that the scores should predict. `damping` is
    "chosen" from the `grid` on the first half of the subsets; "best" on the reported ones, as the paper has it; or what
    `Damping.parse` takes. `model` is another than the benchmark's own, such as an earlier checkpoint of it. `settings`
    are those of `attribute`.
    """
    check_question(methods, queries, output, damping, grid, settings)
    dampings = GRIDS[grid] if damping in (CHOSEN, BEST) else (Damping.parse(damping),)
    masks, losses = benchmark.masks, benchmark.losses(queries, output)
    half = len(masks) // 2
    evidence = gather(
        load_model(str(model or benchmark.folder / "model")),
        benchmark.train,
        benchmark.queries(queries),
        methods,
        cache,
        retrained=benchmark.folder,
        subsets=half,
        output=output,
        with_partners=any(one.asks_partner for one in dampings),
        **settings,
    )
    is_fitted = damping == CHOSEN or any(map(_learns_from_retrained, evidence.methods))
    if is_fitted and half < FEWEST:
        raise UsageError(
            f"{benchmark.folder} has {len(masks)} subsets: too few to fit on one half and report on the other"
        )
    first, second = Truth(masks[:half], losses[:half]), Truth(masks[half:], losses[half:])
    reported = second if is_fitted else Truth(masks, losses)
    fitted = first if damping == CHOSEN else reported
    results = [
        _evaluate(evidence, one, dampings, fitted, reported, benchmark.training_seconds) for one in evidence.methods
    ]
    notes = {CHOSEN: f"chosen on the other {half} subsets", BEST: "the best in hindsight, on the reported subsets"}
    made_by = {"queries": queries, "output": output, "damping": damping, "grid": grid, "objective": evidence.objective}
    made_by |= asdict(evidence.settings) | _told(evidence.resources)
    return Comparison(
        results, ceiling(reported.losses), losses.shape[2], len(reported.masks), notes.get(damping, damping), made_by
    )


def check_question(
    methods: Sequence[str], queries: str, output: str, damping: str, grid: str, settings: Mapping[str, Any]
) -> None:
    """Refuse what `compare` would, before any model is retrained for it."""
    chosen = chosen_methods(methods)
    check_objective(chosen, settings.get("objective"))
    feature_settings(settings)
    if "encoder" in settings or (list(methods) != [ALL] and any(isinstance(one.source, Embeddings) for one in chosen)):
        load_encoder(settings.get("encoder", DEFAULT_ENCODER))
    choose("queries", queries, list(QUERIES))
    choose("output function", output, list(OBJECTIVES))
    choose("grid", grid, list(GRIDS))
    if damping not in (CHOSEN, BEST):
        Damping.parse(damping)


@dataclass(frozen=True, eq=False)
class Truth:
    """What models retrained on some subsets do."""

    masks: NDArray[np.bool_]  # [M, N]
    losses: NDArray[np.float32]  # [M, S, Q]


def _evaluate(
    evidence: Evidence,
    method: Method,
    dampings: Sequence[Damping],
    fitted: Truth,
    reported: Truth,
    training_seconds: float | None,
) -> Result:
    tried = dampings if method.damped else dampings[:1]
    making = evidence.seconds(method)
    started = time.monotonic()
    scores = evidence.scores_for(method, tried)
    seconds = making + (time.monotonic() - started) / len(tried)
    worth = [mean_lds(values, fitted.masks, fitted.losses) for values in scores] if len(tried) > 1 else [0.0]
    best = int(np.argmax(worth))
    relative = _relative(evidence, method, tried)
    count = evidence.retrained_models(method)
    return Result(
        method.name,
        evaluate_lds(scores[best], reported.masks, reported.losses),
        relative[best] if relative else None,
        seconds,
        evidence.cost(method),
        count * training_seconds if training_seconds is not None else None if count else 0.0,
        [*zip(relative, worth, strict=True)] if len(tried) > 1 else [],
    )


def _relative(evidence: Evidence, method: Method, dampings: Sequence[Damping]) -> list[float]:
    """Each λ over the mean eigenvalue, for the first of the method's models; nothing for methods without damping."""
    if not method.damped:
        return []
    first: Vectors = next(evidence.inputs(method))
    return [first.absolute(damping) / first.kernel.mean_eigenvalue for damping in dampings]


def _told(resources: Resources) -> dict[str, Any]:
    """What methods took beside the model and the images, in words that mean the same elsewhere."""
    return {name: value for name, value in asdict(resources).items() if isinstance(value, int | float | str)}


def _learns_from_retrained(method: Method) -> bool:
    source = method.source
    return isinstance(source, Outcomes) or (isinstance(source, Gradients) and source.models == "retrained")
