"""Train a model again on subsets of its images, and see what becomes of some pictures.

A job is one training from scratch, on one subset with one seed, and what is wanted of the model that it gives. Jobs are
independent of each other and run on any engine.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.engines import Engine, cores, device_of_worker, gpu_of
from dtrak.evaluation.outputs import model_outputs
from dtrak.features.inputs import ModelInputs
from dtrak.models import DiffusionModel, new_model
from dtrak.models.conditions import Condition
from dtrak.models.memory import total_memory, training_bytes
from dtrak.models.sampling import sample
from dtrak.progress import progress_bar, say
from dtrak.runs.recipes import Recipe
from dtrak.runs.training import images_at_once, train_in_memory

Arrays = dict[str, NDArray[Any]]

# What a process with torch and diffusers takes by itself, and the part of all memory that jobs may fill.
PROCESS_BYTES = 512 << 20
JOBS_SHARE = 1 / 2


@dataclass(frozen=True)
class Outputs:
    """Which noised copies of a query its outputs are the mean over."""

    timesteps: tuple[int, ...]
    noises: int = 3
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Retraining:
    """What all jobs have in common."""

    recipe: Recipe
    images: ModelInputs  # N, in memory
    masks: NDArray[np.bool_]  # [M, N], the subsets
    queries: Mapping[str, ModelInputs] = field(default_factory=dict)  # in memory, too
    outputs: Outputs = Outputs(())
    keep_weights: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class TrainingJob:
    subset: int  # which of the masks
    seed: int = 0  # added to the recipe's training seed
    draw: tuple[int, ...] = ()  # seeds of pictures to generate
    prompts: tuple[str, ...] = ()  # of these, where the model takes some
    trajectory: bool = False  # whether what they were taken for on the way is wanted as well

    def __str__(self) -> str:
        return f"subset-{self.subset:03d}-seed-{self.seed}"


def retrain(context: Retraining, job: TrainingJob) -> Arrays:
    """Train the recipe's model on a subset; gives what was asked for:

    - "seconds", [], that the training took
    - "outputs/NAME/OBJECTIVE", float64 [Q], of each set of queries
    - "pictures", float32 [B, C, H, W] in [−1, 1], drawn from the job's seeds
    - "estimates", float32 [steps, B, C, H, W], what each step of DDIM took them for: x̂_0, in the denoised space
    - "weights/NAME", each of those that were trained
    """
    recipe = with_training_seed(context.recipe, context.recipe.training.seed + job.seed)
    started = time.perf_counter()
    model = train_in_memory(recipe, context.images.select(np.flatnonzero(context.masks[job.subset])), context.device)
    wanted = context.outputs
    arrays: Arrays = {"seconds": np.array(time.perf_counter() - started)}
    for name, images in context.queries.items():
        values = model_outputs(model, images, wanted.timesteps, wanted.noises, wanted.seed)
        arrays |= {f"outputs/{name}/{objective}": array for objective, array in values.items()}
    if job.draw:
        steps, guidance = recipe.generation.steps, recipe.generation.guidance
        drawn = sample(model, job.draw, steps, job.trajectory, job.prompts or None, guidance)
        arrays["pictures"] = drawn.pictures.cpu().numpy()
        if drawn.estimates is not None:
            arrays["estimates"] = drawn.estimates.cpu().numpy()
    if context.keep_weights:
        arrays |= {f"weights/{name}": value.cpu().numpy() for name, value in model.trained_weights.items()}
    return arrays


def retrained(
    context: Retraining, jobs: Sequence[TrainingJob], engine: Engine, threads: int, done: int = 0
) -> Iterator[tuple[TrainingJob, Arrays]]:
    """What each job gives, as they finish, with a progress bar over these and the `done` ones."""
    if jobs:
        size, total = int(context.masks[jobs[0].subset].sum()), len(context.images)
        each = f"on {size:,}" if 2 * size <= total else f"without {total - size:,}"
        say(
            f"{len(jobs):,} of {done + len(jobs):,} models to train from scratch, each {each} of {total:,} images with "
            f"{threads} thread{'s' * (threads > 1)}"
        )
    gpu, card = gpu_of(context.device)
    sent = replace(context, device=device_of_worker(engine, context.device))
    with progress_bar("retrain", done + len(jobs), "models") as advance:
        advance(done)
        for job, arrays in engine.run(retrain, sent, jobs, threads, gpu, card):
            yield job, arrays
            advance(1)


def read_arrays(path: Path) -> Arrays | None:
    """What a finished job has left; None if it is not there whole."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except Exception:  # damaged archives raise all kinds
        return None


def read_whole(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Arrays | None:
    """The arrays of these shapes that a finished job has left; None if they are not there whole."""
    arrays = read_arrays(path) or {}
    found = {key: arrays[key] for key in shapes if key in arrays}
    return found if {key: array.shape for key, array in found.items()} == shapes else None


def model_of(context: Retraining, arrays: Arrays) -> DiffusionModel:
    """The model whose weights a job has kept."""
    recipe = context.recipe
    model = new_model(recipe.model, context.images.images.shape, recipe.name)
    prefix = "weights/"
    weights = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    model.load_trained_weights({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


def with_training_seed(recipe: Recipe, seed: int) -> Recipe:
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"seed": seed})})


def threads_per_job(recipe: Recipe, model: DiffusionModel, condition: Condition) -> int:
    """One, unless so many models as there are cores would not fit into memory: then fewer, with more threads each.

    `model` is one as the recipe makes it, `condition` that of one image.
    """
    weights = sum(value.nbytes for value in model.network.parameters())
    trained = sum(value.nbytes for value in model.parameters().values())
    each, memory = training_bytes(model, condition), total_memory(torch.device("cpu"))
    activations = each * images_at_once(recipe.training.batch_size, each, memory)
    job_bytes = PROCESS_BYTES + activations + weights + 3 * trained  # gradients and the optimiser's two moments
    fitting = int(JOBS_SHARE * memory / job_bytes)
    return max(1, cores() // max(1, min(cores(), fitting)))
