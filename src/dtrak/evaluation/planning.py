"""Estimate what a recipe would take before it runs: steps, passes through the model, memory and disk.

A pass is one image through the network, forward or backward. If the recipe does not give the number of images and their
shape, they are read from the data; if it gives both, the data need not be there yet.
"""

import math
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from dtrak.attribution.required_gradients import Required, required_gradients
from dtrak.attribution.settings import DEFAULT_ENCODER
from dtrak.devices import total_memory
from dtrak.errors import UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.evaluation.checking import check_settings, needs_encoder
from dtrak.evaluation.counterfactual import DEFAULT_PICTURES, default_removed
from dtrak.evaluation.outputs import images_in_a_pass
from dtrak.features.spec import Spec
from dtrak.gradients.copies import select_timesteps
from dtrak.gradients.factored import Factored
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.images import load_images, read_ids
from dtrak.images.selection import Selection
from dtrak.images.sources import find_source
from dtrak.methods import chosen_methods
from dtrak.models.autoencoder import pictures_in_a_pass
from dtrak.models.diffusion import chosen_parameters, usual_parameters
from dtrak.models.memory import Layout, copies_that_fit
from dtrak.models.sampling import BATCH
from dtrak.runs.recipes import Recipe
from dtrak.runs.run import Run
from dtrak.runs.training import images_at_once
from dtrak.tables import Cell, Entry, Table

FLOAT, DOUBLE = 4, 8  # bytes
UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
COMPARED_METHODS = 3  # by `dtrak evaluate counterfactual`: random, trak and d-trak


@dataclass(frozen=True)
class PlannedStep:
    """One row of the plan: a part of the work, and what it takes."""

    name: str
    description: str
    forward: int = 0  # passes
    backward: int = 0  # passes
    memory: int = 0  # bytes
    disk: int = 0  # bytes


