"""Train a run's model again on some of its images, and keep what each such model gives.

A job trains one model from scratch, on one subset with one seed, and then measures the outputs of queries or draws
pictures with it. Jobs are independent of each other and run on any engine. The result of each is written when it is
there, under a name that is a hash of everything that it depends on. So a kill loses only the jobs that were running,
and nothing is trained twice that was trained before, whoever asks for it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.devices import total_memory
from dtrak.engines import Engine, cores, device_of_worker, gpu_of
from dtrak.errors import DtrakError, UsageError
from dtrak.evaluation.outputs import model_outputs
from dtrak.features.model_inputs import ModelInputs, model_inputs
from dtrak.files import alone_in, as_npz, clear_leftovers, write_bytes, write_text
from dtrak.fingerprints import hash_of, of_array, of_tensors
from dtrak.images.images import Images
from dtrak.models import DiffusionModel, new_model
from dtrak.models.memory import training_bytes
from dtrak.models.sampling import sample
from dtrak.noise import stream
from dtrak.progress import progress_bar, say
from dtrak.runs.recipes import Recipe
from dtrak.runs.run import Run
from dtrak.runs.training import images_at_once, train_in_memory

Arrays = dict[str, NDArray[Any]]

PROCESS_BYTES = 512 << 20  # memory of a process that has only imported torch and diffusers
JOBS_SHARE = 1 / 2  # of all memory, which the jobs together may use
VERSION = 1  # is raised when the same job would give other numbers


@dataclass(frozen=True)
class Outputs:
    """The noised copies of a query whose outputs are averaged."""

    timesteps: tuple[int, ...] = ()
    noises: int = 3  # at each timestep
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Retraining:
    """Everything that is the same for all jobs."""

    recipe: Recipe
    images: ModelInputs  # the N training images, in memory
    masks: NDArray[np.bool_]  # [M, N], the subsets
    queries: Mapping[str, ModelInputs] = field(default_factory=dict)  # sets of queries by name, in memory
    outputs: Outputs = Outputs()
    keep_weights: bool = False
    device: str = "cpu"
    base: str | None = None  # a hash of what training does not change: weights, noise process; None if all is new
    threads: int = 1  # of each job

    @classmethod
    def of(
        cls,
        run: Run,
        model: DiffusionModel,
        masks: NDArray[np.bool_],
        queries: Mapping[str, Images] | None = None,
        **more: Any,
    ) -> "Retraining":
        """Return what all jobs of a run share; `model` is the run's own."""
        train = model_inputs(model, run.train_images, run.latents, mirrored=run.recipe.training.flip).in_memory()
        inputs = {name: model_inputs(model, one, run.latents).in_memory() for name, one in (queries or {}).items()}
        base = None
        if not run.recipe.family.makes_new_weights:
            state, trained = model.network.state_dict(), model.trained_weights
            parts = [part for part in (model.autoencoder, model.conditions) if part is not None]
            weights = of_tensors({name: value for name, value in state.items() if name not in trained})
            base = hash_of([weights, model.process.facts, *(part.facts for part in parts)])
        threads = threads_per_job(run.recipe, model, train.condition([0]))
        return cls(run.recipe, train, masks, inputs, base=base, threads=threads, **more)

    def part(self, job: "TrainingJob") -> dict[str, Any]:
        """Return the facts that the result of a job depends on."""
        recipe, rows = self.recipe, np.flatnonzero(self.masks[job.subset])
        measured = {name: _content(one, range(len(one))) for name, one in self.queries.items()}
        generation = recipe.generation
        return {
            "version": VERSION,
            "model": recipe.model.model_dump(mode="json"),
            "training": recipe.training.model_dump(mode="json"),
            "base": self.base,
            "images": _content(self.images, rows),
            "seed": job.seed,
            "measured": [measured, self.outputs.timesteps, self.outputs.noises, self.outputs.seed] if measured else [],
            "drawn": [job.draw, job.prompts, job.trajectory, generation.steps, generation.guidance] if job.draw else [],
        }


def _content(inputs: ModelInputs, rows: Sequence[int] | NDArray[np.int64]) -> list[Any]:
    """Hash the pixels and the texts of some images, in their order."""
    chosen = list(rows)
    digests = of_array(inputs.images.digests[chosen].view(np.uint8))
    return [digests, inputs.images.shape, [inputs.texts[row] for row in chosen] if inputs.texts else []]


@dataclass(frozen=True)
class TrainingJob:
    """One model to train, and what to draw with it."""

    subset: int  # the index of its mask
    seed: int = 0  # added to the recipe's training seed
    draw: tuple[int, ...] = ()  # seeds of pictures to draw
    prompts: tuple[str, ...] = ()  # of these pictures, for a model that takes prompts
    trajectory: bool = False  # whether to return the estimates x̂_0 of every DDIM step as well

    def __str__(self) -> str:
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


