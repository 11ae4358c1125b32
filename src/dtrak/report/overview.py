"""What a run holds: its settings with their cost, for the report; and what was measured and comes next, for `info`."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dtrak.attribution.required_gradients import required_gradients
from dtrak.attribution.scores import Scores
from dtrak.errors import DtrakError
from dtrak.gradients.copies import select_timesteps
from dtrak.methods import Gradients
from dtrak.report.measured import trust_of, trust_words
from dtrak.report.sections import read_counterfactuals
from dtrak.runs.run import Run
from dtrak.runs.run_questions import last_question

LONGEST = 10**5  # no noise schedule has more timesteps
LAYERS = {"usual": "those of the LoRA, or all", "later": "those of the LoRA, or a U-Net’s from its middle on"}


def facts(run: Run, asked: Mapping[str, Any], scores: Scores) -> dict[str, str]:
    """Return the facts about the run that the page shows, each with its name."""
    settings, methods = asked["given"]["settings"], list(asked["facts"]["methods"])
    specs = [one["spec"] for one in asked["facts"]["methods"].values() if one["spec"] is not None]
    channels, height, width = run.train_images.shape
    images = f"for {width} × {height} {'grey' if channels == 1 else 'colour'} images"
    projections = [
        "whole gradients"
        if one["projection"] == "identity"
        else f"{one['projection_dim']:,} dimensions, {one['projection']}"
        for one in specs
    ]
    if run.is_elsewhere:
        model, training = f"{run.summary}, {images}", "elsewhere"
    else:
        model, how = run.recipe.family.description(run.recipe.model, images), run.recipe.training
        training = f"{how.epochs:,} epochs in batches of {how.batch_size:,}"
    found = {
        "Model": model,
        "Training": training,
        "Training images": f"{scores.images:,} from {run.train_source.source}",
        "Pictures scored": f"{len(scores.query_ids):,} from {run.portable(run.asked_about(asked))}",
        "Method": ", ".join(methods),
        "Objective": str(settings["objective"] or "the method’s default"),
        "Timesteps": ", ".join(dict.fromkeys(one["timesteps"] for one in specs)) or "none",
        "Projection": ", ".join(dict.fromkeys(projections)) or "none",
        "Parameters": ", ".join(dict.fromkeys(LAYERS.get(one["layers"], one["layers"]) for one in specs)) or "none",
        "Damping λ": str(settings["damping"] if scores.damping is None else scores.damping),
        "Seed": str(settings["seed"]),
    }
    if cost := _cost(run, scores):
        found["Cost"] = cost
    with suppress(OSError, ValueError, AttributeError):  # the page can do without the versions
        versions = json.loads((run.folder / "run.json").read_text())
        found["Versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return found


def _cost(run: Run, scores: Scores) -> str:
    """Describe how many gradient passes the methods needed of the final model; trajectories are not counted."""
    try:
        question = last_question(run)
    except DtrakError:  # a method or an object that is known in Python alone
        return ""
    methods = () if question is None else question.methods
    of_final = ("final", "images")
    counted = [
        one for one in methods if isinstance(one.needs, Gradients) and (one.needs.models, one.needs.queries) == of_final
    ]
    if question is None or not counted:
        return ""
    needed = required_gradients(counted, question.settings)
    copies = question.settings.draws * len(select_timesteps(next(iter(needed)).timesteps, LONGEST))
    objectives = sum(len(one.train) for one in needed.values())
    queries = sum(len(one.queries) for one in needed.values())
    total = copies * (objectives * scores.images + queries * len(scores.query_ids))
    of_objectives = f", for {objectives} objectives" if objectives > 1 else ""
    copied = "one noised copy" if copies == 1 else f"{copies:,} noised copies"
    return f"{total:,} gradient passes: {copied} of each image{of_objectives}"


def described(run: Run) -> dict[str, str]:
    """Return facts about the run, each with its name; the last one is the command that makes what it does not have."""
    asked, folder, report = run.asked, run.folder, run.folder / "report.html"
    found = {"what it is": run.summary} | {name.lower(): text for name, text in run.contents().items()}
    measured = trust_of(run)
    if asked is not None:
        methods = list(asked["facts"]["methods"])
        scores = run.scores(methods[0])
        if scores.damping is not None:
            found["damping"] = str(scores.damping)
        for method in methods:
            found[f"trust in {method}"] = trust_words(run, measured, method)
    counterfactuals = read_counterfactuals(folder)
    if counterfactuals:
        found["counterfactuals"] = f"of {counterfactuals[0].queries:,} pictures"
    found["report"] = str(report) if report.exists() else "none yet"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    found["disk"] = f"{size / 1e6:,.1f} MB"
    steps = [
        (run.is_trained, f"dtrak train {folder}/recipe.yaml --out {folder}"),
        (any((folder / "generated").glob("*.png")), f"dtrak generate {folder}"),
        (asked is not None, f"dtrak attribute {folder}"),
        (report.exists(), f"dtrak report {folder}"),
        (measured is not None, f"dtrak evaluate lds {folder}"),
    ]
    return found | {"next": next((command for done, command in steps if not done), f"dtrak serve {folder}")}