@dataclass(frozen=True)
class Plan:
    """Estimates the work of a recipe from the number of its images and the layout of its model."""

    recipe: Recipe
    train: int
    validation: int
    shape: tuple[int, int, int]
    layout: Layout
    device: torch.device
    device_memory: int
    retraining: RetrainingSettings

    def steps(self) -> list[PlannedStep]:
        """Return the steps of `dtrak run`, and then those of `dtrak evaluate`."""
        return [
            *([self.encoding()] if self.layout.latents else []),
            self.training(),
            self.generating(),
            self.featurizing("features", self.generated, self.objectives),
            self.scoring(),
            PlannedStep("report", f"a page of {self.generated:,} pictures"),
            self.retrainings(),
            self.outputs(),
            self.featurizing("lds: features", max(self.lds_queries), (1, 1)),
            self.counterfactuals(),
        ]

    @property
    def generated(self) -> int:
        return self.recipe.generation.count

    @property
    def lds_queries(self) -> tuple[int, int]:
        """Return how many validation images and generated pictures are queries of the LDS."""
        settings = self.retraining
        return min(settings.validation, self.validation), min(settings.generated or self.generated, self.generated)

    @property
    def weights(self) -> int:
        """Return the bytes of all weights."""
        return (self.layout.frozen_bytes or FLOAT * self.layout.frozen) + FLOAT * self.layout.trained

    @property
    def latents(self) -> int:
        """Return the bytes of all latents: a mean and a deviation for each training image and its mirror image."""
        return self.train * (1 + self.recipe.training.flip) * 2 * FLOAT * self.layout.latents

    @property
    def training_memory(self) -> int:
        """Return the bytes that training takes on the device.

        These are the weights, a gradient and two moments for each trained weight, and the activations of a pass; on a
        CPU also the latents, which lie in the same memory.
        """
        optimiser = 3 * FLOAT * self.layout.trained
        latents = self.latents if self.device.type == "cpu" else 0
        return self.weights + optimiser + self.at_once * self.layout.activations + latents

    @property
    def at_once(self) -> int:
        """Return how many images of a batch share a pass."""
        batch = min(self.recipe.training.batch_size, self.train)
        return images_at_once(batch, self.layout.activations, self.device_memory)

    def encoding(self) -> PlannedStep:
        """Plan to encode images and prompts, for a model of latents."""
        mirrored = " and their mirror images" * self.recipe.training.flip
        description = f"{self.train:,} images{mirrored}, by the autoencoder; {self.prompts:,} prompts at most"
        queries = self.generated * 2 * FLOAT * self.layout.latents
        memory = self.weights + min(self.train, pictures_in_a_pass(*self.shape[1:])) * self.layout.encoding
        disk = self.latents + queries + self.prompts * FLOAT * self.layout.prompt
        return PlannedStep("latents", description, 0, 0, memory, disk)

    @property
    def prompts(self) -> int:
        """Return how many different prompts there are at most: one of each class or image, and the empty one."""
        recipe, select = self.recipe, self.recipe.data.select
        classes = None if select is None or select.classes is None else len(select.classes)
        return recipe.family.most_prompts(recipe.model, self.train, classes)

    def training(self) -> PlannedStep:
        """Plan to train the model."""
        settings = self.recipe.training
        steps = settings.epochs * math.ceil(self.train / settings.batch_size)
        description = f"{self.train:,} images × {settings.epochs:,} epochs: {steps:,} steps of {settings.batch_size:,}"
        description += f", {self.at_once:,} at once" * (self.at_once < settings.batch_size)
        passes = self.train * settings.epochs
        saved = (1 + settings.checkpoints) * FLOAT * self.layout.trained
        return PlannedStep("train", description, passes, passes, self.training_memory, saved)

    def generating(self) -> PlannedStep:
        """Plan to draw pictures."""
        settings = self.recipe.generation
        guided = settings.guidance is not None  # a step then takes two passes, with the prompt and without
        passes = settings.count * settings.steps * (1 + guided)
        description = f"{settings.count:,} pictures × {settings.steps:,} steps" + " × 2 for guidance" * guided
        at_once = min(BATCH, settings.count)
        denoising = at_once * self.layout.working
        decoding = min(at_once, pictures_in_a_pass(*self.shape[1:])) * self.layout.decoding
        memory = self.weights + max(denoising, decoding)
        return PlannedStep("generate", description, passes, 0, memory, settings.count * math.prod(self.shape))

    @cached_property
    def needed(self) -> dict[Spec, Required]:
        settings = self.recipe.attribution
        return required_gradients(chosen_methods(settings.method, settings.objective), settings)

    @cached_property
    def objectives(self) -> tuple[int, int]:
        """Return for how many objectives gradients are needed, of training images and of queries."""
        train = {name for one in self.needed.values() for name in one.train}
        return len(train), len({name for one in self.needed.values() for name in (*one.queries, *one.trajectories)})

    @property
    def rows_of_each(self) -> int:
        """Return how many rows of features an image has at the most: one, or one for each copy."""
        return self.copies if self.has_copies_apart else 1

    @property
    def has_copies_apart(self) -> bool:
        """Return whether the features of every copy are kept."""
        return any(spec.copies == "apart" for spec in self.needed)

    @cached_property
    def copies(self) -> int:
        settings = self.recipe.attribution
        return settings.draws * len(select_timesteps(settings.timesteps, self.recipe.timesteps))

    @cached_property
    def features(self) -> int:
        """Return k, how many numbers are stored for each image, or for each of its copies."""
        return max((self._features_of(spec) for spec in self.needed), default=0)

    def _features_of(self, spec: Spec) -> int:
        words = {word: usual_parameters(self.layout.network, word == "later") for word in ("usual", "later")}
        parameters = chosen_parameters(self.layout.network, words.get(spec.layers, spec.layers))
        if spec.projection == "identity":
            return sum(one.numel() for one in parameters.values())
        if spec.projection != "factored":
            return spec.projection_dim
        return Factored(spec.projection_dim, {name: tuple(one.shape) for name, one in parameters.items()}, 0).dim

    def featurizing(self, name: str, queries: int, objectives: tuple[int, int]) -> PlannedStep:
        """Plan to compute gradients for so many objectives, of the training images and of so many queries."""
        train, (for_train, for_queries), copies = self.train, objectives, self.copies
        description = f"{train:,} + {queries:,} images × {copies:,} noised copies"
        rows = for_train * train + for_queries * queries
        at_once = min(copies, copies_that_fit(self.layout.activations, self.device_memory))
        memory = self.weights + at_once * self.layout.activations
        disk = rows * self.rows_of_each * self.features * FLOAT
        return PlannedStep(name, description, (train + queries) * copies, rows * copies, memory, disk)

    def scoring(self) -> PlannedStep:
        """Plan to compute the scores from the features."""
        queries, train, dim = self.generated, self.train, self.features
        smaller = min(train * self.rows_of_each * (self.objectives[0] if self.has_copies_apart else 1), dim)
        kernels = 1 if self.has_copies_apart else self.objectives[0]
        # The decomposed matrix and its workspace; then, for each kernel, the coordinates of the training images and,
        # if there are more images than dimensions, the directions.
        kept = train * smaller + (dim * smaller if dim <= train else 0)
        memory = DOUBLE * (2 * smaller**2 + kernels * kept) + (FLOAT + DOUBLE) * queries * dim
        description = f"{queries:,} pictures × {train:,} images: a kernel of {smaller:,} × {smaller:,}"
        return PlannedStep("score", description, 0, 0, memory, FLOAT * queries * train)

    @property
    def models(self) -> int:
        """Return how many models are retrained for LDS."""
        return self.retraining.subsets * self.retraining.seeds

    def retrainings(self) -> PlannedStep:
        """Plan to retrain models for LDS."""
        settings, queries, (channels, height, width) = self.retraining, sum(self.lds_queries), self.shape
        size, models = round(settings.fraction * self.train), self.models
        passes = models * size * self.recipe.training.epochs
        description = f"{settings.subsets:,} subsets × {settings.seeds:,} seeds = {models:,} models on {size:,} images"
        images = (self.train + queries) * channels * height * width
        losses = models * queries * len(OBJECTIVES) * (FLOAT + DOUBLE)  # as arrays, and job by job
        disk = images + losses + FLOAT * self.layout.trained + settings.subsets * self.train
        return PlannedStep("lds: retrain", description, passes, passes, self.training_memory, disk)

    def outputs(self) -> PlannedStep:
        """Plan to compute the outputs of the retrained models."""
        settings, models, pictures, total = self.retraining, self.models, sum(self.lds_queries), self.recipe.timesteps
        timesteps = len(select_timesteps(total if settings.timesteps is None else settings.timesteps, total))
        description = (
            f"{models:,} models × {pictures:,} pictures × {timesteps:,} timesteps × {settings.noises:,} noises"
        )
        at_once = images_in_a_pass(self.layout.activations, self.device, self.device_memory)
        memory = self.weights + at_once * self.layout.working
        return PlannedStep("lds: outputs", description, models * pictures * timesteps * settings.noises, 0, memory)

    def counterfactuals(self) -> PlannedStep:
        """Plan to retrain models for counterfactuals, and to draw with them."""
        recipe, settings = self.recipe, self.recipe.evaluation
        pictures = min(settings.pictures or DEFAULT_PICTURES, self.generated)
        left = self.train - (settings.remove or default_removed(self.train))
        models = COMPARED_METHODS * pictures
        passes = models * left * recipe.training.epochs
        drawn = models * recipe.generation.steps * (1 + (recipe.generation.guidance is not None))
        description = (
            f"{COMPARED_METHODS} methods × {pictures:,} pictures = {models:,} models on {left:,} images, at most"
        )
        pixels = math.prod(self.shape)
        disk = models * (pixels + recipe.generation.steps * (self.layout.latents or pixels)) * FLOAT
        return PlannedStep("counterfactual", description, passes + drawn, passes, self.training_memory, disk)


