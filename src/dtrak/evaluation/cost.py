"""What work takes, and what is wrong with it, before it starts: a recipe's run, attribution of many images, an LDS.

A pass is one image, or one noised copy of it, through the network, forward or backward. If a recipe gives the number of
its images and their shape, the data need not be there yet. All checks write nothing.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from dtrak.attribution.index_building import NUMBERS
from dtrak.attribution.required_gradients import check_objective, required_gradients
from dtrak.attribution.settings import DEFAULT_ENCODER, Settings
from dtrak.devices import total_memory
from dtrak.errors import UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.evaluation.comparison import uses_retrained
from dtrak.evaluation.counterfactual import DEFAULT_PICTURES, default_removed
from dtrak.evaluation.outputs import images_in_a_pass
from dtrak.features.encoders import load_encoder
from dtrak.features.featurizing import check_copies, featurize
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.features.store import DTYPES
from dtrak.gradients.copies import select_timesteps
from dtrak.gradients.factored import Factored
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.image_files import Picture
from dtrak.images.images import Images, load_images, read_ids
from dtrak.images.selection import Selection
from dtrak.images.sources import find_source
from dtrak.kernels.rows import KEPT_BYTES
from dtrak.methods import EVERY_METHOD, METHODS, chosen_methods
from dtrak.methods.method import Embeddings
from dtrak.models import DiffusionModel
from dtrak.models.autoencoder import pictures_in_a_pass
from dtrak.models.diffusion import chosen_parameters, usual_parameters
from dtrak.models.memory import Layout, copies_that_fit
from dtrak.models.sampling import BATCH
from dtrak.runs.recipes import Recipe
from dtrak.runs.run import BENCHMARK, TIMES, Run
from dtrak.runs.training import images_at_once
from dtrak.tables import Cell, Entry, Table

FLOAT, DOUBLE = 4, 8  # bytes
UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
COMPARED_METHODS = 3  # by `dtrak evaluate counterfactual`: random, trak and d-trak
MEASURED = 32  # random pictures, to measure the speed of a model
READ_RATE = 1e9  # bytes of features that are read and compared in a second, for the time of a question
CODE_BYTES = 1 / 4  # that each number of a vector has in the codes of an index
WORKING = 1 << 30  # memory for blocks, libraries and programs


# the mistakes of a recipe


def check_run(run: Run, device: str) -> None:
    """Refuse a run whose recipe has a mistake, or whose training does not fit into memory with one image at a time.

    Training needs the weights, their gradients, the optimiser's two moments, and the activations of one pass.
    """
    recipe, images = run.recipe, run.train_images
    data = recipe.data
    if data.validation is not None and not data.validation.startswith("hf:"):
        find_source(data.validation, data.select_validation)
    layout = recipe.family.lay_out(recipe.model, images.shape, recipe.name)
    needs_encoder = check_settings(run, len(images), images.shape, layout)
    needed = FLOAT * (layout.frozen + 4 * layout.trained) + layout.activations
    memory = total_memory(torch.device(device))
    if needed > memory:
        raise UsageError(
            f"{recipe.name}: training its model takes {needed / 1e9:,.1f} GB with one image at a time, but {device} "
            f"has {memory / 1e9:,.1f} GB: make model.unet or data.size smaller"
        )
    if needs_encoder:
        load_encoder(DEFAULT_ENCODER)


def check_settings(run: Run, train: int, shape: tuple[int, int, int], layout: Layout) -> bool:
    """Refuse wrong settings of attribution and evaluation, for `train` images of `shape` (C, H, W).

    Return whether one of the methods that the recipe names needs an image encoder.
    """
    recipe, settings, evaluation = run.recipe, run.recipe.attribution, run.recipe.evaluation
    chosen = chosen_methods(settings.method, settings.objective)
    check_objective(chosen, settings)
    if settings.method != EVERY_METHOD and not os.path.exists(run.folder / BENCHMARK / "masks.npy"):
        for one in chosen:
            if uses_retrained(one):
                raise UsageError(
                    f"{recipe.name}: attribution.method {one.name} learns from retrained models, which a run has only "
                    "after `dtrak evaluate lds RUN`: name another method here, and use this one afterwards with "
                    "--method"
                )
    timesteps = select_timesteps(settings.timesteps, recipe.timesteps)
    check_copies(len(timesteps), settings.draws, (layout.latents,) if layout.latents else shape, torch.device("cpu"))
    chosen_parameters(layout.network, settings.parameters)
    retraining = RetrainingSettings.resumed(run.folder / BENCHMARK, evaluation, {})
    if retraining.timesteps is not None:
        select_timesteps(retraining.timesteps, recipe.timesteps)
    if evaluation.fraction is not None and round(evaluation.fraction * train) in (0, train):
        raise UsageError(
            f"{recipe.name}: evaluation.fraction {evaluation.fraction}: a subset of {train} images must hold at least "
            "one of them, but not all"
        )
    return settings.method != EVERY_METHOD and any(isinstance(one.needs, Embeddings) for one in chosen)


# what a recipe takes


def row_bytes(spec: Spec, copies: int, dim: int) -> int:
    """Return the bytes of an image's features of one objective: k numbers, or k for each copy."""
    return (copies if spec.copies == "apart" else 1) * dim * DTYPES[spec.dtype].itemsize


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

    @property
    def at_once(self) -> int:
        """How many images of a batch share a pass."""
        batch = min(self.recipe.training.batch_size, self.train)
        return images_at_once(batch, self.layout.activations, self.device_memory)

    def steps(self) -> Iterator[PlannedStep]:
        """Yield the steps of `dtrak run`, and then those of `dtrak evaluate`."""
        recipe, layout, train, pixels = self.recipe, self.layout, self.train, math.prod(self.shape)
        training, drawing, asked, tested = recipe.training, recipe.generation, recipe.attribution, self.retraining
        in_a_pass, guided = pictures_in_a_pass(*self.shape[1:]), drawing.guidance is not None
        weights = (layout.frozen_bytes or FLOAT * layout.frozen) + FLOAT * layout.trained
        # A mean and a deviation for each training image and its mirror image.
        latents = train * (1 + training.flip) * 2 * FLOAT * layout.latents
        # A gradient and two moments for each trained weight; on a CPU, the latents lie in the same memory.
        to_train = weights + 3 * FLOAT * layout.trained + self.at_once * layout.activations
        to_train += latents if self.device.type == "cpu" else 0

        if layout.latents:
            classes = None if recipe.data.select is None else recipe.data.select.classes
            prompts = recipe.family.most_prompts(recipe.model, train, None if classes is None else len(classes))
            mirrored = " and their mirror images" * training.flip
            description = f"{train:,} images{mirrored}, by the autoencoder; {prompts:,} prompts at most"
            memory = weights + min(train, in_a_pass) * layout.encoding
            disk = latents + drawing.count * 2 * FLOAT * layout.latents + prompts * FLOAT * layout.prompt
            yield PlannedStep("latents", description, 0, 0, memory, disk)

        steps, passes = training.epochs * math.ceil(train / training.batch_size), train * training.epochs
        description = f"{train:,} images × {training.epochs:,} epochs: {steps:,} steps of {training.batch_size:,}"
        description += f", {self.at_once:,} at once" * (self.at_once < training.batch_size)
        yield PlannedStep(
            "train", description, passes, passes, to_train, (1 + training.checkpoints) * FLOAT * layout.trained
        )

        description = f"{drawing.count:,} pictures × {drawing.steps:,} steps" + " × 2 for guidance" * guided
        drawn = drawing.steps * (
            1 + guided
        )  # passes for a picture: a guided step takes two, with the prompt and without
        at_once = min(BATCH, drawing.count)
        memory = weights + max(at_once * layout.working, min(at_once, in_a_pass) * layout.decoding)
        yield PlannedStep("generate", description, drawing.count * drawn, 0, memory, drawing.count * pixels)

        needed = required_gradients(chosen_methods(asked.method, asked.objective), asked)
        copies, apart = (
            asked.draws * self._count_timesteps(asked.timesteps),
            any(one.copies == "apart" for one in needed),
        )
        dims = {spec: self._dim(spec) for spec in needed}
        row = max((row_bytes(spec, copies, dim) for spec, dim in dims.items()), default=0)

        def featurizing(name: str, queries: int, for_train: int, for_queries: int) -> PlannedStep:
            """Plan the gradients of so many objectives, of the training images and of so many queries."""
            images, rows = train + queries, for_train * train + for_queries * queries
            memory = weights + min(copies, copies_that_fit(layout.activations, self.device_memory)) * layout.activations
            description = f"{train:,} + {queries:,} images × {copies:,} noised copies"
            return PlannedStep(name, description, images * copies, rows * copies, memory, rows * row)

        objectives = len({name for one in needed.values() for name in one.train})
        of_queries = len({name for one in needed.values() for name in (*one.queries, *one.trajectories)})
        yield featurizing("features", drawing.count, objectives, of_queries)

        dim, kernels = max(dims.values(), default=0), 1 if apart else objectives
        smaller = min(train * (copies * objectives if apart else 1), dim)
        # The decomposed matrix and its workspace; then, for each kernel, the coordinates of the training images and,
        # if there are more images than dimensions, the directions.
        kept = train * smaller + (dim * smaller if dim <= train else 0)
        memory = DOUBLE * (2 * smaller**2 + kernels * kept) + (FLOAT + DOUBLE) * drawing.count * dim
        description = f"{drawing.count:,} pictures × {train:,} images: a kernel of {smaller:,} × {smaller:,}"
        yield PlannedStep("score", description, 0, 0, memory, FLOAT * drawing.count * train)
        yield PlannedStep("report", f"a page of {drawing.count:,} pictures")

        of_kinds = min(tested.validation, self.validation), min(tested.generated or drawing.count, drawing.count)
        size, queries, models = round(tested.fraction * train), sum(of_kinds), tested.subsets * tested.seeds
        description = f"{tested.subsets:,} subsets × {tested.seeds:,} seeds = {models:,} models on {size:,} images"
        losses = models * queries * len(OBJECTIVES) * (FLOAT + DOUBLE)  # as arrays, and job by job
        disk = (train + queries) * pixels + losses + FLOAT * layout.trained + tested.subsets * train
        passes = models * size * training.epochs
        yield PlannedStep("lds: retrain", description, passes, passes, to_train, disk)

        timesteps = self._count_timesteps(recipe.timesteps if tested.timesteps is None else tested.timesteps)
        description = f"{models:,} models × {queries:,} pictures × {timesteps:,} timesteps × {tested.noises:,} noises"
        memory = weights + images_in_a_pass(layout.activations, self.device, self.device_memory) * layout.working
        yield PlannedStep("lds: outputs", description, models * queries * timesteps * tested.noises, 0, memory)
        yield featurizing("lds: features", max(of_kinds), 1, 1)

        pictures = min(recipe.evaluation.pictures or DEFAULT_PICTURES, drawing.count)
        left, models = train - (recipe.evaluation.remove or default_removed(train)), COMPARED_METHODS * pictures
        description = (
            f"{COMPARED_METHODS} methods × {pictures:,} pictures = {models:,} models on {left:,} images, at most"
        )
        passes = models * left * training.epochs
        disk = models * (pixels + drawing.steps * (layout.latents or pixels)) * FLOAT
        yield PlannedStep("counterfactual", description, passes + models * drawn, passes, to_train, disk)

    def _count_timesteps(self, choice: int | str) -> int:
        return len(select_timesteps(choice, self.recipe.timesteps))

    def _dim(self, spec: Spec) -> int:
        """Return k, how many numbers are stored for each image, or for each of its copies."""
        words = {word: usual_parameters(self.layout.network, word == "later") for word in ("usual", "later")}
        parameters = chosen_parameters(self.layout.network, words.get(spec.layers, spec.layers))
        if spec.projection == "identity":
            return sum(one.numel() for one in parameters.values())
        if spec.projection != "factored":
            return spec.projection_dim
        return Factored(spec.projection_dim, {name: tuple(one.shape) for name, one in parameters.items()}, 0).dim


