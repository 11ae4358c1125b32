"""Score a run's images for its evaluations: LDS, credit against trainings without groups, counterfactuals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dtrak.attribution.scoring import score, scores_for
from dtrak.engines import Engine
from dtrak.evaluation.benchmark_making import RetrainingSettings, queries_of
from dtrak.evaluation.comparison import Comparison
from dtrak.evaluation.counterfactual import Counterfactual, Redrawing, evaluate_counterfactual
from dtrak.evaluation.left_out import CreditComparison, compare_credit, leave_groups_out
from dtrak.features.encoders import load_encoder
from dtrak.files import write_text
from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping
from dtrak.methods import Gradients, Method
from dtrak.noise import stable_hash
from dtrak.runs.attributing import features_folder, portable_settings, prepare_run
from dtrak.runs.run import BENCHMARK, Run


def benchmark_features_folder(run: Run, settings: Settings, checkpoint: Path | None = None) -> Path:
    """Return the folder for features of the benchmark's images, which are copies of the run's images."""
    name = BENCHMARK if checkpoint is None else f"{BENCHMARK}-{checkpoint.name}"
    return features_folder(run, settings, f"{name}-")


def save_comparison(run: Run, comparison: Comparison) -> None:
    """Write a comparison into the run's folder lds/, with a file for each combination of settings, for the report."""
    methods = [one.method for one in comparison.results]
    key = (methods, comparison.subsets, comparison.queries, comparison.settings)
    write_text(run.folder / "lds" / f"{stable_hash(repr(key)):016x}.json", comparison.json())


def credit_run(
    run: Run,
    by: str,
    kind: str,
    methods: Sequence[str],
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
    damping, model = Damping.parse(settings.damping), run.model().to(device)
    task, chosen = prepare_run(run, model, queries[kind], methods, settings, cache, gradient_engine)
    credit = {one.name: score(task, one, damping).only_highest(highest).groups(by).shares for one in chosen}
    return compare_credit(credit, left_out, kind)


def counterfactual_run(
    redrawing: Redrawing,
    methods: Sequence[str],
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
    encoder = load_encoder(settings.encoder, str(redrawing.model.device))
    first, *others = redrawing.steps

    def prepared(names: Sequence[str], step: int | None) -> tuple[Task, list[Method]]:
        at_step = replace(settings, step=step)
        return prepare_run(run, redrawing.model, redrawing.queries, names, at_step, cache, gradient_engine)

    task, chosen = prepared(methods, first)
    scores = {first: {method.name: scores_for(task, method, [damping])[0] for method in chosen}}
    drawn = [one for one in chosen if isinstance(one.needs, Gradients) and one.needs.queries == "trajectories"]
    trajectory_names = [one.name for one in drawn]
    for step in others:
        scores[step] = dict(scores[first])
        if trajectory_names:
            task, chosen = prepared(trajectory_names, step)
            scores[step] |= {method.name: scores_for(task, method, [damping])[0] for method in chosen}
    score_settings = portable_settings(run, settings)
    score_settings.pop("step")
    return evaluate_counterfactual(redrawing, scores, encoder, engine, score_settings)
