"""What a recipe would take, before any of it is done: steps, passes through the model, memory and disk.

A pass is one image through the network, forward or back. What is not in the recipe, the number of images and their
shape, is looked up in the data; the data itself need not be there if the recipe says both.
"""

import math
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from dtrak.errors import UsageError
from dtrak.evaluation.checking import asks_encoder, check_settings
from dtrak.evaluation.outputs import images_in_a_pass
from dtrak.evaluation.redrawing import COUNT, usual_share
from dtrak.evaluation.retraining import RetrainingSettings
from dtrak.features.settings import DEFAULT_ENCODER
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.gradients.timesteps import select_timesteps
from dtrak.images.images import load_images, read_ids
from dtrak.images.selection import Selection
from dtrak.images.sources import find_source
from dtrak.inputs.needs import GradientKind, NeededGradients
from dtrak.kernels.damping import Damping
from dtrak.methods import chosen_methods, needed_by, split_methods
from dtrak.models.autoencoder import pictures_in_a_pass
from dtrak.models.layout import Layout
from dtrak.models.memory import copies_that_fit, total_memory
from dtrak.models.sampling import BATCH
from dtrak.runs.recipes import Recipe
from dtrak.runs.run import Run
from dtrak.runs.training import images_at_once
from dtrak.tables import Cell, Entry, Table

FLOAT, DOUBLE = 4, 8  # bytes
UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
JUDGED = 3  # methods that counterfactuals compare: random, trak and d-trak


@dataclass(frozen=True)
class PlannedStep:
    name: str
    what: str
    forward: int = 0  # passes
    backward: int = 0
    memory: int = 0  # bytes
    disk: int = 0


