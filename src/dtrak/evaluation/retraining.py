"""Make a benchmark folder: retrain a run's model on random subsets, and keep the models' outputs for the run's queries.

- model/, train.npz, validation.npz, generated.npz: the model, its training images, and two sets of queries
- masks.npy bool [M, N]; losses.npy, generated_losses.npy float32 [M, S, Q]: L_Simple after retraining
- outputs/validation-square.npy, …: the same for the other objectives
- benchmark.json: the settings; jobs/: the result of each job; retrained/: the models, if they are kept

Each job's result is written when it finishes, so that a kill loses only the jobs that were running. The arrays are
assembled when all jobs have finished. A job's result holds the outputs of each objective under its name. If an
objective was added later, it has no array: no model is trained again for it.
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

from dtrak.checks import check_number, first_difference, first_mistake, shortened
from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError, check_known
from dtrak.evaluation.jobs import (
    Arrays,
    Outputs,
    Retraining,
    TrainingJob,
    model_with_weights,
    read_arrays,
    run_jobs,
    threads_per_job,
)
from dtrak.evaluation.subsets import random_subsets
from dtrak.features.inputs import ModelInputs, model_inputs
from dtrak.files import alone_in, as_npy, as_npz, whole_folder, write_bytes, write_json, write_text
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.gradients.timesteps import select_timesteps
from dtrak.images.images import Images
from dtrak.images.metadata import plain_column
from dtrak.images.npz import RESERVED
from dtrak.inputs.benchmark import QUERIES, losses_file
from dtrak.models import DiffusionModel, save_model
from dtrak.models.prompts import PROMPT
from dtrak.runs.recipes import Evaluation, Recipe
from dtrak.runs.run import Run, versions

GROWING = ("subsets", "seeds")  # settings that may be larger when a benchmark is continued
FIXED_AT_START = ("threads", "versions")  # continued with the values that the benchmark was begun with
OTHER_SUBSETS = {"seed": 1, "seeds": 1}  # of models that methods learn from, as in the paper: each is trained once
MAIN = "simple"  # the objective that every job's result has, as LDS predicts it
OLD_ORDER = ("simple", "elbo", "square", "avg", "l1", "l2", "linf")  # rows of the array [7, Q] in old jobs' files


@dataclass(frozen=True)
class RetrainingSettings:
    """How models are retrained for a benchmark, and which of their outputs are kept."""

    subsets: int = 64
    fraction: float = 0.5  # of all images, in each subset
    seeds: int = 3  # trainings of each subset
    seed: int = 0  # of the subsets and of the outputs' noise
    timesteps: int | str | None = None  # of the outputs, written as for features; None means all
    noises: int = 3  # at each timestep
    keep_models: bool = False
    validation: int = 100  # how many validation images are queries, the first ones
    generated: int | None = None  # how many generated pictures are queries, the first ones; None means all

    def __post_init__(self) -> None:
        for name in ("subsets", "seeds", "noises", "validation", "generated"):
            if (value := getattr(self, name)) is not None or name != "generated":
                check_number(name, value)
        check_number("seed", self.seed, 0)

    @classmethod
    def resumed(
        cls, folder: Path, evaluation: Evaluation, typed: Mapping[str, Any], usual: Mapping[str, Any] | None = None
    ) -> "RetrainingSettings":
        """Return the settings for a folder: those `typed`, those it was begun with, the `usual` ones, the recipe's."""
        names = {one.name for one in fields(cls)}
        from_recipe = evaluation.model_dump(include=names, exclude_none=True)
        stored = _read_record(folder)
        begun = {name: value for name, value in (stored | stored.get("queries", {})).items() if name in names}
        try:
            return TypeAdapter(cls).validate_python({**from_recipe, **(usual or {}), **begun, **typed})
        except ValidationError as error:  # of the folder's record: the command line has checked what was typed
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise UsageError(f"{folder}: its {name} cannot be {shortened(first['input'])}: {first['msg']}") from None