def plan(recipe: Recipe, folder: Path, device: str = "cpu") -> Table:
    """Return a table of what a run of the recipe in this folder would take, with notes on anything that is missing."""
    data, missing, place = recipe.data, list[str](), torch.device(device)
    train = _count(data.train, data.select, missing)
    has_train = not missing
    validation = 0 if data.validation is None else _count(data.validation, data.select_validation, missing)
    side = data.size or data.crop
    if side is not None and data.channels is not None:
        shape: tuple[int, int, int] = (data.channels, side, side)
    else:
        images = load_images(data.train, crop=data.crop, size=data.size, channels=data.channels, select=data.select)
        shape = images.shape
    layout = recipe.family.lay_out(recipe.model, shape, recipe.name)
    run, count = Run(folder, recipe), train if data.subset is None else len(read_ids(data.subset))
    run.check_folder()
    if has_train:
        run.check_recipe()
    needs_encoder = check_settings(run, count, shape, layout)
    missing += recipe.family.to_fetch(recipe.model, layout)
    missing += [f"{DEFAULT_ENCODER} will be downloaded, unless it was before"] * needs_encoder
    retraining = RetrainingSettings.resumed(folder / BENCHMARK, recipe.evaluation, {})
    steps = [*Plan(recipe, count, validation, shape, layout, place, total_memory(place), retraining).steps()]
    rows: list[list[Entry]] = [
        [
            *(one.name, one.description),
            *(Cell(number, f"{number:,}" if number else "–") for number in (one.forward, one.backward)),
            *(Cell(number, in_bytes(number) if number else "–") for number in (one.memory, one.disk)),
        ]
        for one in steps
    ]
    frozen = f", beside {layout.frozen / 1e6:,.1f} M that stay as they are" if layout.frozen else ""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    largest, memory = max(steps, key=lambda one: one.memory), total_memory(place)
    enough = "enough for" if largest.memory <= memory else "LESS than is needed for"
    notes = [
        f"{layout.trained:,} parameters ({layout.trained / 1e6:,.1f} M) are trained and attributed{frozen}.",
        "A pass is one image through the network. Memory is that of one model's tensors in float32; Python and torch "
        "need some more.",
        f"In all {in_bytes(sum(one.disk for one in steps))} on disk, of {in_bytes(shutil.disk_usage(existing).free)} "
        f"free; there are {in_bytes(memory)} of memory, {enough} {largest.name}.",
        *dict.fromkeys(missing),
    ]
    caption = f"{recipe.name}, into {folder}: {recipe.summary}"
    return Table(["step", "what", "forward passes", "backward passes", "memory", "disk"], rows, caption, notes)


