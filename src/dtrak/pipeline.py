"""What the commands do with a run: each step finds what is there already and adds what is missing."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dtrak.attribution import attribute
from dtrak.featurizing import FeatureSettings
from dtrak.files import write_json
from dtrak.methods import split_methods
from dtrak.models import DiffusionModel
from dtrak.noise import stable_hash
from dtrak.report import write_report
from dtrak.runs import Run
from dtrak.sampling import generate
from dtrak.scores import Scores, save_scores
from dtrak.training import train


def run_all(run: Run, device: str) -> Path:
    """Train, generate, attribute what was generated, and report; gives the report's path."""
    model = train(run, device)
    generation = run.recipe.generation
    generate(run, model, generation.count, generation.seed, generation.steps)
    attribute_run(run, model, str(run.folder / "generated"), {}, device)
    return write_report(run)


def attribute_run(
    run: Run, model: DiffusionModel, queries: str, changes: Mapping[str, Any], device: str
) -> dict[str, Scores]:
    """Score the run's training images as its recipe says, but for the `changes`.

    The run keeps the scores as scores.npz, and how they were made as attribution.json, for its report.
    """
    settings = run.recipe.attribution.model_dump() | dict(changes)
    methods = split_methods(settings.pop("method"))
    damping, objective = settings.pop("damping"), settings.pop("objective")
    cache = settings.pop("cache", None) or run.folder / "features" / _settings_name(FeatureSettings(**settings))
    started = time.monotonic()
    scores = attribute(
        model,
        run.train_images,
        run.query_images(queries),
        methods,
        damping=damping,
        objective=objective,
        cache=cache,
        device=device,
        **settings,
    )
    save_scores(run.folder / "scores.npz", scores)
    made_by = {"queries": queries, "method": methods, "damping": damping, "objective": objective, **settings}
    write_json(run.folder / "attribution.json", made_by | {"seconds": round(time.monotonic() - started, 1)})
    return scores


def _settings_name(settings: FeatureSettings) -> str:
    """A folder name of its own for every way to make features."""
    return f"{settings.projection}-{settings.projection_dim}-{stable_hash(repr(asdict(settings))):016x}"[:40]
