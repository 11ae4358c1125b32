"""Find the mistakes of a recipe before any work begins.

`dtrak run`, `dtrak train` and `dtrak run --dry-run` call the same checks, which write nothing.
"""

import os
from collections.abc import Sequence

import torch

from dtrak.attribution.required_gradients import check_objective
from dtrak.devices import total_memory
from dtrak.errors import UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.evaluation.comparison import uses_retrained
from dtrak.features.encoders import DEFAULT_ENCODER, load_encoder
from dtrak.features.featurizing import check_copies
from dtrak.gradients.copies import select_timesteps
from dtrak.images.sources import find_source
from dtrak.methods import EVERY_METHOD, Method, chosen_methods
from dtrak.methods.method import Embeddings
from dtrak.models.diffusion import chosen_parameters
from dtrak.models.memory import Layout
from dtrak.runs.recipes import Evaluation
from dtrak.runs.run import Run


def check_run(run: Run, device: str) -> None:
    """Refuse a run whose recipe has a mistake, or whose model does not fit into the device's memory."""
    recipe, images = run.recipe, run.train_images
    data = recipe.data
    if data.validation is not None and not data.validation.startswith("hf:"):
        find_source(data.validation, data.select_validation)
    layout = recipe.family.lay_out(recipe.model, images.shape, recipe.name)
    check_settings(run, len(images), images.shape, layout)
    check_memory(layout, recipe.name, torch.device(device))
    if needs_encoder(run):
        load_encoder(DEFAULT_ENCODER)


def check_settings(run: Run, train: int, shape: tuple[int, int, int], layout: Layout) -> None:
    """Refuse wrong settings of attribution and evaluation, for `train` images of `shape` (C, H, W)."""
    recipe = run.recipe
    settings = recipe.attribution
    chosen = chosen_methods(settings.method, settings.objective)
    check_objective(chosen, settings)
    if settings.method != EVERY_METHOD:
        _check_has_retrained_models(run, chosen)
    timesteps = select_timesteps(settings.timesteps, recipe.timesteps)
    check_copies(len(timesteps), settings.draws, (layout.latents,) if layout.latents else shape, torch.device("cpu"))
    chosen_parameters(layout.network, settings.parameters)
    _check_evaluation(run, recipe.evaluation, train)


def check_memory(layout: Layout, name: str, device: torch.device) -> None:
    """Refuse a model whose training does not fit into memory even with one image at a time.

    Training needs the weights, their gradients, the optimiser's two moments, and the activations of one pass.
    """
    needed = 4 * (layout.frozen + 4 * layout.trained) + layout.activations
    memory = total_memory(device)
    if needed > memory:
        raise UsageError(
            f"{name}: training its model takes {needed / 1e9:,.1f} GB with one image at a time, but {device} has "
            f"{memory / 1e9:,.1f} GB: make model.unet or data.size smaller"
        )


def needs_encoder(run: Run) -> bool:
    """Tell whether one of the recipe's methods needs an image encoder."""
    settings = run.recipe.attribution
    return settings.method not in (None, EVERY_METHOD) and any(
        isinstance(one.needs, Embeddings) for one in chosen_methods(settings.method, settings.objective)
    )


def _check_has_retrained_models(run: Run, methods: Sequence[Method]) -> None:
    """Refuse methods that learn from retrained models, if the run has none."""
    if os.path.exists(run.folder / "benchmark" / "masks.npy"):
        return
    for one in methods:
        if uses_retrained(one):
            raise UsageError(
                f"{run.recipe.name}: attribution.method {one.name} learns from retrained models, which a run has only "
                "after `dtrak evaluate lds RUN`: name another method here, and use this one afterwards with --method"
            )


def _check_evaluation(run: Run, evaluation: Evaluation, train: int) -> None:
    settings = RetrainingSettings.resumed(run.folder / "benchmark", evaluation, {})
    if settings.timesteps is not None:
        select_timesteps(settings.timesteps, run.recipe.timesteps)
    if evaluation.fraction is not None and round(evaluation.fraction * train) in (0, train):
        raise UsageError(
            f"{run.recipe.name}: evaluation.fraction {evaluation.fraction}: a subset of {train} images must hold at "
            "least one of them, but not all"
        )