@contextmanager
def results(
    folder: Path,
    context: Retraining,
    jobs: Sequence[TrainingJob],
    engine: Engine,
    keep_model: Callable[[TrainingJob, DiffusionModel], None] | None = None,
    has_model: Callable[[TrainingJob], bool] = lambda job: True,
) -> Iterator[Callable[[TrainingJob], Arrays]]:
    """Run the jobs that have no result in the folder yet, and give a function that reads the result of each.

    A result has no weights: `keep_model` gets each model, and a job without one runs again. The seconds of a training
    stand beside its result, which has the same bytes on every engine. The folder is locked during the block.
    """
    paths = {job: folder / f"{hash_of(context.part(job))}.npz" for job in jobs}

    def read(job: TrainingJob) -> Arrays:
        found = read_arrays(paths[job])
        if found is None:
            raise DtrakError(f"{paths[job]} is gone or damaged: run the command again")
        return found

    with alone_in(folder):
        clear_leftovers(folder)
        missing = [job for job in jobs if read_arrays(paths[job]) is None or not has_model(job)]
        for job, arrays in run_jobs(context, missing, engine, len(jobs) - len(missing)):
            if keep_model is not None:
                keep_model(job, model_with_weights(context, arrays))
            write_text(paths[job].with_suffix(".seconds"), f"{arrays.pop('seconds'):.3f}\n")
            write_bytes(paths[job], as_npz({name: one for name, one in arrays.items() if "weights/" not in name}))
        yield read


def run_jobs(
    context: Retraining, jobs: Sequence[TrainingJob], engine: Engine, done: int = 0
) -> Iterator[tuple[TrainingJob, Arrays]]:
    """Run the jobs on an engine and yield each result when it is there.

    A progress bar counts these jobs and the `done` ones of earlier calls.
    """
    threads = context.threads
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


def model_with_weights(context: Retraining, arrays: Arrays) -> DiffusionModel:
    """Build the model whose weights are in the result of a job."""
    recipe = context.recipe
    model = new_model(recipe.model, context.images.images.shape, recipe.name)
    weights = {name.removeprefix("weights/"): array for name, array in arrays.items() if name.startswith("weights/")}
    model.load_trained_weights({name: torch.from_numpy(array) for name, array in weights.items()})
    return model


def with_training_seed(recipe: Recipe, seed: int) -> Recipe:
    """Return the recipe with another training seed."""
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"seed": seed})})


def threads_per_job(recipe: Recipe, model: DiffusionModel, condition: Mapping[str, torch.Tensor]) -> int:
    """Return how many threads each job gets.

    It is one, with as many jobs as there are cores. If so many models do not fit into memory, fewer jobs run, with more
    threads each. `model` is a model of the recipe, `condition` the condition of one image.
    """
    weights = sum(value.nbytes for value in model.network.parameters())
    trained = sum(value.nbytes for value in model.parameters().values())
    each, memory = training_bytes(model, dict(condition)), total_memory(torch.device("cpu"))
    activations = each * images_at_once(recipe.training.batch_size, each, memory)
    job_bytes = PROCESS_BYTES + activations + weights + 3 * trained  # gradients and the optimiser's two moments
    fitting = int(JOBS_SHARE * memory / job_bytes)
    return max(1, cores() // max(1, min(cores(), fitting)))


def random_subsets(
    count: int, total: int, fraction: float = 0.5, labels: NDArray[np.generic] | None = None, seed: int = 0
) -> NDArray[np.bool_]:
    """Return masks [count, total] of subsets that hold round(fraction · total) images each.

    With `labels` [total], a subset holds fraction · n of a class's n images: rounded down, and then random classes get
    one more, until the subset has its size. A subset depends on the seed and on its index, not on how many there are.
    """
    if count < 1:
        raise UsageError(f"{count} subsets: there must be at least 1")
    if not 0 < fraction < 1 or round(fraction * total) in (0, total):
        raise UsageError(f"fraction {fraction}: a subset of {total} images must hold at least one of them, but not all")
    classes = np.zeros(total, int) if labels is None else np.unique(labels.astype(str), return_inverse=True)[1]
    members = [np.flatnonzero(classes == one) for one in range(classes.max() + 1)]
    shares = np.round(fraction * np.array([len(rows) for rows in members]), 9)  # 0.29 · 100 is 28.999999999999996
    rests = shares - np.floor(shares)
    masks = np.zeros((count, total), dtype=np.bool_)
    for index, mask in enumerate(masks):
        random, sizes = stream(seed, "subset", index), np.floor(shares).astype(np.int64)
        if left := round(fraction * total) - int(sizes.sum()):
            sizes[random.choice(len(sizes), size=left, replace=False, p=rests / rests.sum())] += 1
        for rows, size in zip(members, sizes, strict=True):
            mask[random.permutation(rows)[:size]] = True
    return masks
