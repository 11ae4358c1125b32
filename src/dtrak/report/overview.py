"""The settings of a run: its model, data, method, damping, time and cost."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dtrak.attribution.required_gradients import required_gradients
from dtrak.attribution.scores import Scores
from dtrak.errors import DtrakError
from dtrak.gradients.copies import select_timesteps
from dtrak.methods import Gradients
from dtrak.runs.run import Run
from dtrak.runs.run_questions import last_question

LONGEST = 10**5  # no noise schedule has more timesteps
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
    if cost := _cost(run, scores):
        found["Cost"] = cost
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


def _cost(run: Run, scores: Scores) -> str:
    """Describe how many gradient passes the methods needed of the final model; trajectories are not counted."""
    try:
        question = last_question(run)
    except DtrakError:  # a method or an object that is known in Python alone
        return ""
    methods = () if question is None else question.methods
    counted = [
        one
        for one in methods
        if isinstance(one.needs, Gradients) and (one.needs.models, one.needs.queries) == ("final", "images")
    ]
    if question is None or not counted:
        return ""
    needed = required_gradients(counted, question.settings)
    spec = next(iter(needed))
    copies = question.settings.draws * len(select_timesteps(spec.timesteps, LONGEST))
    objectives = sum(len(one.train) for one in needed.values())
    queries = sum(len(one.queries) for one in needed.values())
    total = copies * (objectives * scores.images + queries * len(scores.query_ids))
    of_objectives = f", for {objectives} objectives" if objectives > 1 else ""
    copied = "one noised copy" if copies == 1 else f"{copies:,} noised copies"
    return f"{total:,} gradient passes: {copied} of each image{of_objectives}"
