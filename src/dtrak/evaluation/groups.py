"""Leave out whole groups: train a run's model without all images of an artist, and see what that changes.

    Δ_qg = mean over seeds of  L(x_q; trained without g) − L(x_q; trained on all)        L is L_Simple

A model is also trained on all images with each seed, so that the two losses differ by the group alone. Each model draws
the generated pictures again, from their seeds and prompts. The result of each training is written when it finishes,
under a name that depends on everything that was trained, so that the same training is never done twice.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError
from dtrak.evaluation.jobs import Arrays, Outputs, Retraining, TrainingJob, read_arrays, run_jobs, threads_per_job
from dtrak.evaluation.retraining import RetrainingSettings
from dtrak.features.inputs import model_inputs
from dtrak.features.trajectories import SEED, seeds_of
from dtrak.files import alone_in, as_npz, write_bytes
from dtrak.gradients.timesteps import select_timesteps
from dtrak.images.images import Images
from dtrak.images.metadata import plain_column
from dtrak.runs.run import LEFT_OUT, Run

MOST_GROUPS = 100  # each is a training


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What S trainings without each of G groups, and S trainings on all images, give for each kind of queries."""

    groups: NDArray[np.str_]  # [G]
    losses: Mapping[str, NDArray[np.float64]]  # by kind of queries [G + 1, S, Q]; the last row is of all images
    pictures: NDArray[np.float32] | None  # of the generated queries, [G + 1, S, Q, C, H, W] in [−1, 1]

    def effects(self, queries: str) -> NDArray[np.float64]:
        """Return Δ [S, Q, G], how much higher the loss of a query is without a group."""
        losses = self.losses[queries]
        return np.moveaxis(losses[:-1] - losses[-1], 0, -1)

    def distances(self) -> NDArray[np.float64]:
        """Return ‖x − x′‖₂ [S, Q, G] of the pictures drawn with a group and without it."""
        if self.pictures is None:
            raise UsageError("the run has no generated pictures with seeds, so none could be drawn again")
        differences = (self.pictures[:-1] - self.pictures[-1]).reshape(*self.pictures[:-1].shape[:3], -1)
        return np.moveaxis(np.linalg.norm(differences.astype(np.float64), axis=-1), 0, -1)


def leave_groups_out(
    run: Run, by: str, settings: RetrainingSettings, engine: Engine, queries: Mapping[str, Images], device: str = "cpu"
) -> LeftOut:
    """Train the run's model without each group of the column `by`, and on all images, with each of the seeds."""
    groups, membership = groups_of(run.train_images, by)
    model = run.model().to(device)
    run.check_model_is_the_recipes(model)
    total = model.timesteps
    timesteps = select_timesteps(total if settings.timesteps is None else settings.timesteps, total)
    train = model_inputs(model, run.train_images, run.latents, mirrored=run.recipe.training.flip).in_memory()
    inputs = {name: model_inputs(model, images, run.latents).in_memory() for name, images in queries.items()}
    masks = np.stack([*(membership != g for g in range(len(groups))), np.ones(len(train), dtype=np.bool_)])
    context = Retraining(
        run.recipe, train, masks, inputs, Outputs(timesteps, settings.noises, settings.seed), device=device
    )
    generated = inputs.get("generated")
    draws = generated is not None and SEED in generated.images.columns
    drawn = tuple(seeds_of(generated.images)) if generated is not None and draws else ()
    prompts = tuple(generated.texts) if generated is not None and draws else ()
    jobs = [TrainingJob(subset, seed, drawn, prompts) for seed in range(settings.seeds) for subset in range(len(masks))]
    folder = run.folder / LEFT_OUT
    with alone_in(folder):
        found = {job: read_arrays(folder / f"{_name(context, job)}.npz") for job in jobs}
        missing = [job for job, arrays in found.items() if arrays is None]
        threads = threads_per_job(run.recipe, model, train.condition([0]))
        for job, arrays in run_jobs(context, missing, engine, threads, len(jobs) - len(missing)):
            write_bytes(folder / f"{_name(context, job)}.npz", as_npz(arrays))
            found[job] = arrays
    return _assembled(groups, found, queries, settings.seeds)


def groups_of(images: Images, by: str) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the groups [G] of a column, and the group of each image [N]; refuse a column that has no use as groups."""
    if by not in images.columns:
        known = ", ".join(images.columns) or "none"
        raise UsageError(f"{images.source} has no column {by!r}: there is {known}")
    groups, membership = np.unique(plain_column(images.columns[by]).astype(str), return_inverse=True)
    if not 2 <= len(groups) <= MOST_GROUPS:
        raise UsageError(
            f"the column {by!r} of {images.source} has {len(groups):,} different values, but leaving one out takes "
            f"from 2 to {MOST_GROUPS}"
        )
    return groups, membership


def _name(context: Retraining, job: TrainingJob) -> str:
    """Return a name of 16 hexadecimal digits, a hash of everything that the job's result depends on."""
    recipe, outputs = context.recipe, context.outputs
    parts: list[Any] = [
        recipe.model.model_dump(mode="json"),
        recipe.training.model_dump(mode="json"),
        context.images.fingerprint,
        {name: one.fingerprint for name, one in context.queries.items()},
        [outputs.timesteps, outputs.noises, outputs.seed],
        [job.seed, job.draw, job.prompts, recipe.generation.steps, recipe.generation.guidance],
    ]
    digest = blake2b(json.dumps(parts).encode(), digest_size=8)
    digest.update(np.packbits(context.masks[job.subset]).tobytes())
    return digest.hexdigest()


def _assembled(
    groups: NDArray[np.str_], found: Mapping[TrainingJob, Arrays | None], queries: Mapping[str, Images], seeds: int
) -> LeftOut:
    """Put the jobs' results together."""
    rows = len(groups) + 1

    def of_all(key: str) -> NDArray[Any]:
        of_jobs: list[list[Any]] = [[None] * seeds for _ in range(rows)]
        for job, arrays in found.items():
            if arrays is None or key not in arrays:
                raise DtrakError(f"the result of a training lacks {key}: remove the folder {LEFT_OUT} and start again")
            of_jobs[job.subset][job.seed] = arrays[key]
        return np.array(of_jobs)

    losses = {name: of_all(f"outputs/{name}/simple") for name in queries}
    draws = all(job.draw for job in found)
    return LeftOut(groups, losses, of_all("pictures") if draws else None)
