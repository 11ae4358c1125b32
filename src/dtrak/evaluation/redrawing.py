"""Pictures drawn again: by the model that drew them, and by models that were trained without some of its images.

Each retraining is kept in jobs/ as it finishes, whole or not at all, under a name that says what was trained and drawn:
no redrawn pays for it twice.
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
from dtrak.evaluation.jobs import Arrays, Retraining, TrainingJob, read_whole, retrained, threads_per_job
from dtrak.features.inputs import model_inputs
from dtrak.features.trajectories import SEED, Trajectories, not_as_drawn, seeds_of
from dtrak.files import as_npz, write_bytes
from dtrak.images.images import Images
from dtrak.models import DiffusionModel
from dtrak.models.sampling import sample
from dtrak.runs.run import Run

COUNT = 60  # queries, unless the user says otherwise
SHARE = 1 / 5  # of the training images, removed for each

TrajectoryStep = int | None  # a timestep of the trajectory; None is its end, the finished picture


@dataclass(frozen=True, eq=False)
class RedrawnPictures:
    """Which pictures are asked about, when on their way, and how many images are removed for each."""

    run: Run
    model: DiffusionModel
    queries: Images
    remove: int
    steps: tuple[TrajectoryStep, ...]
    device: str  # as it was asked for: `cuda` is any GPU

    @property
    def seeds(self) -> list[int]:
        return seeds_of(self.queries)

    @cached_property
    def prompts(self) -> list[str] | None:
        return None if self.model.prompts is None else self.model.prompts.of(self.queries)

    @cached_property
    def seen(self) -> str:
        """The fingerprint of the training images and their prompts."""
        return model_inputs(self.model, self.run.train_images, self.run.latents).fingerprint

    @property
    def ddim_steps(self) -> int:
        return self.run.recipe.generation.steps

    @property
    def folder(self) -> Path:
        return self.run.folder / "counterfactual"


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pictures, and where they are in the space that the model denoises; the same for most models."""

    pictures: NDArray[np.float32]  # [Q, C, H, W] in [−1, 1]
    places: NDArray[np.float32]  # [Q, …]


def usual_share(total: int) -> int:
    """How many of the training images are removed for a picture, unless the user or the recipe says otherwise."""
    return max(1, round(SHARE * total))


def choose_pictures(
    run: Run, device: str, count: int | None = None, remove: int | None = None, steps: Sequence[int] = ()
) -> RedrawnPictures:
    """The redrawn about a run's first generated pictures; refuses one that cannot be answered.

    How many pictures, and how many images are removed for each, is as the run's recipe says if not given.
    """
    model = run.model().to(device)
    run.check_model_is_the_recipes(model)
    folder, train, usual = run.folder / "generated", run.train_images, run.recipe.evaluation
    if not folder.exists():
        raise UsageError(f"{run.folder} has no generated pictures yet: `dtrak generate {run.folder}` draws them")
    queries = run.query_images(str(folder))
    if SEED not in queries.columns:
        raise UsageError(f"{folder} does not say from which seeds it was drawn: `dtrak generate {run.folder}` does")
    if count is not None and not 1 <= count <= len(queries):
        raise UsageError(
            f"count {count}: {folder} holds {len(queries)} pictures (`dtrak generate {run.folder} --count {count}`)"
        )
    if remove is None:
        remove = usual.remove or usual_share(len(train))
    if not 1 <= remove < len(train):
        raise UsageError(
            f"remove {remove}: at least one of the {len(train)} images of {train.source} must go, and one must stay"
        )
    for step in steps:
        _ = Trajectories(model, queries, run.recipe.generation.steps, step).timesteps
    chosen = queries.first(usual.pictures or COUNT if count is None else count)
    return RedrawnPictures(run, model, chosen, remove, tuple(dict.fromkeys(steps)) or (None,), device)


def draw_again(redrawn: RedrawnPictures) -> dict[TrajectoryStep, Drawn]:
    """What the run's model draws from the queries' seeds, at each step."""
    guidance = redrawn.run.recipe.generation.guidance
    drawn = sample(redrawn.model, redrawn.seeds, redrawn.ddim_steps, True, redrawn.prompts, guidance)
    assert drawn.estimates is not None
    arrays = {"pictures": drawn.pictures.cpu().numpy(), "estimates": drawn.estimates.cpu().numpy()}
    originals = {step: _at(redrawn, arrays, step) for step in {*redrawn.steps, None}}
    _check_drawn(redrawn, originals[None].pictures)
    return originals