@dataclass(frozen=True)
class Plan:
    """What the steps of a recipe come to, from the numbers of its images and the layout of its model."""

    recipe: Recipe
    train: int
    validation: int
    shape: tuple[int, int, int]
    layout: Layout
    device: torch.device
    device_memory: int
    retraining: RetrainingSettings

    def steps(self) -> list[PlannedStep]:
        """What `dtrak run` does, and then what `dtrak evaluate` would."""
        return [
            *([self.encoding()] if self.layout.latents else []),
            self.training(),
            self.generating(),
            self.featurizing("features", self.generated, self.objectives),
            self.scoring(),
            PlannedStep("report", f"a page of {self.generated:,} pictures"),
            self.retrainings(),
            self.outputs(),
            self.featurizing("lds: features", max(self.asked), (1, 1)),
            self.counterfactuals(),
        ]

    @property
    def generated(self) -> int:
        return self.recipe.generation.count

    @property
    def asked(self) -> tuple[int, int]:
        """How many validation images and generated pictures LDS asks about."""
        settings = self.retraining
        return min(settings.validation, self.validation), min(settings.generated or self.generated, self.generated)

    @property
    def weights(self) -> int:
        return FLOAT * (self.layout.frozen + self.layout.trained)

    @property
    def latents(self) -> int:
        """Bytes of the training images' latents, a mean and a deviation each, and of their mirror images'."""
        return self.train * (1 + self.recipe.training.flip) * 2 * FLOAT * self.layout.latents

    @property
    def training_memory(self) -> int:
        """Weights; a gradient and two moments for what is trained; what a pass keeps; latents, if it is the CPU's."""
        changing = 3 * FLOAT * self.layout.trained
        latents = self.latents if self.device.type == "cpu" else 0
        return self.weights + changing + self.at_once * self.layout.activations + latents

    @property
    def at_once(self) -> int:
        """Images of a batch that share a pass."""
        batch = min(self.recipe.training.batch_size, self.train)
        return images_at_once(batch, self.layout.activations, self.device_memory)

    def encoding(self) -> PlannedStep:
        mirrored = " and their mirror images" * self.recipe.training.flip
        what = f"{self.train:,} images{mirrored}, by the autoencoder; {self.prompts:,} prompts at most"
        queries = self.generated * 2 * FLOAT * self.layout.latents
        memory = self.weights + min(self.train, pictures_in_a_pass(*self.shape[1:])) * self.layout.encoding
        return PlannedStep(
            "latents", what, 0, 0, memory, self.latents + queries + self.prompts * FLOAT * self.layout.prompt
        )

    @property
    def prompts(self) -> int:
        """How many different ones there are at most: one of every class, or of every image, and the empty one."""
        recipe, select = self.recipe, self.recipe.data.select
        classes = None if select is None or select.classes is None else len(select.classes)
        return recipe.family.most_prompts(recipe.model, self.train, classes)

    def training(self) -> PlannedStep:
        settings = self.recipe.training
        steps = settings.epochs * math.ceil(self.train / settings.batch_size)
        what = f"{self.train:,} images × {settings.epochs:,} epochs: {steps:,} steps of {settings.batch_size:,}"
        what += f", {self.at_once:,} at once" * (self.at_once < settings.batch_size)
        passes = self.train * settings.epochs
        saved = (1 + settings.checkpoints) * FLOAT * self.layout.trained
        return PlannedStep("train", what, passes, passes, self.training_memory, saved)

    def generating(self) -> PlannedStep:
        settings = self.recipe.generation
        guided = settings.guidance is not None  # each step asks twice, with the prompt and without
        passes = settings.count * settings.steps * (1 + guided)
        what = f"{settings.count:,} pictures × {settings.steps:,} steps of DDIM" + " × 2 for guidance" * guided
        at_once = min(BATCH, settings.count)
        denoising = at_once * self.layout.working
        decoding = min(at_once, pictures_in_a_pass(*self.shape[1:])) * self.layout.decoding
        memory = self.weights + max(denoising, decoding)
        return PlannedStep("generate", what, passes, 0, memory, settings.count * math.prod(self.shape))

    @cached_property
    def needed(self) -> dict[GradientKind, NeededGradients]:
        settings = self.recipe.attribution
        chosen = chosen_methods(split_methods(settings.method, settings.objective))
        return needed_by(chosen, settings.objective, Damping.parse(settings.damping))

    @cached_property
    def objectives(self) -> tuple[int, int]:
        """Of how many objectives the gradients are needed, for training images and for queries."""
        train = {name for one in self.needed.values() for name in one.train}
        return len(train), len({name for one in self.needed.values() for name in one.all_of_queries})

    @property
    def rows_of_each(self) -> int:
        """Rows of features that an image has, at the most: one, or one for each copy."""
        return self.copies if any(kind.apart for kind in self.needed) else 1

    @cached_property
    def copies(self) -> int:
        settings = self.recipe.attribution
        return settings.draws * len(select_timesteps(settings.timesteps, self.recipe.timesteps))

    @property
    def features(self) -> int:
        """k, the numbers that are kept for each image."""
        settings = self.recipe.attribution
        return self.layout.trained if settings.projection == "identity" else settings.projection_dim

    def featurizing(self, name: str, queries: int, objectives: tuple[int, int]) -> PlannedStep:
        train, (for_train, for_queries), copies = self.train, objectives, self.copies
        what = f"{train:,} + {queries:,} images × {copies:,} noised copies"
        rows = for_train * train + for_queries * queries
        at_once = min(copies, copies_that_fit(self.layout.activations, self.device_memory))
        memory = self.weights + at_once * self.layout.activations
        disk = rows * self.rows_of_each * self.features * FLOAT
        return PlannedStep(name, what, (train + queries) * copies, rows * copies, memory, disk)

    def scoring(self) -> PlannedStep:
        queries, train, dim = self.generated, self.train, self.features
        smaller = min(train * self.rows_of_each, dim)
        kernels = self.objectives[0]
        # What is decomposed and the workspace for it; then, for each kernel, the training images in its directions and,
        # where these are not images themselves, the directions.
        kept = train * smaller + (dim * smaller if dim <= train else 0)
        memory = DOUBLE * (2 * smaller**2 + kernels * kept) + (FLOAT + DOUBLE) * queries * dim
        what = f"{queries:,} pictures × {train:,} images: a kernel of {smaller:,} × {smaller:,}"
        return PlannedStep("score", what, 0, 0, memory, FLOAT * queries * train)

    @property
    def models(self) -> int:
        return self.retraining.subsets * self.retraining.seeds

    def retrainings(self) -> PlannedStep:
        settings, (channels, height, width) = self.retraining, self.shape
        size = round(settings.fraction * self.train)
        passes = self.models * size * self.recipe.training.epochs
        what = f"{settings.subsets:,} subsets × {settings.seeds:,} seeds = {self.models:,} models on {size:,} images"
        images = (self.train + sum(self.asked)) * channels * height * width
        losses = self.models * sum(self.asked) * len(OBJECTIVES) * (FLOAT + DOUBLE)  # as arrays, and job by job
        disk = images + losses + FLOAT * self.layout.trained + settings.subsets * self.train
        return PlannedStep("lds: retrain", what, passes, passes, self.training_memory, disk)

    def outputs(self) -> PlannedStep:
        settings, pictures, total = self.retraining, sum(self.asked), self.recipe.timesteps
        timesteps = len(select_timesteps(total if settings.timesteps is None else settings.timesteps, total))
        what = f"{self.models:,} models × {pictures:,} pictures × {timesteps:,} timesteps × {settings.noises:,} noises"
        at_once = images_in_a_pass(self.layout.activations, self.device, self.device_memory)
        memory = self.weights + at_once * self.layout.working
        return PlannedStep("lds: outputs", what, self.models * pictures * timesteps * settings.noises, 0, memory)

    def counterfactuals(self) -> PlannedStep:
        recipe, settings = self.recipe, self.recipe.evaluation
        pictures = min(settings.pictures or COUNT, self.generated)
        left = self.train - (settings.remove or usual_share(self.train))
        models = JUDGED * pictures
        passes = models * left * recipe.training.epochs
        drawn = models * recipe.generation.steps * (1 + (recipe.generation.guidance is not None))
        what = f"{JUDGED} methods × {pictures:,} pictures = {models:,} models on {left:,} images, at most"
        pixels = math.prod(self.shape)
        disk = models * (pixels + recipe.generation.steps * (self.layout.latents or pixels)) * FLOAT
        return PlannedStep("counterfactual", what, passes + drawn, passes, self.training_memory, disk)


