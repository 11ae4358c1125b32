"""Score a run's images for its evaluations: LDS, credit against trainings without groups, counterfactuals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.answer import answer, score
from dtrak.attribution.settings import Settings
from dtrak.engines import Engine
from dtrak.evaluation.benchmark_making import RetrainingSettings, queries_of
from dtrak.evaluation.comparison import Comparison
from dtrak.evaluation.counterfactual import Counterfactual, Redrawing, evaluate_counterfactual
from dtrak.evaluation.left_out import CreditComparison, compare_credit, leave_groups_out
from dtrak.features.encoders import load_encoder
from dtrak.files import write_text
from dtrak.fingerprints import Facts, hash_of
from dtrak.images.images import ImageSource
from dtrak.kernels.damping import Damping
from dtrak.methods import Method
from dtrak.methods.method import Gradients
from dtrak.runs.run import Run
from dtrak.runs.run_questions import opened_run, question_of


def save_comparison(run: Run, comparison: Comparison) -> None:
    """Write a comparison into the run's folder lds/, with a file for each question, for the report."""
    about = [comparison.question["facts"], comparison.subsets, comparison.queries, dict(comparison.settings)]
    write_text(run.folder / "lds" / f"{hash_of(about)}.json", comparison.json())


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
) -> CreditComparison:
    """Compare the methods' credit by a column, from all or the `highest` scores, with trainings without each group."""
    queries = queries_of(run, retraining)
    left_out = leave_groups_out(run, by, retraining, engine, queries, device)
    question = question_of(run, ImageSource(queries[kind]), methods, settings)
    opened = opened_run(run, question, cache=cache, device=device, engine=gradient_engine, one_damping=True)
    scores = answer(opened)
    credit = {name: one.only_highest(highest).groups(by).shares for name, one in scores.items()}
    return compare_credit(credit, left_out, kind)


def counterfactual_run(
    redrawing: Redrawing,
    methods: Sequence[Method],
    settings: Settings,
    engine: Engine,
    *,
    cache: Path | None = None,
    gradient_engine: Engine | None = None,
) -> list[Counterfactual]:
    """Retrain the run's model without the images that methods score highest, and compare the pictures it draws.

    Methods that use gradients along a picture's trajectory have other scores at each timestep; all other methods have
    the same scores at every timestep.
    """
    run, damping = redrawing.run, Damping.parse(settings.damping)
    encoder = load_encoder(str(settings.encoder), str(redrawing.model.device))
    first, *others = redrawing.steps
    asked: Facts = {}

    def scored(chosen: Sequence[Method], step: int | None) -> dict[str, NDArray[np.float32]]:
        nonlocal asked
        question = question_of(run, ImageSource(redrawing.queries), chosen, replace(settings, step=step))
        opened = opened_run(run, question, cache=cache, device=redrawing.device, engine=gradient_engine)
        asked = asked or question.asked(opened.facts)
        return {one.name: score(opened, replace(one, self_influence=False), [damping])[0][0] for one in chosen}

    scores = {first: scored(methods, first)}
    along = [one for one in methods if isinstance(one.needs, Gradients) and one.needs.queries == "trajectories"]
    for step in others:
        scores[step] = scores[first] | (scored(along, step) if along else {})
    return evaluate_counterfactual(redrawing, scores, encoder, engine, asked)