def _count(source: str, select: Selection | None, missing: list[str]) -> int:
    """Return how many images there are, or will be after a download; add a line to `missing` if they are not there."""
    stated = None if select is None else select.known_count
    if stated is not None and source.startswith("hf:"):
        missing.append(f"{source} will be downloaded, unless it was before")
        return stated
    try:
        return len(find_source(source, select).pictures)
    except UsageError as error:
        if stated is None:
            raise
        try:
            has_images = bool(find_source(source, None).pictures)
        except UsageError:
            has_images = False
        if has_images:  # then the error is the selection's fault
            raise
        missing.append(f"Missing: {error}")
        return stated


def in_bytes(count: float) -> str:
    """Return a number of bytes in its largest unit: "1.4 GB"."""
    unit, name = next((unit, name) for unit, name in UNITS if count >= unit or unit == 1)
    return f"{count / unit:,.{1 if unit > 1 else 0}f} {name}"


# what attribution of many images takes, and an LDS


def forecast(images: int, rate: float, workers: int, said: str) -> Table:
    """Return what each way to make features takes, for so many passes in a second on each of the workers."""
    rows: list[list[Entry]] = []
    for name, timesteps, dim in product(("d-trak", "step-trak"), (2, 5, 10), (1024, 4096)):
        dtype = "float32" if (name, dim) == ("d-trak", 4096) else "float16"
        settings = Settings(timesteps=timesteps, projection_dim=dim, dtype=dtype)
        ((spec, required),) = required_gradients([METHODS[name]], settings).items()
        apart, objectives = spec.copies == "apart", len(required.train)
        passes, each = images * timesteps, row_bytes(spec, timesteps, dim)
        # A second objective shares the forward pass, and adds its backward pass: about two thirds of the first pass.
        hours = passes * (1 + 2 / 3 * (objectives - 1)) / rate / workers / 3600
        features, index = images * objectives * each, images * NUMBERS * (FLOAT + CODE_BYTES)
        # The fitted kernels: float64 [k, k] for each objective, or float32 for all copies.
        kernels = FLOAT * dim**2 if apart else objectives * DOUBLE * min(dim, images) * dim
        memory = WORKING + 4 * DOUBLE * dim**2 + min(KEPT_BYTES, features)  # some matrices [k, k]
        seconds = images * each / READ_RATE  # the second objective is for λ alone
        rows.append(
            [
                *(name, timesteps, dim, dtype, Cell(passes, f"{passes:,}"), Cell(hours, f"{hours:,.1f}")),
                Cell(features, in_bytes(features + kernels)),
                *(Cell(index, in_bytes(index)), Cell(memory, in_bytes(memory)), Cell(seconds, f"{seconds:,.1f}")),
            ]
        )
    heads = ["method", "K", "k", "stored as", "passes", "hours", "disk", "index", "memory", "question s"]
    notes = [
        said,
        f"{images:,} images. Two objectives share passes; the second adds two thirds of a pass. Disk: features and "
        f"kernels. Index: {NUMBERS} numbers an image, and their codes. Memory: of the machine that fits and scores. "
        "Question: all features that are scored are read once, at 1 GB a second; with an index, it takes about 0.1 s.",
    ]
    return Table(heads, rows, notes=notes)


