"""Make a benchmark folder: retrain a run's model on random subsets, and keep the outputs for the run's queries.

- model/, train.npz, validation.npz, generated.npz: what is attributed, to what, and for which queries
- masks.npy bool [M, N]; losses.npy, generated_losses.npy float32 [M, S, Q]: L_Simple after retraining
- outputs/validation-square.npy, …: the same for the other objectives
- benchmark.json: how it was made; jobs/: what each job gave; retrained/: the models, if they are kept

Each job is written as it finishes, whole or not at all: a kill costs the jobs under way and no others. The arrays are
put together when all jobs are there. A job keeps each objective's outputs under its name; one that was not known when a
job was done is left out, and no model is trained again for it.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt, TypeAdapter, ValidationError

from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError, check_known
from dtrak.evaluation.jobs import (
    Arrays,
    Outputs,
    Retraining,
    TrainingJob,
    model_of,
    read_arrays,
    retrained,
    threads_per_job,
)
from dtrak.evaluation.subsets import random_subsets
from dtrak.features.inputs import ModelInputs, model_inputs
from dtrak.features.trajectories import SEED
from dtrak.files import alone_in, as_npy, as_npz, clear_leftovers, whole_folder, write_bytes, write_json, write_text
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.gradients.timesteps import select_timesteps
from dtrak.images.images import Images
from dtrak.inputs.benchmark import QUERIES, losses_file
from dtrak.limits import check_number, shortened
from dtrak.models import save_model
from dtrak.models.prompts import PROMPT
from dtrak.runs.recipes import Evaluation, Recipe
from dtrak.runs.run import Run, versions
from dtrak.sections import first_difference

GROWING = ("subsets", "seeds")  # there can be more of them later
AS_FOUND = ("threads", "versions")  # of who began
MAIN = "simple"  # the objective that every job keeps: it is what LDS predicts
KEPT_BEFORE = ("simple", "elbo", "square", "avg", "l1", "l2", "linf")  # in this order, as one array [7, Q]


@dataclass(frozen=True)
class RetrainingSettings:
    subsets: int = 64
    fraction: float = 0.5  # of all images, in each subset
    seeds: int = 3  # trainings of each subset
    seed: int = 0  # of the subsets and of the outputs' noise
    timesteps: int | str | None = None  # of the outputs, as for features; all of them if None
    noises: int = 3  # at each timestep
    keep_models: bool = False
    validation: int = 100  # the first so many validation images are asked about
    generated: int | None = None  # and the first so many generated ones; all of them if None

    def __post_init__(self) -> None:
        for name in ("subsets", "seeds", "noises", "validation", "generated"):
            if (value := getattr(self, name)) is not None or name != "generated":
                check_number(name, value)
        check_number("seed", self.seed, 0)

    @classmethod
    def resumed(cls, folder: Path, evaluation: Evaluation, typed: Mapping[str, Any]) -> "RetrainingSettings":
        """What was `typed`; else as a folder was begun, or as a recipe's `evaluation` says for a new one."""
        names = {one.name for one in fields(cls)}
        asked = evaluation.model_dump(include=names, exclude_none=True)
        stored = _stored(folder)
        begun = {name: value for name, value in (stored | stored.get("queries", {})).items() if name in names}
        try:
            return TypeAdapter(cls).validate_python({**asked, **begun, **typed})
        except ValidationError as error:  # of what was typed, the command line has seen to it
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise UsageError(f"{folder}: its {name} cannot be {shortened(first['input'])}: {first['msg']}") from None


class Stored(BaseModel):
    """What benchmark.json says, as far as it is asked: of whoever began."""

    model_config = ConfigDict(extra="allow")

    subsets: PositiveInt = 1
    seeds: PositiveInt = 1
    threads: PositiveInt = 1
    queries: dict[str, PositiveInt] = {}


