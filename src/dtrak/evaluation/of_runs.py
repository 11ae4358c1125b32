"""Put a run to the test: its benchmark of retrained models, LDS against it, and counterfactuals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dtrak.attribution.scoring import scores_for
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.evaluation.comparison import CHOSEN, FEWEST, Comparison
from dtrak.evaluation.counterfactual import Counterfactual, evaluate_counterfactual
from dtrak.evaluation.redrawing import RedrawnPictures
from dtrak.evaluation.retraining import RetrainingSettings, make_benchmark
from dtrak.features.encoders import load_encoder
from dtrak.files import write_text
from dtrak.images.images import Images
from dtrak.inputs.benchmark import Benchmark
from dtrak.inputs.gradients import Gradients
from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping
from dtrak.methods import Method
from dtrak.noise import stable_hash
from dtrak.runs.attributing import features_folder, portable_settings, prepare_run
from dtrak.runs.run import BENCHMARK, Run


def benchmark_run(run: Run, settings: RetrainingSettings, engine: Engine, device: str) -> Benchmark:
    """Retrain the run's model on random subsets, for its first validation images and the first it has generated."""
    queries: dict[str, Images] = {}
    if run.validation_images is not None:
        queries["validation"] = run.validation_images.first(settings.validation)
    if (run.folder / "generated").exists():
        queries["generated"] = run.query_images(str(run.folder / "generated")).first(settings.generated)
    if not queries:
        raise UsageError(
            f"{run.folder} has nothing to ask about: its recipe names no validation images, and it has no generated "
            f"ones (`dtrak generate {run.folder}`)"
        )
    folder = run.folder / BENCHMARK
    make_benchmark(run, folder, settings, engine, queries, device)
    return Benchmark.open(folder)


def check_can_answer(run: Run, queries: str, damping: str, subsets: int) -> None:
    """Refuse a question about a run's benchmark that no retraining would answer."""
    if queries == "validation" and run.recipe.data.validation is None:
        raise UsageError(f"{run.folder}: its recipe names no validation images; ask for --queries generated")
    if queries == "generated" and not (run.folder / "generated").exists():
        raise UsageError(f"{run.folder} has no generated pictures yet: `dtrak generate {run.folder}`")
    if damping == CHOSEN and subsets < 2 * FEWEST:
        raise UsageError(f"subsets {subsets}: too few to choose the damping on one half and report on the other")


def benchmark_features_folder(run: Run, settings: Settings) -> Path:
    """A run's benchmark has copies of the run's images, so their features have a folder of their own."""
    return features_folder(run, settings, f"{BENCHMARK}-")


def keep_comparison(run: Run, found: Comparison) -> None:
    """Keep what was measured of the run's benchmark, each way to score on its own, for the report's curves."""
    methods = [one.method for one in found.results]
    name = f"{stable_hash(repr((methods, found.subsets, found.queries, found.settings))):016x}"
    write_text(run.folder / "lds" / f"{name}.json", found.json())


def counterfactual_run(
    redrawn: RedrawnPictures,
    methods: Sequence[str],
    settings: Settings,
    engine: Engine,
    *,
    cache: Path | None = None,
    gradient_engine: Engine | None = None,
) -> list[Counterfactual]:
    """Retrain the run's model without what methods hold to have made its pictures, and compare what it draws then.

    Scores of methods that follow a picture along its trajectory are of the step asked about; those of the others are
    the same at every step.
    """
    run, damping = redrawn.run, Damping.parse(settings.damping)
    encoder = load_encoder(settings.encoder, str(redrawn.model.device))
    first, *others = redrawn.steps

    def prepared(names: Sequence[str], step: int | None) -> tuple[Task, list[Method]]:
        at_step = replace(settings, step=step)
        return prepare_run(run, redrawn.model, redrawn.queries, names, at_step, cache, gradient_engine)

    task, chosen = prepared(methods, first)
    scores = {first: {method.name: scores_for(task, method, [damping])[0] for method in chosen}}
    following = [one for one in chosen if isinstance(one.source, Gradients) and one.source.along_trajectory]
    for step in others:
        scores[step] = dict(scores[first])
        if following:
            task, own = prepared([one.name for one in following], step)
            scores[step] |= {method.name: scores_for(task, method, [damping])[0] for method in own}
    made_by = portable_settings(run, settings)
    made_by.pop("step")
    return evaluate_counterfactual(redrawn, scores, encoder, engine, made_by)
