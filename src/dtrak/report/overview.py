"""The settings of a run: its model, data, method, damping, time and cost."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dtrak.attribution.scores import Scores
from dtrak.runs.run import Run

LAYERS = {"usual": "those of the LoRA, or all", "later": "those of the LoRA, or a U-Net’s from its middle on"}


def facts(run: Run, asked: Mapping[str, Any], scores: Scores) -> dict[str, str]:
    """Return the facts about the run that the page shows, each with its name."""
    settings, methods = asked["given"]["settings"], list(asked["facts"]["methods"])
    specs = [one["spec"] for one in asked["facts"]["methods"].values() if one["spec"] is not None]
    found = {
        "Model": _model(run),
        "Training": "elsewhere",
        "Training images": f"{scores.images:,} from {run.train_source.source}",
        "Pictures scored": f"{len(scores.query_ids):,} from {run.portable(run.asked_about(asked))}",
        "Method": ", ".join(methods),
        "Objective": str(settings["objective"] or "the method’s default"),
        "Timesteps": ", ".join(dict.fromkeys(one["timesteps"] for one in specs)) or "none",
        "Projection": ", ".join(dict.fromkeys(map(_projection, specs))) or "none",
        "Parameters": ", ".join(dict.fromkeys(LAYERS.get(one["layers"], one["layers"]) for one in specs)) or "none",
        "Damping λ": str(settings["damping"] if scores.damping is None else scores.damping),
        "Seed": str(settings["seed"]),
    }
    if not run.is_elsewhere:
        training = run.recipe.training
        found["Training"] = f"{training.epochs:,} epochs in batches of {training.batch_size:,}"
    with suppress(OSError, ValueError, AttributeError):  # the page can do without the versions
        versions = json.loads((run.folder / "run.json").read_text())
        found["Versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return found


def _projection(spec: Mapping[str, Any]) -> str:
    is_whole = spec["projection"] == "identity"
    return "whole gradients" if is_whole else f"{spec['projection_dim']:,} dimensions, {spec['projection']}"


def _model(run: Run) -> str:
    channels, height, width = run.train_images.shape
    images = f"for {width} × {height} {'grey' if channels == 1 else 'colour'} images"
    if run.is_elsewhere:
        return f"{run.summary}, {images}"
    return run.recipe.family.description(run.recipe.model, images)