def make_benchmark(
    run: Run,
    folder: Path,
    settings: RetrainingSettings,
    engine: Engine,
    queries: Mapping[str, Images],
    device: str = "cpu",
) -> None:
    """Make the folder for a trained run, or go on with it.

    `queries` are "validation" and "generated" ones, or either. More subsets or seeds than before add to what is there.
    """
    for name in queries:
        check_known("queries", name, list(QUERIES))
    model = run.model().to(device)
    run.check_model_is_the_recipes(model)
    for images in queries.values():
        model.check_fits(images.shape, images.source)
    total = model.timesteps
    timesteps = select_timesteps(total if settings.timesteps is None else settings.timesteps, total)
    train = model_inputs(model, run.train_images, run.latents, mirrored=run.recipe.training.flip).in_memory()
    views = {name: model_inputs(model, images, run.latents).in_memory() for name, images in queries.items()}
    labels = run.train_images.columns.get("label")
    context = Retraining(
        run.recipe,
        train,
        random_subsets(settings.subsets, len(train), settings.fraction, labels, settings.seed),
        views,
        Outputs(timesteps, settings.noises, settings.seed),
        settings.keep_models,
        device,
    )
    made_by: dict[str, Any] = {
        "name": run.recipe.name,
        "train": len(train),
        "subsets": settings.subsets,
        "fraction": settings.fraction,
        "stratified": labels is not None,
        "seeds": settings.seeds,
        "seed": settings.seed,
        "queries": {name: len(images) for name, images in queries.items()},
        "timesteps": str(settings.timesteps or total),
        "noises": settings.noises,
        "keep_models": settings.keep_models,
        "recipe": run.recipe.model_dump(mode="json", exclude={"data": {"subset"}}),
        "fingerprints": {
            "model": model.fingerprint,
            **{name: view.fingerprint for name, view in {"train": train, **views}.items()},
        },
        "threads": threads_per_job(run.recipe, model, train.condition([0])),
        "versions": versions(),
    }
    with alone_in(folder):
        made_by |= _check_same(folder, made_by)
        for place in (folder, *(folder / name for name in ("jobs", "outputs", "retrained"))):
            clear_leftovers(place)
        _write_what_there_is(folder, run, {"train": train, **views})
        if not (folder / "benchmark.json").exists():
            write_json(folder / "benchmark.json", made_by)
        jobs = [TrainingJob(subset, seed) for seed in range(settings.seeds) for subset in range(settings.subsets)]
        _do_missing(folder, context, jobs, engine, made_by["threads"])
        _assemble(folder, context, jobs)
        write_json(folder / "benchmark.json", made_by)


def _check_same(folder: Path, made_by: dict[str, Any]) -> dict[str, Any]:
    """Refuse a folder that was made with other settings; gives those that whoever began has fixed."""
    stored = _stored(folder)
    if not stored:
        return {}
    is_complete = (folder / "masks.npy").exists()
    for name in GROWING:
        if is_complete and made_by[name] < stored.get(name, 0):
            raise UsageError(f"{name} {made_by[name]}: {folder} has {stored[name]} already; ask for as many, or more")
    fixed = [key for key in made_by if key not in (*GROWING, *AS_FOUND)]
    there, wanted = (
        {key: of.get(key) for key in fixed} | {"recipe": _of_training(of.get("recipe"))} for of in (stored, made_by)
    )
    difference = first_difference(there, wanted)
    if difference is not None:
        name, found, wanted = difference
        raise UsageError(
            f"{folder} was made with {name} {found}, not {wanted}: ask for the same again, read it as --benchmark "
            f"{folder}, or remove it"
        )
    return {key: stored[key] for key in AS_FOUND if key in stored}


def _stored(folder: Path) -> dict[str, Any]:
    """What a folder says of how it was made; nothing for a new one."""
    path = folder / "benchmark.json"
    if not os.path.exists(path):
        return {}
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        return Stored.model_validate(json.loads(path.read_text(encoding="utf-8"))).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']} (it says {shortened(first['input'])})"
        raise UsageError(f"{path} does not say how {folder} was made: {reason}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path} does not say how {folder} was made: {error}") from error


def _of_training(recipe: Any) -> Any:
    """What models depend on, with the defaults of the fields that the recipe does not know yet."""
    try:
        return Recipe.model_validate(recipe).training_fields()
    except ValidationError:
        return recipe