def measured_rate(model: DiffusionModel, parameters: str | None = None) -> float:
    """Return the passes in a second of this machine, for features of one objective, from a few random pictures."""
    channels, height, width = model.image_shape
    pixels = np.random.default_rng(0).integers(0, 256, (MEASURED, height, width, channels), dtype=np.uint8)
    pictures = [Picture(f"random picture {number}", one) for number, one in enumerate(pixels)]
    columns = {"caption": np.array(["a picture"] * MEASURED), "label": np.array(["picture"] * MEASURED)}
    drawn = np.fromiter(pictures, dtype=np.object_)
    inputs = model_inputs(model, Images("random pictures", np.arange(MEASURED), columns, model.image_shape, drawn))
    objectives, layers = {"simple": OBJECTIVES["simple"]}, parameters or "later"
    spec = Spec("final", "apart", timesteps="visible:2", layers=layers, projection="factored", projection_dim=1024)
    with TemporaryDirectory() as folder:
        featurize(model, inputs.select([0]), spec, objectives, {"simple": (Path(folder, "first"), {})})
        cost = featurize(model, inputs, spec, objectives, {"simple": (Path(folder, "every"), {})})["simple"].cost
    return 2 * MEASURED / max(cost.gradients + cost.projection, 1e-9)


def lds_seconds(run: Run) -> float | None:
    """Return the seconds to retrain the run's model M × S times on a part of its images; None if it is unknown.

    It comes from the time that the run's own training took; the models share the cores of this machine. What features
    and outputs take is little beside it.
    """
    try:
        times = json.loads((run.folder / TIMES).read_text(encoding="utf-8"))
        training = float(times["steps"]) * float(times["seconds_per_step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    settings = RetrainingSettings.resumed(run.folder / BENCHMARK, run.recipe.evaluation, {})
    return settings.subsets * settings.seeds * settings.fraction * training / (os.cpu_count() or 1)
