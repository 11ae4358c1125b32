"""Draw pictures again: with the model that drew them, and with models that were trained without some of its images.

The result of each retraining is written into jobs/ when it finishes, under a name that depends on what was trained and
drawn. A later evaluation that needs the same retraining reads it instead of training again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError
from dtrak.evaluation.jobs import Arrays, Retraining, TrainingJob, read_result, run_jobs, threads_per_job
from dtrak.features.inputs import model_inputs
from dtrak.features.trajectories import SEED, Trajectories, not_as_drawn, seeds_of
from dtrak.files import as_npz, write_bytes
from dtrak.images.images import Images
from dtrak.models import DiffusionModel
from dtrak.models.sampling import sample
from dtrak.runs.run import Run

DEFAULT_PICTURES = 60  # drawn again, unless the user or the recipe says otherwise
DEFAULT_SHARE = 1 / 5  # of the training images, removed for each picture

TrajectoryStep = int | None  # a timestep of the trajectory; None is its end, the finished picture


@dataclass(frozen=True, eq=False)
class Redrawing:
    """Which pictures are drawn again, how many images are removed for each, and at which timesteps to compare them."""

    run: Run
    model: DiffusionModel
    queries: Images
    remove: int
    steps: tuple[TrajectoryStep, ...]
    device: str  # as the user gave it: `cuda` means any GPU

    @property
    def seeds(self) -> list[int]:
        return seeds_of(self.queries)

    @cached_property
    def prompts(self) -> list[str] | None:
        return None if self.model.conditions is None else self.model.conditions.texts(self.queries)

    @cached_property
    def train_fingerprint(self) -> str:
        """Return the fingerprint of the training images and their prompts."""
        return model_inputs(self.model, self.run.train_images, self.run.latents).fingerprint

    @property
    def ddim_steps(self) -> int:
        return self.run.recipe.generation.steps

    @property
    def folder(self) -> Path:
        return self.run.folder / "counterfactual"


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pictures, and the same pictures in the space in which their distances are measured."""

    pictures: NDArray[np.float32]  # [Q, C, H, W] in [−1, 1]
    latents: NDArray[np.float32]  # [Q, …], in the autoencoder's own scale; of a model without latents, the pictures


def default_removed(total: int) -> int:
    """Return how many training images are removed for a picture, unless the user or the recipe says otherwise."""
    return max(1, round(DEFAULT_SHARE * total))


def choose_pictures(
    run: Run, device: str, count: int | None = None, remove: int | None = None, steps: Sequence[int] = ()
) -> Redrawing:
    """Choose the run's first generated pictures to be drawn again; refuse numbers and timesteps that are impossible.

    The recipe gives the number of pictures and of removed images if the arguments do not. Of `steps`, the nearest
    timesteps of the trajectory are taken.
    """
    model = run.model().to(device)
    run.check_model_is_the_recipes(model)
    folder, train, recipe = run.folder / "generated", run.train_images, run.recipe.evaluation
    if not folder.exists():
        raise UsageError(f"{run.folder} has no generated pictures yet: `dtrak generate {run.folder}` draws them")
    queries = run.query_images(str(folder))
    if SEED not in queries.columns:
        raise UsageError(
            f"{folder} does not say from which seeds its pictures were drawn: `dtrak generate {run.folder}` draws "
            "them again"
        )
    if count is not None and not 1 <= count <= len(queries):
        raise UsageError(
            f"count {count}: {folder} holds {len(queries)} pictures (`dtrak generate {run.folder} --count {count}`)"
        )
    if remove is None:
        remove = recipe.remove or default_removed(len(train))
    if not 1 <= remove < len(train):
        raise UsageError(
            f"remove {remove}: give a number from 1 to {len(train) - 1}, as {train.source} has {len(train)} images"
        )
    passed = [t for step in steps for t in Trajectories(model, queries, run.recipe.generation.steps, step).timesteps]
    chosen = queries.first(recipe.pictures or DEFAULT_PICTURES if count is None else count)
    return Redrawing(run, model, chosen, remove, tuple(dict.fromkeys(passed)) or (None,), device)


def draw_again(redrawing: Redrawing) -> dict[TrajectoryStep, Drawn]:
    """Draw the queries again with the run's model, and return them at each timestep."""
    guidance = redrawing.run.recipe.generation.guidance
    drawn = sample(redrawing.model, redrawing.seeds, redrawing.ddim_steps, True, redrawing.prompts, guidance)
    assert drawn.estimates is not None
    arrays = {"pictures": drawn.pictures.cpu().numpy(), "estimates": drawn.estimates.cpu().numpy()}
    originals = {step: _at(redrawing, arrays, step) for step in {*redrawing.steps, None}}
    _check_drawn(redrawing, originals[None].pictures)
    return originals