def _write_what_there_is(folder: Path, run: Run, sets: Mapping[str, ModelInputs]) -> None:
    """The model and the sets of images, by the names of their files."""
    if not (folder / "model").exists():
        with whole_folder(folder / "model") as temporary:
            shutil.copytree(run.folder / "model", temporary, dirs_exist_ok=True)
    for name, view in sets.items():
        if not (folder / f"{name}.npz").exists():
            write_bytes(folder / f"{name}.npz", as_npz(_as_arrays(view)))


def _as_arrays(view: ModelInputs) -> Arrays:
    """What `load_images` reads from an .npz file."""
    images = view.images
    arrays: Arrays = {"images": images.pixels(range(len(images)))}
    if not np.array_equal(images.ids, np.arange(len(images))):
        arrays["ids"] = images.ids
    for column, key in {"label": "labels", SEED: SEED}.items():
        if column in images.columns:
            values = images.columns[column]
            arrays[key] = values if values.dtype.kind in "iuU" else values.astype(str)
    if view.prompts:
        arrays[PROMPT] = np.array(view.prompts)
    return arrays


def _do_missing(folder: Path, context: Retraining, jobs: list[TrainingJob], engine: Engine, threads: int) -> None:
    missing = [job for job in jobs if _outputs(folder, context, job) is None]
    if not missing:
        return
    for job, arrays in retrained(context, missing, engine, threads, len(jobs) - len(missing)):
        if context.keep_weights:
            save_model(model_of(context, arrays), folder / "retrained" / str(job))
        write_text(_path(folder, job).with_suffix(".seconds"), f"{arrays['seconds']:.3f}\n")
        write_bytes(_path(folder, job), as_npz({key: one for key, one in arrays.items() if key.startswith("outputs/")}))


def _path(folder: Path, job: TrainingJob) -> Path:
    return folder / "jobs" / f"{job}.npz"


def _outputs(folder: Path, context: Retraining, job: TrainingJob) -> dict[str, Arrays] | None:
    """What a finished job has left: for each set of queries, [Q] by the name of an objective, L_Simple at least.

    None if it is not there whole.
    """
    if context.keep_weights and not (folder / "retrained" / str(job)).exists():
        return None
    arrays = read_arrays(_path(folder, job)) or {}
    outputs = {name: _by_objective(arrays, f"outputs/{name}") for name in context.queries}
    for name, images in context.queries.items():
        if MAIN not in outputs[name] or any(one.shape != (len(images),) for one in outputs[name].values()):
            return None
    return outputs


def _by_objective(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays `prefix/OBJECTIVE`, or the rows of the one that earlier versions kept instead."""
    if prefix in arrays:
        is_known = arrays[prefix].shape[:1] == (len(KEPT_BEFORE),)
        return dict(zip(KEPT_BEFORE, arrays[prefix], strict=True)) if is_known else {}
    return {key.removeprefix(f"{prefix}/"): one for key, one in arrays.items() if key.startswith(f"{prefix}/")}


def _assemble(folder: Path, context: Retraining, jobs: list[TrainingJob]) -> None:
    """Put the jobs' outputs together as float32 [M, S, Q], for each set of queries and objective that all jobs have."""
    outputs: dict[TrainingJob, dict[str, Arrays]] = {}
    for job in jobs:
        found = _outputs(folder, context, job)
        if found is None:
            raise DtrakError(f"{_path(folder, job)} is gone or damaged: run the command again")
        outputs[job] = found
    seeds = 1 + max(job.seed for job in jobs)
    for name, images in context.queries.items():
        for objective in [one for one in OBJECTIVES if all(one in of_job[name] for of_job in outputs.values())]:
            together = np.empty((len(context.masks), seeds, len(images)), dtype=np.float32)
            for job, of_job in outputs.items():
                together[job.subset, job.seed] = of_job[name][objective]
            write_bytes(folder / losses_file(name, objective), as_npy(together))
    write_bytes(folder / "masks.npy", as_npy(context.masks))