class BenchmarkRecord(BaseModel):
    """The fields of benchmark.json whose types are checked when it is read."""

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
    """Make the benchmark folder of a trained run, or continue one.

    `queries` has sets named "validation" and "generated", or one of them. If there are more subsets or seeds than
    before, only the new jobs run.
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
    query_inputs = {name: model_inputs(model, images, run.latents).in_memory() for name, images in queries.items()}
    labels = run.train_images.columns.get("label")
    context = Retraining(
        run.recipe,
        train,
        random_subsets(settings.subsets, len(train), settings.fraction, labels, settings.seed),
        query_inputs,
        Outputs(timesteps, settings.noises, settings.seed),
        settings.keep_models,
        device,
    )
    record = _record(run, settings, model, context)
    with alone_in(folder):
        record |= _check_same(folder, record)
        _write_model_and_images(folder, run, {"train": train, **query_inputs})
        if not (folder / "benchmark.json").exists():
            write_json(folder / "benchmark.json", record)
        jobs = [TrainingJob(subset, seed) for seed in range(settings.seeds) for subset in range(settings.subsets)]
        _run_missing_jobs(folder, context, jobs, engine, record["threads"])
        _assemble(folder, context, jobs)
        write_json(folder / "benchmark.json", record)


def _record(run: Run, settings: RetrainingSettings, model: DiffusionModel, context: Retraining) -> dict[str, Any]:
    """Return the content of benchmark.json, which says how a benchmark is made."""
    train, queries = context.images, context.queries
    return {
        "name": run.recipe.name,
        "train": len(train),
        "subsets": settings.subsets,
        "fraction": settings.fraction,
        "stratified": "label" in run.train_images.columns,
        "seeds": settings.seeds,
        "seed": settings.seed,
        "queries": {name: len(inputs) for name, inputs in queries.items()},
        "timesteps": str(settings.timesteps or model.timesteps),
        "noises": settings.noises,
        "keep_models": settings.keep_models,
        "recipe": run.recipe.model_dump(mode="json", exclude={"data": {"subset"}}),
        "fingerprints": {
            "model": model.fingerprint,
            **{name: inputs.fingerprint for name, inputs in {"train": train, **queries}.items()},
        },
        "threads": threads_per_job(run.recipe, model, train.condition([0])),
        "versions": versions(),
    }


def _check_same(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Refuse a folder that was begun with other settings; return its values of `FIXED_AT_START`."""
    stored = _read_record(folder)
    if not stored:
        return {}
    is_complete = (folder / "masks.npy").exists()
    for name in GROWING:
        if is_complete and record[name] < stored.get(name, 0):
            raise UsageError(f"{name} {record[name]}: {folder} has {stored[name]} already; give as many, or more")
    fixed = [key for key in record if key not in (*GROWING, *FIXED_AT_START)]
    before, now = (
        {key: one.get(key) for key in fixed} | {"recipe": _training_part(one.get("recipe"))} for one in (stored, record)
    )
    difference = first_difference(before, now)
    if difference is not None:
        name, old, new = difference
        raise UsageError(
            f"{folder} was made with {name} {old}, not {new}: give the same as before, read it as --benchmark "
            f"{folder}, or remove it"
        )
    return {key: stored[key] for key in FIXED_AT_START if key in stored}


def _read_record(folder: Path) -> dict[str, Any]:
    """Read a folder's benchmark.json; a folder without one gives an empty record."""
    path = folder / "benchmark.json"
    if not os.path.exists(path):
        return {}
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        return BenchmarkRecord.model_validate(json.loads(path.read_text(encoding="utf-8"))).model_dump(
            exclude_unset=True
        )
    except ValidationError as error:
        raise UsageError(f"{path} does not say how {folder} was made: {first_mistake(error)}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path} does not say how {folder} was made: {error}") from error


def _training_part(recipe: Any) -> Any:
    """Return the part of a stored recipe that models depend on; fields that it does not have get their defaults."""
    try:
        return Recipe.model_validate(recipe).training_fields()
    except ValidationError:
        return recipe


