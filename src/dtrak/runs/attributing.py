"""Score a run's training images with the settings of its recipe and the files of the run."""

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
from dtrak.gradients.copies import select_timesteps
from dtrak.images.images import Images
from dtrak.inputs.benchmark import Benchmark
from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Task
from dtrak.methods import Method
from dtrak.models import DiffusionModel
from dtrak.noise import stable_hash
from dtrak.runs.run import BENCHMARK, RETRAINED, Run

PATH_SETTINGS = ("checkpoints", "retrained", "latents")  # settings that name files
NOT_IN_FEATURES = ("batch_size", "skip_bad", "projection_seed")  # settings that do not change features


def settings_of(run: Run) -> Settings:
    """Return the settings of the run's recipe, with the run's own checkpoints, latents and retrained models."""
    recipe = run.recipe
    settings = Settings(**{field.name: getattr(recipe.attribution, field.name) for field in fields(Settings)})
    settings = replace(settings, ddim_steps=recipe.generation.steps)
    if recipe.is_conditional:
        settings = replace(settings, guidance=recipe.generation.guidance, latents=run.latents)
    if settings.checkpoints is None and (run.folder / "checkpoints").exists():
        settings = replace(settings, checkpoints=run.folder / "checkpoints")
    for name in (RETRAINED, BENCHMARK):
        if settings.retrained is None and (run.folder / name / "masks.npy").exists():  # it is written last
            settings = replace(settings, retrained=run.folder / name)
    return settings


@dataclass(frozen=True)
class LastAttribution:
    """The pictures that were attributed last in a run, and the methods and settings."""

    queries: str
    methods: list[str]
    settings: Settings


def last_attribution(run: Run) -> LastAttribution | None:
    """Read the run's last attribution from attribution.json; None if the file is missing or not valid."""
    kept = run.read_attribution()
    if kept is None:
        return None
    kept_settings = {field.name: kept[field.name] for field in fields(Settings) if field.name in kept}
    for name in PATH_SETTINGS:
        if isinstance(kept_settings.get(name), str):
            kept_settings[name] = Path(run.located(kept_settings[name]))
    try:
        settings = TypeAdapter(Settings).validate_python(asdict(settings_of(run)) | kept_settings)
    except (ValueError, UsageError):
        return None
    return LastAttribution(kept["queries"], kept["method"], settings)


def features_folder(run: Run, settings: Settings, prefix: str = "") -> Path:
    """Return the folder in the run for features with these settings; its name begins with the `prefix`."""
    return run.folder / "features" / f"{prefix}{features_name(settings, run.recipe.timesteps)}"


def features_name(settings: Settings, total: int) -> str:
    """Return a name that is different for all settings that give different features; `total` is T."""
    kind = settings.projection_of(apart=False)
    timesteps, of_copies = (select_timesteps(settings.timesteps, total, form) for form in ("uniform", "visible"))
    values = asdict(settings.features) | {"timesteps": timesteps, "projection": kind}
    values["copies"] = timesteps if timesteps == of_copies else "visible"  # a list means the same for copies apart
    for name in NOT_IN_FEATURES:
        del values[name]
    return f"{kind}-{settings.projection_dim}-{stable_hash(repr(values)):016x}"


def attribute_run(
    run: Run,
    model: DiffusionModel | Path,
    queries: str,
    methods: Sequence[str],
    settings: Settings,
    *,
    top: int | None = None,
    cache: Path | None = None,
    device: str | None = None,
    engine: Engine | None = None,
) -> dict[str, Scores]:
    """Score the run's training images for some pictures. With `top`, only the strongest of each picture are held.

    The run keeps the scores in scores.npz, and their settings in attribution.json, for its report. If the kept scores
    have the same settings, they are returned. If `model` is the folder of an earlier checkpoint, the run keeps only the
    features.
    """
    train_images, query_images = run.train_images, run.query_images(queries)
    if isinstance(model, Path):
        folder = cache or features_folder(run, settings, f"{model.name}-")
        return attribute_with(
            model, train_images, query_images, methods, settings, cache=folder, device=device, engine=engine
        )
    fingerprints = [model.fingerprint, train_images.fingerprint, query_images.fingerprint]
    if settings.retrained is not None:
        fingerprints.append(Benchmark.open(settings.retrained).fingerprint)
    made_by: dict[str, Any] = {
        "dtrak": version("dtrak"),
        "queries": run.portable(queries),
        "method": list(methods),
        **portable_settings(run, settings),
        "fingerprints": fingerprints,
        "top": top,
    }
    scores_path, made_by_path = run.folder / "scores.npz", run.folder / "attribution.json"
    if made_by.items() <= (run.read_attribution() or {}).items():
        with suppress(DtrakError):  # missing or damaged scores are computed again
            return load_scores(scores_path)
    started = time.monotonic()
    folder = cache or features_folder(run, settings)
    scores = attribute_with(
        model, train_images, query_images, methods, settings, top=top, cache=folder, device=device, engine=engine
    )
    if made_by_path.exists():
        write_json(made_by_path, {})  # so that it never describes other scores than those in scores.npz
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
    """Prepare the scoring of a run's training images: return the task and the methods."""
    folder = cache or features_folder(run, settings)
    return prepare(model, run.train_images, queries, methods, settings, folder, engine=engine)


def portable_settings(run: Run, settings: Settings) -> dict[str, Any]:
    """Return the settings with paths that stay valid in any working folder."""
    return {
        name: run.portable(str(value)) if isinstance(value, Path) else value for name, value in asdict(settings).items()
    }