def plan(recipe: Recipe, folder: Path, device: str = "cpu") -> Table:
    """Return a table of what a run of the recipe in this folder would take, with notes on anything that is missing."""
    data, missing = recipe.data, list[str]()
    train = _count(data.train, data.select, missing)
    has_train = not missing
    validation = 0 if data.validation is None else _count(data.validation, data.select_validation, missing)
    shape = _shape(recipe)
    layout = recipe.family.lay_out(recipe.model, shape, recipe.name)
    run, count = Run(folder, recipe), train if data.subset is None else len(read_ids(data.subset))
    run.check_folder()
    if has_train:
        run.check_recipe()
    check_settings(run, count, shape, layout)
    missing += recipe.family.to_fetch(recipe.model, layout)
    missing += [f"{DEFAULT_ENCODER} will be downloaded, unless it was before"] if needs_encoder(run) else []
    made = Plan(
        recipe,
        count,
        validation,
        shape,
        layout,
        torch.device(device),
        total_memory(torch.device(device)),
        RetrainingSettings.resumed(folder / "benchmark", recipe.evaluation, {}),
    )
    return _table(made, folder, missing)


def _count(source: str, select: Selection | None, missing: list[str]) -> int:
    """Return how many images there are, or will be after a download; add a line to `missing` if they are not there."""
    stated = None if select is None else select.known_count
    if stated is not None and source.startswith("hf:"):
        missing.append(f"{source} will be downloaded, unless it was before")
        return stated
    try:
        return len(find_source(source, select).pictures)
    except UsageError as error:
        if stated is None or _has_images(source):
            raise
        missing.append(f"Missing: {error}")
        return stated