def _check_drawn(redrawing: Redrawing, originals: NDArray[np.float32]) -> None:
    """Refuse queries that the run's model does not draw from their seeds: their scores would be of other pictures."""
    row = not_as_drawn(redrawing.queries, torch.from_numpy(originals))
    if row is not None:
        raise UsageError(
            f"{redrawing.queries.ids[row]} of {redrawing.queries.source} is not what {redrawing.model.source} draws "
            f"from seed {redrawing.seeds[row]}: `dtrak generate {redrawing.run.folder}` draws it again"
        )


def draw_without(
    redrawing: Redrawing,
    sets: NDArray[np.bool_],
    which: NDArray[np.int64],
    steps: Sequence[TrajectoryStep],
    engine: Engine,
) -> list[Drawn]:
    """Train a model without each of the sets [M, N], and draw the queries with them.

    The l-th result, for the timestep `steps[l]`, holds for each query q what the model without set `which[l, q]` draws.
    """
    run, model = redrawing.run, redrawing.model
    jobs = [_job(redrawing, m, (which == m).any(0)) for m in range(len(sets))]
    paths = {job: redrawing.folder / "jobs" / f"{_name(redrawing, sets[job.subset], job)}.npz" for job in jobs}
    missing = [job for job in jobs if _finished(redrawing, job, paths[job]) is None]
    if missing:
        inputs = model_inputs(model, run.train_images, run.latents, mirrored=run.recipe.training.flip).in_memory()
        context = Retraining(run.recipe, inputs, ~sets, device=redrawing.device)
        threads = threads_per_job(run.recipe, model, inputs.condition([0]))
        for job, arrays in run_jobs(context, missing, engine, threads, len(jobs) - len(missing)):
            write_bytes(paths[job], as_npz(arrays))
    pictures = np.empty((*which.shape, *model.image_shape), dtype=np.float32)
    latents = np.empty((*which.shape, *model.shape), dtype=np.float32)
    for job in jobs:
        found = _finished(redrawing, job, paths[job])
        if found is None:
            raise DtrakError(f"{paths[job]} is gone or damaged: run the command again")
        at_steps = {step: _at(redrawing, found, step) for step in set(steps)}
        for row, query in np.argwhere(which == job.subset):
            drawn, index = at_steps[steps[row]], job.draw.index(redrawing.seeds[query])
            pictures[row, query], latents[row, query] = drawn.pictures[index], drawn.latents[index]
    return [Drawn(*row) for row in zip(pictures, latents, strict=True)]


def _job(redrawing: Redrawing, subset: int, wanted: NDArray[np.bool_]) -> TrainingJob:
    """Return the job that trains without one of the sets, and then draws the `wanted` queries [Q]."""
    chosen, prompts = np.flatnonzero(wanted), redrawing.prompts
    prompts_of_job = () if prompts is None else tuple(prompts[query] for query in chosen)
    return TrainingJob(
        subset, draw=tuple(redrawing.seeds[query] for query in chosen), prompts=prompts_of_job, trajectory=True
    )


def _name(redrawing: Redrawing, removed: NDArray[np.bool_], job: TrainingJob) -> str:
    """Return a name of 16 hexadecimal digits, a hash of everything that the job's pictures depend on."""
    recipe = redrawing.run.recipe
    parts = [
        recipe.model.model_dump(mode="json"),
        recipe.training.model_dump(mode="json"),
        redrawing.train_fingerprint,
        redrawing.ddim_steps,
        job.seed,
        job.draw,
    ]
    if job.prompts:
        parts += [job.prompts, recipe.generation.guidance]
    digest = blake2b(json.dumps(parts).encode(), digest_size=8)
    digest.update(np.packbits(removed).tobytes())
    return digest.hexdigest()


def _finished(redrawing: Redrawing, job: TrainingJob, path: Path) -> Arrays | None:
    """Read the result of a job; None if it is missing or incomplete."""
    count, model = len(job.draw), redrawing.model
    return read_result(
        path,
        {"pictures": (count, *model.image_shape), "estimates": (redrawing.ddim_steps, count, *model.shape)},
    )


def _at(redrawing: Redrawing, arrays: Arrays, step: TrajectoryStep) -> Drawn:
    """Return the pictures at a timestep, from the result of a job."""
    model = redrawing.model
    if step is None:
        pictures = arrays["pictures"]
        latents = model.encode(torch.from_numpy(pictures).to(model.device))
    else:
        timesteps = model.solver(redrawing.ddim_steps).timesteps.tolist()
        latents = torch.from_numpy(arrays["estimates"][timesteps.index(step)]).to(model.device)
        pictures = model.decode(latents).cpu().numpy()
    if model.autoencoder is None:
        return Drawn(pictures, pictures)
    return Drawn(pictures, model.autoencoder.unscaled(latents).cpu().numpy())
