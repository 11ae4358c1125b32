"""Train a model again on subsets of its images, and compute outputs or draw pictures with it.

A job trains one model from scratch, on one subset with one seed, and then uses it. Jobs are independent of each other
and run on any engine.
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

PROCESS_BYTES = 512 << 20  # memory of a process that has only imported torch and diffusers
JOBS_SHARE = 1 / 2  # of all memory, which the jobs together may use


@dataclass(frozen=True)
class Outputs:
    """The noised copies of a query whose outputs are averaged."""

    timesteps: tuple[int, ...]
    noises: int = 3  # at each timestep
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Retraining:
    """Everything that is the same for all jobs."""

    recipe: Recipe
    images: ModelInputs  # the N training images, in memory
    masks: NDArray[np.bool_]  # [M, N], the subsets
    queries: Mapping[str, ModelInputs] = field(default_factory=dict)  # sets of queries by name, in memory
    outputs: Outputs = Outputs(())
    keep_weights: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class TrainingJob:
    """One model to train, and what to draw with it."""

    subset: int  # the index of its mask
    seed: int = 0  # added to the recipe's training seed
    draw: tuple[int, ...] = ()  # seeds of pictures to draw
    prompts: tuple[str, ...] = ()  # of these pictures, for a model that takes prompts
    trajectory: bool = False  # whether to return the estimates x̂_0 of every DDIM step as well

    def __str__(self) -> str:
        """Return the name of the job's files."""
        return f"subset-{self.subset:03d}-seed-{self.seed}"


def retrain(context: Retraining, job: TrainingJob) -> Arrays:
    """Train the recipe's model on a subset, and return these arrays, the last four only if they are wanted:

    - "seconds", []: the duration of the training
    - "outputs/NAME/OBJECTIVE", float64 [Q]: the outputs for each set of queries
    - "pictures", float32 [B, C, H, W] in [−1, 1]: drawn from the job's seeds
    - "estimates", float32 [steps, B, C, H, W]: the estimates x̂_0 of every DDIM step, in the denoised space
    - "weights/NAME": the trained weights
    """
    recipe = with_training_seed(context.recipe, context.recipe.training.seed + job.seed)
    started = time.perf_counter()
    model = train_in_memory(recipe, context.images.select(np.flatnonzero(context.masks[job.subset])), context.device)
    outputs = context.outputs
    arrays: Arrays = {"seconds": np.array(time.perf_counter() - started)}
    for name, images in context.queries.items():
        values = model_outputs(model, images, outputs.timesteps, outputs.noises, outputs.seed)
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


def run_jobs(
    context: Retraining, jobs: Sequence[TrainingJob], engine: Engine, threads: int, done: int = 0
) -> Iterator[tuple[TrainingJob, Arrays]]:
    """Run the jobs on an engine and yield each result when it is there.

    A progress bar counts these jobs and the `done` ones of earlier calls.
    """
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
    """Read the arrays of an .npz file; None if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except Exception:  # damaged archives raise many kinds of errors
        return None


def read_result(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Arrays | None:
    """Read the arrays that `shapes` names from a job's file; None if one of them is missing or has another shape."""
    arrays = read_arrays(path) or {}
    found = {key: arrays[key] for key in shapes if key in arrays}
    return found if {key: array.shape for key, array in found.items()} == shapes else None


def model_with_weights(context: Retraining, arrays: Arrays) -> DiffusionModel:
    """Build the model whose weights are in the result of a job."""
    recipe = context.recipe
    model = new_model(recipe.model, context.images.images.shape, recipe.name)
    prefix = "weights/"
    weights = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    model.load_trained_weights({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


def with_training_seed(recipe: Recipe, seed: int) -> Recipe:
    """Return the recipe with another training seed."""
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"seed": seed})})


def threads_per_job(recipe: Recipe, model: DiffusionModel, condition: Condition) -> int:
    """Return how many threads each job gets.

    It is one, with as many jobs as there are cores. If so many models do not fit into memory, fewer jobs run, with more
    threads each. `model` is a model of the recipe, `condition` the condition of one image.
    """
    weights = sum(value.nbytes for value in model.network.parameters())
    trained = sum(value.nbytes for value in model.parameters().values())
    each, memory = training_bytes(model, condition), total_memory(torch.device("cpu"))
    activations = each * images_at_once(recipe.training.batch_size, each, memory)
    job_bytes = PROCESS_BYTES + activations + weights + 3 * trained  # gradients and the optimiser's two moments
    fitting = int(JOBS_SHARE * memory / job_bytes)
    return max(1, cores() // max(1, min(cores(), fitting)))
