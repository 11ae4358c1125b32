"""The overview of a run: its model, data, method, settings, time and cost, and the measured LDS of its methods."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dtrak.attribution.scores import Scores
from dtrak.gradients.timesteps import select_timesteps
from dtrak.inputs.gradients import Gradients
from dtrak.kernels.damping import Damping
from dtrak.methods import METHODS, needed_by
from dtrak.report.comparisons import Measurement, MethodLDS
from dtrak.report.wording import duration
from dtrak.runs.run import Run


@dataclass(frozen=True)
class Trust:
    """The measured LDS of methods, and how its settings differ from those of the run's scores."""

    methods: dict[str, MethodLDS]
    ceiling: float | None
    how: str  # how it was measured
    differences: list[str]
    known: bool  # whether the settings of the measurement are known

    @property
    def start(self) -> float:
        """Return the value at which the scale of the bars begins."""
        return min(0.0, self.ceiling or 0.0, *(one.low for one in self.methods.values()))

    @property
    def end(self) -> float:
        """Return the value at which the scale of the bars ends."""
        return max(1.0, self.ceiling or 0.0, *(one.high for one in self.methods.values()))

    def percent(self, value: float) -> float:
        """Return the position of a value on the scale, in percent of its length."""
        return 100 * (value - self.start) / (self.end - self.start)


def trust(nearest: list[Measurement], attribution: Mapping[str, Any]) -> Trust | None:
    """Describe the measurement whose settings are nearest to the attribution's; None if there is no measurement."""
    if not nearest:
        return None
    one = nearest[0]
    kind = one.settings.get("queries")
    images = "generated pictures" if kind == "generated" else f"{kind} images" if kind else "pictures"
    how = f"Over {one.queries:,} {images} and {one.subsets:,} random subsets; damping {one.note}"
    return Trust(one.methods, one.ceiling, how, one.differences(attribution), bool(one.settings))


def facts(run: Run, settings: Mapping[str, Any], scores: Scores) -> dict[str, str]:
    """Return the facts about the run that the page shows, each with its name."""
    total, training = run.recipe.timesteps, run.recipe.training
    timesteps = len(select_timesteps(settings["timesteps"], total))
    found = {
        "Model": _model(run),
        "Training": f"{training.epochs:,} epochs in batches of {training.batch_size:,}",
        "Training images": f"{scores.images:,} from {run.recipe.data.train}",
        "Pictures scored": f"{len(scores.query_ids):,} from {settings['queries']}",
        "Method": ", ".join(settings["method"]),
        "Objective": settings["objective"] or "the method’s default",
        "Timesteps K": f"{timesteps:,} of {total:,}",
        "Projection k": "none"
        if settings["projection"] == "identity"
        else f"{settings['projection_dim']:,} dimensions, {settings['projection'] or 'by the method'}",
        "Parameters": settings.get("parameters") or run.recipe.family.attributed,
        "Damping λ": str(settings["damping"]),
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
    return run.recipe.family.description(run.recipe.model, images)


def _passes(settings: Mapping[str, Any], timesteps: int, scores: Scores) -> str:
    """Describe how many gradient passes the methods needed; those along a trajectory are not counted."""
    methods = [METHODS[name] for name in settings["method"] if name in METHODS]
    counted = [one for one in methods if not (isinstance(one.source, Gradients) and one.source.along_trajectory)]
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