def plan(recipe: Recipe, folder: Path, device: str = "cpu") -> Table:
    """What a run of the recipe in this folder would take, and what stands in its way."""
    data, missing = recipe.data, list[str]()
    train = _count(data.train, data.select, missing)
    is_there = not missing
    validation = 0 if data.validation is None else _count(data.validation, data.select_validation, missing)
    shape = _shape(recipe)
    layout = recipe.family.lay_out(recipe.model, shape, recipe.name)
    run, count = Run(folder, recipe), train if data.subset is None else len(read_ids(data.subset))
    run.check_folder()
    if is_there:
        run.check_recipe()
    check_settings(run, count, shape, layout)
    missing += recipe.family.to_fetch(recipe.model, layout)
    missing += [f"{DEFAULT_ENCODER} will be downloaded, unless it was before"] if asks_encoder(run) else []
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
    """How many images there are, or will be; what has to be brought first is added to what is missing."""
    stated = None if select is None else select.known_count
    if stated is not None and source.startswith("hf:"):
        missing.append(f"{source} will be downloaded, unless it was before")
        return stated
    try:
        return len(find_source(source, select).pictures)
    except UsageError as error:
        if stated is None or _is_there(source):
            raise
        missing.append(f"Missing: {error}")
        return stated


def _is_there(source: str) -> bool:
    """Whether there are images at all, of which a selection may ask too much."""
    try:
        return bool(find_source(source, None).pictures)
    except UsageError:
        return False


def _shape(recipe: Recipe) -> tuple[int, int, int]:
    """(C, H, W) as the recipe says, or as the images have it."""
    data = recipe.data
    side = data.size or data.crop
    if side is not None and data.channels is not None:
        return data.channels, side, side
    return load_images(data.train, crop=data.crop, size=data.size, channels=data.channels, select=data.select).shape


def _table(made: Plan, folder: Path, missing: list[str]) -> Table:
    steps, layout = made.steps(), made.layout
    rows: list[list[Entry]] = [
        [one.name, one.what, _passes(one.forward), _passes(one.backward), _size(one.memory), _size(one.disk)]
        for one in steps
    ]
    frozen = f", beside {layout.frozen / 1e6:,.1f} M that stay as they are" if layout.frozen else ""
    there = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    largest = max(steps, key=lambda one: one.memory)
    enough = "enough for" if largest.memory <= made.device_memory else "LESS than is needed for"
    notes = [
        f"{layout.trained:,} parameters ({layout.trained / 1e6:,.1f} M) are trained and attributed{frozen}.",
        "A pass is one image through the network. Memory is that of one model's tensors in float32; Python and torch "
        "take some by themselves.",
        f"In all {_size(sum(one.disk for one in steps)).text} on disk, of {_size(shutil.disk_usage(there).free).text} "
        f"free; there are {_size(made.device_memory).text} of memory, {enough} {largest.name}.",
        *dict.fromkeys(missing),
    ]
    caption = f"{made.recipe.name}, into {folder}: {made.recipe.summary}"
    return Table(["step", "what", "forward passes", "backward passes", "memory", "disk"], rows, caption, notes)


def _passes(count: int) -> Cell:
    return Cell(count, f"{count:,}" if count else "–")


def _size(count: int) -> Cell:
    unit, name = next((unit, name) for unit, name in UNITS if count >= unit or unit == 1)
    return Cell(count, f"{count / unit:,.{1 if unit > 1 else 0}f} {name}" if count else "–")
