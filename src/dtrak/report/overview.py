"""The settings of a run: its model, data, method, damping, time and cost."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dtrak.attribution.scores import Scores
from dtrak.gradients.copies import select_timesteps
from dtrak.inputs.needs import needed_by
from dtrak.kernels.damping import Damping
from dtrak.methods import METHODS, Gradients
from dtrak.runs.run import Run
from dtrak.wording import duration


def facts(run: Run, settings: Mapping[str, Any], scores: Scores) -> dict[str, str]:
    """Return the facts about the run that the page shows, each with its name."""
    total, training = run.recipe.timesteps, run.recipe.training
    timesteps = len(select_timesteps(settings["timesteps"], total))
    found = {
        "Model": _model(run),
        "Training": "elsewhere"
        if run.is_elsewhere
        else f"{training.epochs:,} epochs in batches of {training.batch_size:,}",
        "Training images": f"{scores.images:,} from {run.recipe.data.train}",
        "Pictures scored": f"{len(scores.query_ids):,} from {settings['queries']}",
        "Method": ", ".join(settings["method"]),
        "Objective": settings["objective"] or "the method’s default",
        "Timesteps K": f"{timesteps:,} of {total:,}",
        "Projection k": "none"
        if settings["projection"] == "identity"
        else f"{settings['projection_dim']:,} dimensions, {settings['projection'] or 'by the method'}",
        "Parameters": settings.get("parameters")
        or ("those of the LoRA, or all" if run.is_elsewhere else run.recipe.family.attributed),
        "Damping λ": str(settings["damping"] if scores.damping is None else scores.damping),
        "Seed": str(settings["seed"]),
        "Time of the last attribution": duration(settings["seconds"]),
    }
    passes = _passes(settings, timesteps, scores)
    if passes:
        found["Cost"] = passes
    with suppress(OSError, ValueError, AttributeError):  # the page can do without the versions
        versions = json.loads((run.folder / "run.json").read_text())
        found["Versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return found


def _model(run: Run) -> str:
    channels, height, width = run.train_images.shape
    images = f"for {width} × {height} {'grey' if channels == 1 else 'colour'} images"
    if run.is_elsewhere:
        return f"{run.recipe.summary}, {images}"
    return run.recipe.family.description(run.recipe.model, images)


def _passes(settings: Mapping[str, Any], timesteps: int, scores: Scores) -> str:
    """Describe how many gradient passes the methods needed; those along a trajectory are not counted."""
    methods = [METHODS[name] for name in settings["method"] if name in METHODS]
    counted = [one for one in methods if not (isinstance(one.needs, Gradients) and one.needs.queries == "trajectories")]
    every = needed_by(counted, settings["objective"], Damping.parse(settings["damping"]))
    needed = [one for kind, one in every.items() if kind.models == "final"]
    if not needed:
        return ""
    train, queries, copies = scores.images, len(scores.query_ids), timesteps * settings.get("draws", 1)
    objectives = sum(len(one.train) for one in needed)
    total = copies * (objectives * train + sum(len(one.queries) for one in needed) * queries)
    of_objectives = f", for {objectives} objectives" if objectives > 1 else ""
    copied = "one noised copy" if copies == 1 else f"{copies:,} noised copies"
    return f"{total:,} gradient passes: {copied} of each image{of_objectives}"
