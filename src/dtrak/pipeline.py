"""What the commands do with a run: each step finds what is there already and adds what is missing."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dtrak.attribution import attribute, gather
from dtrak.benchmark import Benchmark
from dtrak.checking import check_run
from dtrak.damping import Damping
from dtrak.data import Images
from dtrak.encoders import DEFAULT_ENCODER, load_encoder
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.evaluation.comparison import CHOSEN, FEWEST, Comparison
from dtrak.evaluation.counterfactual import Counterfactual, evaluate_counterfactual
from dtrak.evaluation.redrawing import Question
from dtrak.evaluation.retraining import RetrainingSettings, make_benchmark
from dtrak.evidence import Evidence
from dtrak.featurizing import feature_settings
from dtrak.files import write_json, write_text
from dtrak.methods import split_methods
from dtrak.methods.method import Gradients
from dtrak.models import DiffusionModel
from dtrak.noise import stable_hash
from dtrak.recipes import Recipe
from dtrak.report import write_report
from dtrak.runs import Run
from dtrak.sampling import generate
from dtrak.scores import Scores, load_scores, save_scores
from dtrak.timesteps import select_timesteps
from dtrak.training import train

BENCHMARK = "benchmark"  # in a run's folder


def run_all(folder: Path, recipe: Recipe, device: str) -> Path:
    """Train, generate, attribute what was generated, and report; gives the report's path."""
    check_run(Run(folder, recipe), device)
    run = Run.create(folder, recipe)
    model = train(run, device)
    generation = recipe.generation
    generate(run, model, generation.count, generation.seed, generation.steps)
    attribute_run(run, model, str(run.folder / "generated"), {}, device)
    return write_report(run)


def attribute_run(
    run: Run, model: DiffusionModel, queries: str, changes: Mapping[str, Any], device: str
) -> dict[str, Scores]:
    """Score the run's training images as its recipe says, but for the `changes`.

    The run keeps the scores as scores.npz, and how they were made as attribution.json, for its report. The same
    question is not answered twice.
    """
    settings = _scoring(run, changes)
    methods, cache, engine = (settings.pop(name) for name in ("method", "cache", "engine"))
    train_images, query_images = run.train_images, run.query_images(queries)
    made_by: dict[str, Any] = {
        "dtrak": version("dtrak"),
        "queries": run.portable(queries),
        "method": methods,
        **_portable(run, settings),
        "fingerprints": [model.fingerprint, train_images.fingerprint, query_images.fingerprint],
    }
    if "retrained" in settings:
        made_by["fingerprints"].append(Benchmark.open(settings["retrained"]).fingerprint)
    scores_path, made_by_path = run.folder / "scores.npz", run.folder / "attribution.json"
    earlier = json.loads(made_by_path.read_text()) if scores_path.exists() and made_by_path.exists() else {}
    if made_by.items() <= earlier.items():
        return load_scores(scores_path)
    started = time.monotonic()
    scores: dict[str, Scores] = attribute(
        model, train_images, query_images, methods, cache=cache, device=device, engine=engine, **settings
    )
    made_by_path.unlink(missing_ok=True)  # so that the two never speak of different scores
    save_scores(scores_path, scores)
    write_json(made_by_path, made_by | {"seconds": round(time.monotonic() - started, 1)})
    return scores


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


def keep_comparison(run: Run, found: Comparison) -> None:
    """Keep what was measured of the run's benchmark, each way to score on its own, for the report's curves."""
    methods = [one.method for one in found.results]
    name = f"{stable_hash(repr((methods, found.subsets, found.queries, found.settings))):016x}"
    write_text(run.folder / "lds" / f"{name}.json", found.json())


def benchmark_settings(run: Run, changes: Mapping[str, Any]) -> dict[str, Any]:
    """How methods score against the run's benchmark: as its recipe says, but for the `changes`.

    The benchmark has copies of the run's images, so their features have a cache of their own.
    """
    settings = _scoring(run, changes, f"{BENCHMARK}-")
    for name in ("method", "damping", "engine", "retrained"):  # which are the command's own
        settings.pop(name, None)
    return settings


def counterfactual_run(question: Question, changes: Mapping[str, Any], engine: Engine) -> list[Counterfactual]:
    """Retrain the run's model without what methods hold to have made its pictures, and compare what it draws then.

    Scores are made as `attribute_run` makes them. Those of methods that follow a picture on its way are of the step
    asked about; the others' are the same at every step.
    """
    run = question.run
    encoder = load_encoder(changes.get("encoder", DEFAULT_ENCODER), str(question.model.device))
    damping = changes.get("damping", run.recipe.attribution.damping)
    parsed_damping = Damping.parse(damping)
    first, *others = question.steps
    gathered = partial(gather_run, run, question.model, question.queries)
    every = gathered({**changes, "step": first})
    scores = {first: {method.name: every.scores(method, parsed_damping) for method in every.methods}}
    own = [method for method in every.methods if isinstance(method.source, Gradients) and method.source.journey]
    for step in others:
        scores[step] = dict(scores[first])
        if own:
            names = ",".join(method.name for method in own)
            at_step = gathered({**changes, "method": names, "step": step})
            scores[step] |= {method.name: at_step.scores(method, parsed_damping) for method in own}
    made_by = {
        "damping": damping,
        "objective": every.objective,
        **asdict(every.settings),
        **_portable(run, {name: value for name, value in asdict(every.resources).items() if name != "step"}),
    }
    return evaluate_counterfactual(question, scores, encoder, engine, made_by)


def gather_run(run: Run, model: DiffusionModel, queries: Images, changes: Mapping[str, Any]) -> Evidence:
    """What some methods score a run's training images from, as its recipe says, but for the `changes`."""
    settings = _scoring(run, changes)
    methods, cache, damping = (settings.pop(name) for name in ("method", "cache", "damping"))
    with_partners = Damping.parse(damping).asks_partner
    return gather(model, run.train_images, queries, methods, cache, with_partners=with_partners, **settings)


def _scoring(run: Run, changes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """How a run's images are scored: as its recipe says and with what it has, but for the `changes`.

    Every way to make features has a folder of its own in the run, whose name begins with the `prefix`.
    """
    settings = run.recipe.attribution.model_dump() | _resources(run) | {"engine": None} | dict(changes)
    settings["method"] = split_methods(settings["method"], settings["objective"])
    name = prefix + _features_name(settings, run.recipe.model.timesteps)
    settings.setdefault("cache", run.folder / "features" / name)
    return settings


def _portable(run: Run, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same with paths that name their files from anywhere."""
    return {name: run.portable(str(one)) if isinstance(one, Path) else one for name, one in settings.items()}


def _resources(run: Run) -> dict[str, Any]:
    """What a run has beside its model and images."""
    found: dict[str, Any] = {"ddim_steps": run.recipe.generation.steps}
    if run.recipe.model.kind != "ddpm":
        found |= {"guidance": run.recipe.generation.guidance, "latents": run.latents}
    if (run.folder / "checkpoints").exists():
        found["checkpoints"] = run.folder / "checkpoints"
    if (run.folder / BENCHMARK / "masks.npy").exists():  # written when it is complete
        found["retrained"] = run.folder / BENCHMARK
    return found


def _features_name(settings: Mapping[str, Any], total: int) -> str:
    """A name of its own for every way to make features, however the T = `total` timesteps are chosen."""
    found = feature_settings(settings)
    values = asdict(found) | {"timesteps": select_timesteps(found.timesteps, total)}
    del values["batch_size"], values["skip_bad"], values["projection_seed"]  # features are the same
    return f"{found.projection}-{found.projection_dim}-{stable_hash(repr(values)):016x}"
