"""Compare methods on a benchmark: the LDS of each, its error, its damping and its cost.

A chosen damping is fitted on the first half of the subsets, and the LDS is reported on the second half. So is a method
that learns from retrained models, unless it has models of its own: a folder of other subsets. If nothing is fitted on
the benchmark, the LDS is reported on all of its subsets.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.answer import score
from dtrak.attribution.benchmark_folder import QUERIES, Benchmark
from dtrak.attribution.formula_inputs import inputs_of
from dtrak.attribution.opened import Opened, checked, possible
from dtrak.attribution.question import Question
from dtrak.attribution.required_gradients import check_objective
from dtrak.attribution.settings import DEFAULT_ENCODER, Settings
from dtrak.engines import Engine
from dtrak.errors import UsageError, check_known
from dtrak.evaluation.lds import LDS, ceiling, evaluate_lds, mean_lds, perfect_lds
from dtrak.features.encoders import load_encoder
from dtrak.features.store import Cost
from dtrak.files import write_text
from dtrak.fingerprints import hash_of
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.images import ImageSource
from dtrak.kernels.damping import GRIDS, Damping, for_scaled
from dtrak.methods import EVERY_METHOD, Method, chosen_methods
from dtrak.methods.method import Embeddings, Gradients, Outcomes
from dtrak.models.model_source import ModelSource
from dtrak.runs.run import Run
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
    absolute: float | None  # λ itself
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
    question: Mapping[str, Any]  # what was asked, with its facts
    settings: Mapping[str, Any]  # what the scores should predict, and how the damping was found
    paper_scale: int | None = None  # if the dampings of the paper were tried, each was divided by this
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
                    "absolute_damping": one.absolute,
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
            "question": dict(self.question),
            "paper_scale": self.paper_scale,
        }
        return json.dumps(content, indent=1) + "\n"

    def table(self) -> Table:
        """Return a table with a row for each method."""
        scale = self.paper_scale
        heads = ["method", "LDS %", "bootstrap", "±", "low", "high", "λ", *["paper's λ"] * (scale is not None)]
        heads += ["TRAIN", "GRAD", "PROJ", "all"]
        rows: list[list[Entry]] = [
            [
                one.method,
                *(Cell(value, f"{value:.1f}") for value in (one.lds.mean, one.lds.bootstrap_mean)),
                *(Cell(value, f"{value:.1f}") for value in (one.lds.bootstrap_std, one.lds.low, one.lds.high)),
                _lambda_cell(one.damping),
                *([] if scale is None else [_lambda_cell(None if one.absolute is None else scale * one.absolute)]),
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
            f"{self.queries} queries, {self.subsets} subsets. LDS: the mean over queries. bootstrap, ±, low and high: "
            "mean, standard deviation and 95 % interval of a bootstrap over subsets; the paper reports its mean and ±. "
            f"λ: ÷ the mean eigenvalue, {self.note}. Noise ceiling: {ceiling}.",
            "Seconds: TRAIN to retrain models, GRAD to compute gradients, PROJ to project them; all: all but TRAIN.",
        ]
        return Table(heads, rows, notes=notes)


def compare(
    benchmark: Benchmark,
    methods: Sequence[str | Method],
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
    earlier checkpoint of it. Methods that learn from retrained models learn from those of `settings.retrained`, if it
    is another folder, and from the first half of the benchmark's if not.
    """
    records = chosen_methods(methods, settings.objective)
    check_comparison(records, queries, output, damping, grid, settings)
    searches = damping in (CHOSEN, BEST)
    scale = paper_scale(settings) if searches and grid == "paper" else None
    dampings = for_scaled(GRIDS[grid], scale or 1) if searches else (Damping.parse(damping),)
    masks, losses = benchmark.masks, benchmark.losses(queries, output)
    half = len(masks) // 2
    others = other_models(benchmark, settings.retrained)
    if others is None:
        count = min(half, settings.retrained_count or half)
        settings = replace(settings, retrained=benchmark.folder, retrained_count=count)
    # A search tries other dampings than that of the settings; a rule there would need one more objective.
    settings = replace(settings, output=output, damping=1.0 if searches else damping)
    question = Question(
        ModelSource(str(model or benchmark.folder / "model")),
        ImageSource(benchmark.train),
        ImageSource(benchmark.queries(queries)),
        records,
        settings,
    )
    opened = Opened(question, cache, device=device, engine=engine, one_damping=len(dampings) == 1)
    opened = possible(opened) if list(methods) == [EVERY_METHOD] else checked(opened)
    chosen = opened.question.methods
    is_fitted = damping == CHOSEN or (others is None and any(uses_retrained(one) for one in chosen))
    if is_fitted and half < MIN_SUBSETS:
        raise UsageError(
            f"{benchmark.folder} has {len(masks)} subsets: too few to fit on one half and report on the other"
        )
    first, second = RetrainedModels(masks[:half], losses[:half]), RetrainedModels(masks[half:], losses[half:])
    reported = second if is_fitted else RetrainedModels(masks, losses)
    fitted = first if damping == CHOSEN else reported
    training_seconds = (others or benchmark).training_seconds
    results = [_evaluate(opened, one, dampings, fitted, reported, training_seconds) for one in chosen]
    notes = {CHOSEN: f"chosen on the other {half} subsets", BEST: "the best in hindsight, on the reported subsets"}
    note = notes.get(damping, damping)
    if scale is not None:
        note += f", of the paper's {len(dampings)} λ, each ÷ {scale:,}: its random matrix is not divided by √k, ours is"
    used = {"queries": queries, "output": output, "damping": damping, "grid": grid}
    if model is not None:
        used["checkpoint"] = model.name
    counts = losses.shape[2], len(reported.masks)
    facts = {**opened.facts, "settings": {**opened.facts["settings"], "damping": damping}}
    asked = replace(question, methods=chosen).asked(facts)
    return Comparison(results, ceiling(reported.losses), *counts, note, asked, used, scale, losses.shape[1])


