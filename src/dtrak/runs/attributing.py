"""Score a run's training images: as its recipe says, and with what the run has."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dtrak.attribution.attributing import attribute_with
from dtrak.attribution.preparing import prepare
from dtrak.attribution.scores import Scores, load_scores, save_scores
from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError
from dtrak.files import write_json
from dtrak.gradients.timesteps import select_timesteps
from dtrak.images.images import Images
from dtrak.inputs.benchmark import Benchmark
from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Task
from dtrak.methods import Method
from dtrak.models import DiffusionModel
from dtrak.noise import stable_hash
from dtrak.runs.run import BENCHMARK, Run

PATHS = ("checkpoints", "retrained", "latents")  # settings that name files
NOT_IN_FEATURES = ("batch_size", "skip_bad", "projection_seed")  # features are the same whatever these are


def settings_of(run: Run) -> Settings:
    """How the run's images are scored: as its recipe says, with what the run has beside its model and images."""
    recipe = run.recipe
    found = Settings(**{one.name: getattr(recipe.attribution, one.name) for one in fields(Settings)})
    found = replace(found, ddim_steps=recipe.generation.steps)
    if recipe.family.takes_prompts:
        found = replace(found, guidance=recipe.generation.guidance, latents=run.latents)
    if found.checkpoints is None and (run.folder / "checkpoints").exists():
        found = replace(found, checkpoints=run.folder / "checkpoints")
    if found.retrained is None and (run.folder / BENCHMARK / "masks.npy").exists():  # written when it is complete
        found = replace(found, retrained=run.folder / BENCHMARK)
    return found


@dataclass(frozen=True)
class LastAttribution:
    """What a run was asked last, and how it was scored."""

    queries: str
    methods: list[str]
    settings: Settings


def last_attribution(run: Run) -> LastAttribution | None:
    """From the run's attribution.json; None if it is not there, or does not say so."""
    kept = run.last_attribution()
    if kept is None:
        return None
    there = {one.name: kept[one.name] for one in fields(Settings) if one.name in kept}
    for name in PATHS:
        if isinstance(there.get(name), str):
            there[name] = Path(run.located(there[name]))
    try:
        settings = TypeAdapter(Settings).validate_python(asdict(settings_of(run)) | there)
    except (ValueError, UsageError):
        return None
    return LastAttribution(kept["queries"], kept["method"], settings)


def features_folder(run: Run, settings: Settings, prefix: str = "") -> Path:
    """Every way to make features has a folder of its own in the run, whose name begins with the `prefix`."""
    return run.folder / "features" / f"{prefix}{features_name(settings, run.recipe.timesteps)}"


def features_name(settings: Settings, total: int) -> str:
    """A name of its own for every way to make features, however the T = `total` timesteps are chosen."""
    kind = settings.projection_of(apart=False)
    values = asdict(settings.features) | {"timesteps": select_timesteps(settings.timesteps, total), "projection": kind}
    for name in NOT_IN_FEATURES:
        del values[name]
    return f"{kind}-{settings.projection_dim}-{stable_hash(repr(values)):016x}"


def attribute_run(
    run: Run,
    model: DiffusionModel,
    queries: str,
    methods: Sequence[str],
    settings: Settings,
    *,
    cache: Path | None = None,
    device: str | None = None,
    engine: Engine | None = None,
) -> dict[str, Scores]:
    """Score the run's training images for some pictures.

    The run keeps the scores as scores.npz, and how they were made as attribution.json, for its report. The same
    question is not answered twice.
    """
    train_images, query_images = run.train_images, run.query_images(queries)
    fingerprints = [model.fingerprint, train_images.fingerprint, query_images.fingerprint]
    if settings.retrained is not None:
        fingerprints.append(Benchmark.open(settings.retrained).fingerprint)
    made_by: dict[str, Any] = {
        "dtrak": version("dtrak"),
        "queries": run.portable(queries),
        "method": list(methods),
        **portable_settings(run, settings),
        "fingerprints": fingerprints,
    }
    scores_path, made_by_path = run.folder / "scores.npz", run.folder / "attribution.json"
    if made_by.items() <= (run.last_attribution() or {}).items():
        with suppress(DtrakError):  # scores that are gone or damaged are made again
            return load_scores(scores_path)
    started = time.monotonic()
    folder = cache or features_folder(run, settings)
    scores = attribute_with(
        model, train_images, query_images, methods, settings, cache=folder, device=device, engine=engine
    )
    if made_by_path.exists():
        write_json(made_by_path, {})  # so that the two never speak of different scores
    save_scores(scores_path, scores)
    write_json(made_by_path, made_by | {"seconds": round(time.monotonic() - started, 1)})
    return scores


def prepare_run(
    run: Run,
    model: DiffusionModel,
    queries: Images,
    methods: Sequence[str],
    settings: Settings,
    cache: Path | None = None,
    engine: Engine | None = None,
) -> tuple[Task, list[Method]]:
    """The task of scoring a run's training images, and its methods."""
    folder = cache or features_folder(run, settings)
    return prepare(model, run.train_images, queries, methods, settings, folder, engine=engine)


def portable_settings(run: Run, settings: Settings) -> dict[str, Any]:
    """The settings with paths that name their files from anywhere."""
    return {
        name: run.portable(str(value)) if isinstance(value, Path) else value for name, value in asdict(settings).items()
    }