def _check_drawn(redrawn: RedrawnPictures, originals: NDArray[np.float32]) -> None:
    """Refuse scores of other pictures than those that are drawn."""
    row = not_as_drawn(redrawn.queries, torch.from_numpy(originals))
    if row is not None:
        raise UsageError(
            f"{redrawn.queries.ids[row]} of {redrawn.queries.source} is not what {redrawn.model.source} draws "
            f"from seed {redrawn.seeds[row]}: `dtrak generate {redrawn.run.folder}` draws it again"
        )


def draw_without(
    redrawn: RedrawnPictures,
    sets: NDArray[np.bool_],
    which: NDArray[np.int64],
    steps: Sequence[TrajectoryStep],
    engine: Engine,
) -> list[Drawn]:
    """What models draw that were trained without the sets [M, N]: for each of L, the pictures of `which` [L, Q]."""
    run, model = redrawn.run, redrawn.model
    jobs = [_job(redrawn, m, (which == m).any(0)) for m in range(len(sets))]
    paths = {job: redrawn.folder / "jobs" / f"{_name(redrawn, sets[job.subset], job)}.npz" for job in jobs}
    missing = [job for job in jobs if _finished(redrawn, job, paths[job]) is None]
    if missing:
        view = model_inputs(model, run.train_images, run.latents, mirrored=run.recipe.training.flip).in_memory()
        context = Retraining(run.recipe, view, ~sets, device=redrawn.device)
        threads = threads_per_job(run.recipe, model, view.condition([0]))
        for job, arrays in retrained(context, missing, engine, threads, len(jobs) - len(missing)):
            write_bytes(paths[job], as_npz(arrays))
    pictures = np.empty((*which.shape, *model.image_shape), dtype=np.float32)
    places = np.empty((*which.shape, *model.shape), dtype=np.float32)
    for job in jobs:
        found = _finished(redrawn, job, paths[job])
        if found is None:
            raise DtrakError(f"{paths[job]} is gone or damaged: run the command again")
        at_steps = {step: _at(redrawn, found, step) for step in set(steps)}
        for row, query in np.argwhere(which == job.subset):
            drawn, place = at_steps[steps[row]], job.draw.index(redrawn.seeds[query])
            pictures[row, query], places[row, query] = drawn.pictures[place], drawn.places[place]
    return [Drawn(*row) for row in zip(pictures, places, strict=True)]


def _job(redrawn: RedrawnPictures, subset: int, asked: NDArray[np.bool_]) -> TrainingJob:
    """The training without one of the sets, and what is drawn then: the queries `asked` [Q] of it."""
    chosen, prompts = np.flatnonzero(asked), redrawn.prompts
    prompts_of_job = () if prompts is None else tuple(prompts[query] for query in chosen)
    return TrainingJob(
        subset, draw=tuple(redrawn.seeds[query] for query in chosen), prompts=prompts_of_job, trajectory=True
    )


def _name(redrawn: RedrawnPictures, removed: NDArray[np.bool_], job: TrainingJob) -> str:
    """16 hexadecimal digits over all that the job's pictures depend on."""
    recipe = redrawn.run.recipe
    parts = [
        recipe.model.model_dump(mode="json"),
        recipe.training.model_dump(mode="json"),
        redrawn.seen,
        redrawn.ddim_steps,
        job.seed,
        job.draw,
    ]
    if job.prompts:
        parts += [job.prompts, recipe.generation.guidance]
    digest = blake2b(json.dumps(parts).encode(), digest_size=8)
    digest.update(np.packbits(removed).tobytes())
    return digest.hexdigest()


def _finished(redrawn: RedrawnPictures, job: TrainingJob, path: Path) -> Arrays | None:
    """What a finished job has left; None if it is not there whole."""
    count, model = len(job.draw), redrawn.model
    return read_whole(
        path,
        {"pictures": (count, *model.image_shape), "estimates": (redrawn.ddim_steps, count, *model.shape)},
    )


def _at(redrawn: RedrawnPictures, arrays: Arrays, step: TrajectoryStep) -> Drawn:
    """The pictures at a step, from what a job gives."""
    model = redrawn.model
    if step is None:
        pictures = torch.from_numpy(arrays["pictures"]).to(model.device)
        return Drawn(arrays["pictures"], model.encode(pictures).cpu().numpy())
    timesteps = model.solver(redrawn.ddim_steps).timesteps.tolist()
    estimates = torch.from_numpy(arrays["estimates"][timesteps.index(step)]).to(model.device)
    decoded = model.decode(estimates).cpu().numpy()
    return Drawn(decoded, decoded if model.autoencoder is None else estimates.cpu().numpy())
