"""Make a benchmark folder: retrain a run's model on random subsets, and keep the models' outputs for the run's queries.

`attribution/benchmark_folder.py` says which files it has. While it is made, it also has jobs/ with the result of each
training; the arrays are written when all jobs have finished.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, TypeAdapter, ValidationError

from dtrak.attribution.benchmark_folder import QUERIES, Benchmark, losses_file
from dtrak.checks import check_number, first_difference, first_mistake, shortened
from dtrak.engines import Engine
from dtrak.errors import UsageError, check_known
from dtrak.evaluation.training_jobs import Arrays, Outputs, Retraining, TrainingJob, random_subsets, results
from dtrak.features.model_inputs import ModelInputs
from dtrak.files import alone_in, as_npy, as_npz, clear_leftovers, whole_folder, write_bytes, write_json
from dtrak.gradients.copies import select_timesteps
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.images import Images
from dtrak.images.metadata import plain_column
from dtrak.images.npz import RESERVED
from dtrak.models import save_model
from dtrak.models.prompts import PROMPT
from dtrak.runs.recipes import Evaluation, Recipe
from dtrak.runs.run import Run, versions

GROWING = ("subsets", "seeds")  # settings that may be larger when a benchmark is continued
FIXED_AT_START = ("threads", "versions")  # continued with the values that the benchmark was begun with
OTHER_SUBSETS = {"seed": 1, "seeds": 1}  # of models that methods learn from, as in the paper: each is trained once


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

    def outputs(self, total: int) -> Outputs:
        """Return the noised copies whose outputs are kept, of a model with so many timesteps."""
        return Outputs(select_timesteps(self.timesteps or total, total), self.noises, self.seed)


class BenchmarkRecord(BaseModel):
    """The fields of benchmark.json whose types are checked when it is read."""

    model_config = ConfigDict(extra="allow")

    subsets: PositiveInt = 1
    seeds: PositiveInt = 1
    threads: PositiveInt = 1
    queries: dict[str, PositiveInt] = {}


def queries_of(run: Run, settings: RetrainingSettings) -> dict[str, Images]:
    """Return the queries whose losses are kept: the first validation images and generated pictures."""
    queries: dict[str, Images] = {}
    if run.validation_images is not None:
        queries["validation"] = run.validation_images.first(settings.validation)
    if (run.folder / "generated").exists():
        queries["generated"] = run.query_images(str(run.folder / "generated")).first(settings.generated)
    if not queries:
        raise UsageError(
            f"{run.folder} has no queries: its recipe names no validation images, and it has no generated pictures "
            f"yet (`dtrak generate {run.folder}`)"
        )
    return queries


def check_queries(run: Run, queries: str) -> None:
    """Refuse a kind of queries that the run does not have."""
    check_known("queries", queries, list(QUERIES))
    if queries == "validation" and run.recipe.data.validation is None:
        raise UsageError(f"{run.folder}: its recipe names no validation images; give --queries generated")
    if queries == "generated" and not (run.folder / "generated").exists():
        raise UsageError(f"{run.folder} has no generated pictures yet: `dtrak generate {run.folder}`")


def make_benchmark(
    run: Run,
    folder: Path,
    settings: RetrainingSettings,
    engine: Engine,
    queries: Mapping[str, Images],
    device: str = "cpu",
) -> Benchmark:
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
    labels, count = run.train_images.columns.get("label"), len(run.train_images)
    masks = random_subsets(settings.subsets, count, settings.fraction, labels, settings.seed)
    context = Retraining.of(
        run,
        model,
        masks,
        queries,
        outputs=settings.outputs(model.process.timesteps),
        keep_weights=settings.keep_models,
        device=device,
    )
    record: dict[str, Any] = {
        "name": run.recipe.name,
        "train": count,
        "subsets": settings.subsets,
        "fraction": settings.fraction,
        "stratified": labels is not None,
        "seeds": settings.seeds,
        "seed": settings.seed,
        "queries": {kind: len(inputs) for kind, inputs in context.queries.items()},
        "timesteps": str(settings.timesteps or model.process.timesteps),
        "noises": settings.noises,
        "keep_models": settings.keep_models,
        "recipe": run.recipe.model_dump(mode="json", exclude={"data": {"subset"}}),
        "fingerprints": {
            "model": model.fingerprint,
            **{kind: inputs.fingerprint for kind, inputs in {"train": context.images, **context.queries}.items()},
        },
        "threads": context.threads,
        "versions": versions(),
    }
    jobs = [TrainingJob(subset, seed) for seed in range(settings.seeds) for subset in range(settings.subsets)]
    with alone_in(folder):
        record |= _check_same(folder, record)
        for subfolder in (folder, folder / "outputs", folder / "retrained"):
            clear_leftovers(subfolder)
        if not (folder / "model").exists():
            with whole_folder(folder / "model") as temporary:
                shutil.copytree(run.folder / "model", temporary, dirs_exist_ok=True)
        for kind, inputs in {"train": context.images, **context.queries}.items():
            if not (folder / f"{kind}.npz").exists():
                write_bytes(folder / f"{kind}.npz", as_npz(as_arrays(inputs)))
        if not (folder / "benchmark.json").exists():
            write_json(folder / "benchmark.json", record)
        context = replace(context, threads=record["threads"])  # so that its sums are the same, bit for bit
        models = folder / "retrained"
        with results(
            folder / "jobs",
            context,
            jobs,
            engine,
            (lambda job, made: save_model(made, models / str(job))) if settings.keep_models else None,
            lambda job: not settings.keep_models or (models / str(job)).exists(),
        ) as result:
            write_losses(folder, masks, settings.seeds, lambda *job: result(TrainingJob(*job)))
        write_json(folder / "benchmark.json", record)
    return Benchmark.open(folder)


def write_losses(folder: Path, masks: NDArray[np.bool_], seeds: int, result: Callable[[int, int], Arrays]) -> None:
    """Write the outputs of all models, float32 [M, S, Q] for each kind of queries and each objective; masks come last.

    `result(subset, seed)` gives a model's outputs [Q] as "outputs/QUERIES/OBJECTIVE". An objective that one of them
    lacks, as it was not known then, has no array.
    """
    losses: dict[str, list[list[NDArray[Any]]]] = {}
    for subset in range(len(masks)):
        of_seeds = [result(subset, seed) for seed in range(seeds)]
        shared = [name for name in of_seeds[0] if name.startswith("outputs/") and all(name in one for one in of_seeds)]
        for name in shared:
            losses.setdefault(name, []).append([one[name] for one in of_seeds])
    for name, rows in losses.items():
        _, kind, objective = name.split("/")
        if objective in OBJECTIVES and len(rows) == len(masks):
            write_bytes(folder / losses_file(kind, objective), as_npy(np.array(rows, dtype=np.float32)))
    write_bytes(folder / "masks.npy", as_npy(masks))


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
