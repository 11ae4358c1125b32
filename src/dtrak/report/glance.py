"""The run at a glance: model, data, method, settings, time and cost, and how well the scores were found to predict."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dtrak.damping import Damping, partner_of
from dtrak.methods import METHODS, objectives_of
from dtrak.methods.method import Gradients
from dtrak.recipes import DDPMRecipe
from dtrak.report.comparisons import LDSOf, Measured
from dtrak.report.wording import duration
from dtrak.runs import Run
from dtrak.scores import Scores
from dtrak.timesteps import select_timesteps


@dataclass(frozen=True)
class Trust:
    """The LDS of methods, and of which scores it is."""

    methods: dict[str, LDSOf]
    ceiling: float | None
    how: str
    differences: list[str]
    known: bool  # whether its settings are

    @property
    def start(self) -> float:
        """Where the bars' scale begins."""
        return min(0.0, self.ceiling or 0.0, *(one.low for one in self.methods.values()))

    @property
    def end(self) -> float:
        return max(1.0, self.ceiling or 0.0, *(one.high for one in self.methods.values()))

    def percent(self, value: float) -> float:
        """Where a value stands on the scale."""
        return 100 * (value - self.start) / (self.end - self.start)


def trust(nearest: list[Measured], attribution: Mapping[str, Any]) -> Trust | None:
    """What was measured that comes nearest to the run's scores; nothing if nothing was."""
    if not nearest:
        return None
    one = nearest[0]
    kind = one.settings.get("queries")
    images = "generated pictures" if kind == "generated" else f"{kind} images" if kind else "pictures"
    how = f"Over {one.queries:,} {images} and {one.subsets:,} random subsets; damping {one.note}"
    return Trust(one.methods, one.ceiling, how, one.differences(attribution), bool(one.settings))


def facts(run: Run, settings: Mapping[str, Any], scores: Scores) -> dict[str, str]:
    """The run in words, by what they are about."""
    model, training = run.recipe.model, run.recipe.training
    total = model.timesteps
    timesteps = len(select_timesteps(settings["timesteps"], total))
    found = {
        "Model": _model(run),
        "Training": f"{training.epochs:,} epochs in batches of {training.batch_size:,}",
        "Training images": f"{len(scores.train_ids):,} from {run.recipe.data.train}",
        "Pictures asked about": f"{len(scores.query_ids):,} from {settings['queries']}",
        "Method": ", ".join(settings["method"]),
        "Objective": settings["objective"] or "the method’s own",
        "Timesteps K": f"{timesteps:,} of {total:,}",
        "Projection k": "none"
        if settings["projection"] == "identity"
        else f"{settings['projection_dim']:,} dimensions, {settings['projection']}",
        "Parameters": settings.get("parameters") or ("all" if model.kind == "ddpm" else "those of the LoRA"),
        "Damping λ": str(settings["damping"]),
        "Seed": str(settings["seed"]),
        "Time of the last question": duration(settings["seconds"]),
    }
    passes = _passes(settings, timesteps, scores)
    if passes:
        found["Cost"] = passes
    with suppress(OSError, ValueError, AttributeError):  # the page does without
        versions = json.loads((run.folder / "run.json").read_text())
        found["Versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return found


def _model(run: Run) -> str:
    channels, height, width = run.train_images.shape
    model = run.recipe.model
    images = f"for {width} × {height} {'grey' if channels == 1 else 'colour'} images"
    if isinstance(model, DDPMRecipe):
        widths = model.unet.get("block_out_channels", ["diffusers’ default"])
        return f"DDPM {images}, U-Net of width {', '.join(map(str, widths))}"
    return f"Stable Diffusion {images}, {model.base} with a LoRA of rank {model.lora.rank}, prompts “{model.prompt}”"


def _passes(settings: Mapping[str, Any], timesteps: int, scores: Scores) -> str:
    """The forward and backward passes of the methods that ask the model itself for gradients."""
    objectives, partners = set(), set()
    for method in (METHODS[name] for name in settings["method"] if name in METHODS):
        source = method.source
        if isinstance(source, Gradients) and source.models == "final" and not source.journey:
            first, *others = objectives_of(method, settings["objective"])
            objectives |= {first, *others}
            if method.damped and Damping.parse(settings["damping"]).asks_partner:
                partners.add(partner_of(first))  # of the training images alone
    if not objectives:
        return ""
    train, queries, copies = len(scores.train_ids), len(scores.query_ids), timesteps * settings.get("draws", 1)
    total = copies * (len(objectives | partners) * train + len(objectives) * queries)
    of_objectives = f", for {len(objectives | partners)} objectives" if len(objectives | partners) > 1 else ""
    copied = "one noised copy" if copies == 1 else f"{copies:,} noised copies"
    return f"{total:,} gradient passes: {copied} of each image{of_objectives}"