def save_comparison(run: Run, comparison: Comparison) -> None:
    """Write a comparison into the run's folder lds/, with a file for each question, for the report."""
    about = [comparison.question["facts"], comparison.subsets, comparison.queries, dict(comparison.settings)]
    write_text(run.folder / "lds" / f"{hash_of(about)}.json", comparison.json())


def uses_retrained(method: Method) -> bool:
    """Tell whether a method needs retrained models."""
    needs = method.needs
    return isinstance(needs, Outcomes) or (isinstance(needs, Gradients) and needs.models == "retrained")


def paper_scale(settings: Settings) -> int:
    """Return k, by which the paper's λ are divided; 1 for features that are not projected."""
    return 1 if settings.projection == "identity" else settings.projection_dim


def other_models(benchmark: Benchmark, retrained: str | Path | None) -> Benchmark | None:
    """Open a folder of other retrained models than the benchmark's; None if there is none.

    Refuse a folder that has a subset in common with the benchmark: methods would learn what they have to predict.
    """
    if retrained is None or Path(retrained).resolve() == benchmark.folder.resolve():
        return None
    others = Benchmark.open(retrained)
    known = {one.tobytes() for one in benchmark.masks}
    for index, one in enumerate(others.masks):
        if one.tobytes() in known:
            raise UsageError(
                f"--retrained {retrained}: its subset {index} is one of {benchmark.folder}, so methods would learn "
                "what they have to predict"
            )
    return others


def check_comparison(
    methods: Sequence[Method], queries: str, output: str, damping: str, grid: str, settings: Settings
) -> None:
    """Refuse arguments that `compare` would refuse, before models are retrained for it."""
    check_objective(methods, settings)
    embeds = any(isinstance(one.needs, Embeddings) for one in methods)
    if isinstance(settings.encoder, str) and (settings.encoder != DEFAULT_ENCODER or embeds):
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
    opened: Opened,
    method: Method,
    dampings: Sequence[Damping],
    fitted: RetrainedModels,
    reported: RetrainedModels,
    training_seconds: float | None,
) -> Result:
    """Choose the damping whose LDS is best on `fitted`, and measure its LDS on `reported`."""
    tried = dampings if method.kernel is not None else dampings[:1]
    method = replace(method, self_influence=False)
    features = opened.cost(method)
    started = time.monotonic()
    scores, _, _ = score(opened, method, tried)
    seconds = features.gradients + features.projection + (time.monotonic() - started) / len(tried)
    means = [mean_lds(values, fitted.masks, fitted.losses) for values in scores] if len(tried) > 1 else [0.0]
    best = int(np.argmax(means))
    absolute, relative = [], []
    if method.kernel is not None:
        first = next(inputs_of(opened, method)).fitted
        assert first is not None
        absolute = [first.absolute(one) for one in tried]
        relative = [λ * first.kernel.size / first.kernel.trace for λ in absolute]
    models = 0
    if isinstance(method.needs, Outcomes):
        models = len(opened.benchmark.masks[: opened.question.settings.retrained_count])
    elif uses_retrained(method):
        models = len(opened.members("retrained"))
    return Result(
        method.name,
        evaluate_lds(scores[best], reported.masks, reported.losses),
        relative[best] if relative else None,
        absolute[best] if absolute else None,
        seconds,
        features,
        models * training_seconds if training_seconds is not None else None if models else 0.0,
        [*zip(relative, means, strict=True)] if len(tried) > 1 else [],
    )


def _lambda_cell(value: float | None) -> Cell:
    return Cell(None, "–") if value is None else Cell(value, f"{value:.2g}")