def _write_model_and_images(folder: Path, run: Run, sets: Mapping[str, ModelInputs]) -> None:
    """Write the run's model and the sets of images, unless the folder has them; `sets` has the files' names."""
    if not (folder / "model").exists():
        with whole_folder(folder / "model") as temporary:
            shutil.copytree(run.folder / "model", temporary, dirs_exist_ok=True)
    for name, inputs in sets.items():
        if not (folder / f"{name}.npz").exists():
            write_bytes(folder / f"{name}.npz", as_npz(as_arrays(inputs)))


def as_arrays(inputs: ModelInputs) -> Arrays:
    """Return the images as the arrays that `load_images` reads from an .npz file."""
    images = inputs.images
    arrays: Arrays = {"images": images.pixels(range(len(images)))}
    if not np.array_equal(images.ids, np.arange(len(images))):
        arrays["ids"] = images.ids
    for column, values in images.columns.items():
        if column == "label":
            arrays["labels"] = values if values.dtype.kind in "iuU" else plain_column(values).astype(str)
        elif column not in RESERVED:
            arrays[column] = plain_column(values)
    if inputs.texts:
        arrays[PROMPT] = np.array(inputs.texts)
    return arrays


def _run_missing_jobs(folder: Path, context: Retraining, jobs: list[TrainingJob], engine: Engine, threads: int) -> None:
    """Run the jobs that have no complete result yet, and write their results."""
    missing = [job for job in jobs if _outputs(folder, context, job) is None]
    if not missing:
        return
    for job, arrays in run_jobs(context, missing, engine, threads, len(jobs) - len(missing)):
        if context.keep_weights:
            save_model(model_with_weights(context, arrays), folder / "retrained" / str(job))
        write_text(_path(folder, job).with_suffix(".seconds"), f"{arrays['seconds']:.3f}\n")
        write_bytes(_path(folder, job), as_npz({key: one for key, one in arrays.items() if key.startswith("outputs/")}))


def _path(folder: Path, job: TrainingJob) -> Path:
    return folder / "jobs" / f"{job}.npz"


def _outputs(folder: Path, context: Retraining, job: TrainingJob) -> dict[str, Arrays] | None:
    """Read a job's outputs [Q] by set of queries and objective; None if they are incomplete or without L_Simple."""
    if context.keep_weights and not (folder / "retrained" / str(job)).exists():
        return None
    arrays = read_arrays(_path(folder, job)) or {}
    outputs = {name: _by_objective(arrays, f"outputs/{name}") for name in context.queries}
    for name, images in context.queries.items():
        if MAIN not in outputs[name] or any(one.shape != (len(images),) for one in outputs[name].values()):
            return None
    return outputs


def _by_objective(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays `prefix/OBJECTIVE` by objective; earlier versions kept them as the rows of one array."""
    if prefix in arrays:
        is_known = arrays[prefix].shape[:1] == (len(OLD_ORDER),)
        return dict(zip(OLD_ORDER, arrays[prefix], strict=True)) if is_known else {}
    return {key.removeprefix(f"{prefix}/"): one for key, one in arrays.items() if key.startswith(f"{prefix}/")}


def _assemble(folder: Path, context: Retraining, jobs: list[TrainingJob]) -> None:
    """Write all jobs' outputs as float32 [M, S, Q], for each set of queries and each objective that all jobs have."""
    outputs: dict[TrainingJob, dict[str, Arrays]] = {}
    for job in jobs:
        found = _outputs(folder, context, job)
        if found is None:
            raise DtrakError(f"{_path(folder, job)} is gone or damaged: run the command again")
        outputs[job] = found
    seeds = 1 + max(job.seed for job in jobs)
    for name, images in context.queries.items():
        for objective in [one for one in OBJECTIVES if all(one in of_job[name] for of_job in outputs.values())]:
            losses = np.empty((len(context.masks), seeds, len(images)), dtype=np.float32)
            for job, of_job in outputs.items():
                losses[job.subset, job.seed] = of_job[name][objective]
            write_bytes(folder / losses_file(name, objective), as_npy(losses))
    write_bytes(folder / "masks.npy", as_npy(context.masks))