def _has_images(source: str) -> bool:
    """Tell whether a source has images at all: then an error is the selection's fault."""
    try:
        return bool(find_source(source, None).pictures)
    except UsageError:
        return False


def _shape(recipe: Recipe) -> tuple[int, int, int]:
    """Return (C, H, W) from the recipe, or from the images if the recipe does not say it."""
    data = recipe.data
    side = data.size or data.crop
    if side is not None and data.channels is not None:
        return data.channels, side, side
    return load_images(data.train, crop=data.crop, size=data.size, channels=data.channels, select=data.select).shape


def _table(made: Plan, folder: Path, missing: list[str]) -> Table:
    steps, layout = made.steps(), made.layout
    rows: list[list[Entry]] = [
        [one.name, one.description, _passes(one.forward), _passes(one.backward), _size(one.memory), _size(one.disk)]
        for one in steps
    ]
    frozen = f", beside {layout.frozen / 1e6:,.1f} M that stay as they are" if layout.frozen else ""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    largest = max(steps, key=lambda one: one.memory)
    enough = "enough for" if largest.memory <= made.device_memory else "LESS than is needed for"
    disk, free = (_size(one).text for one in (sum(one.disk for one in steps), shutil.disk_usage(existing).free))
    notes = [
        f"{layout.trained:,} parameters ({layout.trained / 1e6:,.1f} M) are trained and attributed{frozen}.",
        "A pass is one image through the network. Memory is that of one model's tensors in float32; Python and torch "
        "need some more.",
        f"In all {disk} on disk, of {free} free; there are {_size(made.device_memory).text} of memory, {enough} "
        f"{largest.name}.",
        *dict.fromkeys(missing),
    ]
    caption = f"{made.recipe.name}, into {folder}: {made.recipe.summary}"
    return Table(["step", "what", "forward passes", "backward passes", "memory", "disk"], rows, caption, notes)


def _passes(count: int) -> Cell:
    return Cell(count, f"{count:,}" if count else "–")


def _size(count: int) -> Cell:
    unit, name = next((unit, name) for unit, name in UNITS if count >= unit or unit == 1)
    return Cell(count, f"{count / unit:,.{1 if unit > 1 else 0}f} {name}" if count else "–")
