"""What the commands do with a run: each step finds what is there already and adds what is missing."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dtrak.attribution import attribute, objective_of
from dtrak.featurizing import FeatureSettings
from dtrak.files import write_json
from dtrak.kernels import Damping
from dtrak.methods import get_method, split_methods
from dtrak.models import DiffusionModel
from dtrak.noise import stable_hash
from dtrak.objectives import get_objective
from dtrak.recipes import Recipe
from dtrak.report import write_report
from dtrak.runs import Run
from dtrak.sampling import generate
from dtrak.scores import Scores, load_scores, save_scores
from dtrak.timesteps import select_timesteps
from dtrak.training import train


def run_all(folder: Path, recipe: Recipe, device: str) -> Path:
    """Train, generate, attribute what was generated, and report; gives the report's path."""
    _check_attribution(recipe)
    run = Run.create(folder, recipe)
    model = train(run, device)
    generation = recipe.generation
    generate(run, model, generation.count, generation.seed, generation.steps)
    attribute_run(run, model, str(run.folder / "generated"), {}, device)
    return write_report(run)


def _check_attribution(recipe: Recipe) -> None:
    """Find what is wrong with the last step before the first one takes its time."""
    settings = recipe.attribution.model_dump()
    objective = settings.pop("objective")
    for method in split_methods(settings.pop("method")):
        get_objective(objective_of(get_method(method), objective))
    Damping.parse(settings.pop("damping"))
    _settings_name(FeatureSettings(**settings), recipe.model.schedule.num_train_timesteps)


def attribute_run(
    run: Run, model: DiffusionModel, queries: str, changes: Mapping[str, Any], device: str
) -> dict[str, Scores]:
    """Score the run's training images as its recipe says, but for the `changes`.

    The run keeps the scores as scores.npz, and how they were made as attribution.json, for its report. The same
    question is not answered twice.
    """
    settings = run.recipe.attribution.model_dump() | dict(changes)
    methods = split_methods(settings.pop("method"))
    damping, objective = settings.pop("damping"), settings.pop("objective")
    cache = settings.pop("cache", None)
    if cache is None:
        cache = run.folder / "features" / _settings_name(FeatureSettings(**settings), model.timesteps)
    train_images, query_images = run.train_images, run.query_images(queries)
    made_by = {
        "queries": run.portable(queries),
        "method": methods,
        "damping": damping,
        "objective": objective,
        **settings,
    }
    made_by |= {"fingerprints": [model.fingerprint, train_images.fingerprint, query_images.fingerprint]}
    scores_path, made_by_path = run.folder / "scores.npz", run.folder / "attribution.json"
    earlier = json.loads(made_by_path.read_text()) if scores_path.exists() and made_by_path.exists() else {}
    if made_by.items() <= earlier.items():
        return load_scores(scores_path)
    started = time.monotonic()
    scores = attribute(
        model,
        train_images,
        query_images,
        methods,
        damping=damping,
        objective=objective,
        cache=cache,
        device=device,
        **settings,
    )
    made_by_path.unlink(missing_ok=True)  # so that the two never speak of different scores
    save_scores(scores_path, scores)
    write_json(made_by_path, made_by | {"seconds": round(time.monotonic() - started, 1)})
    return scores


def _settings_name(settings: FeatureSettings, total: int) -> str:
    """A folder name of its own for every way to make features, however the T = `total` timesteps are chosen."""
    fields = asdict(settings) | {"timesteps": select_timesteps(settings.timesteps, total)}
    del fields["batch_size"], fields["skip_bad"]  # features are the same
    return f"{settings.projection}-{settings.projection_dim}-{stable_hash(repr(fields)):016x}"
