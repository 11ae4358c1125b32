"""From images to features on disk: what to compute, what it will cost, and the loop that does it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dtrak.data import Images
from dtrak.errors import DtrakError, UsageError, choose
from dtrak.features import DTYPES, Cost, FeatureStore, Manifest, fill
from dtrak.gradients import Copies, Features, NotFiniteError
from dtrak.journeys import Journeys
from dtrak.models import DiffusionModel
from dtrak.objectives import get_objective
from dtrak.progress import progress_bar, say
from dtrak.projections import PROJECTIONS, make_projection
from dtrak.timesteps import select_timesteps


@dataclass(frozen=True)
class FeatureSettings:
    """How features are made, objective aside."""

    timesteps: int | str = 10  # a number, "cumulative:10" or a list "0,100,200"
    draws: int = 1  # noises at each timestep
    noise: Literal["shared", "per-image"] = "shared"
    projection: str = "sketch"
    projection_dim: int = 4096
    parameters: str | None = None  # a regular expression over names; all parameters if None
    seed: int = 0  # of the noise and of the projection
    projection_seed: int | None = None  # where the projection has its own
    dtype: str = "float32"  # on disk
    autocast: bool = False  # forward passes in bfloat16
    batch_size: int | None = None  # images that share a pass; chosen by the model's size if None
    skip_bad: bool = False  # leave out images whose gradient is not finite, instead of failing

    def __post_init__(self) -> None:
        choose("projection", self.projection, list(PROJECTIONS))
        choose("noise", self.noise, ["shared", "per-image"])
        choose("dtype", self.dtype, list(DTYPES))
        for name in ("draws", "projection_dim", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name.replace('_', '-')} {value}: it must be at least 1")
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: it must not be negative")


def featurize(
    model: DiffusionModel,
    images: Images | Journeys,
    objectives: Sequence[str],
    settings: FeatureSettings,
    folder: Path,
    name: str,
) -> dict[str, FeatureStore]:
    """Fill one store for each objective, `folder/name-objective`; what is there already is not computed again.

    Objectives that are asked for together share their forward passes. Journeys have timesteps of their own.
    """
    model.check_fits(images.shape, images.source)
    for objective in objectives:
        get_objective(objective)
    if isinstance(images, Journeys):
        timesteps = images.timesteps
    else:
        timesteps = select_timesteps(settings.timesteps, model.timesteps)
    copies = Copies(timesteps, settings.draws, settings.noise, settings.seed)
    parameters = model.parameters(settings.parameters)
    sizes = {key: value.numel() for key, value in parameters.items()}
    projection_seed = settings.seed if settings.projection_seed is None else settings.projection_seed
    projection = make_projection(settings.projection, settings.projection_dim, sizes, projection_seed)
    stores = {
        objective: FeatureStore.create(
            folder / f"{name}-{objective}", _manifest(model, images, objective, settings, timesteps, projection.dim)
        )
        for objective in objectives
    }
    incomplete = {objective: store for objective, store in stores.items() if store.missing()}
    if incomplete:
        features = Features(
            model,
            list(incomplete),
            copies,
            projection,
            parameters,
            batch_size=settings.batch_size,
            autocast=settings.autocast,
        )
        passes, size = len(images) * len(features.timesteps), sum(one.manifest.bytes for one in incomplete.values())
        say(
            f"features of {images.source}: {len(images):,} images × {len(features.timesteps)} copies = "
            f"{passes:,} passes, {sum(sizes.values()):,} parameters → {projection.dim:,} numbers, "
            f"{size / 1e6:,.1f} MB on disk"
        )
        rows = Measured(features)
        with progress_bar("features", len(images), "images") as advance:
            fill(list(incomplete.values()), rows.timed(_compute(features, images, settings.skip_bad, advance)), advance)
        for store in incomplete.values():
            store.keep_cost(rows.cost_of_one() * (1 / len(incomplete)))
    _report_left_out(stores, images, settings.skip_bad)
    return stores


class Measured:
    """How long the rows of some features take."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self.rows = 0
        self.seconds = 0.0

    def timed(self, compute: Callable[[range], Tensor]) -> Callable[[range], Tensor]:
        def of_shard(rows: range) -> Tensor:
            started = time.perf_counter()
            found = compute(rows)
            self.seconds += time.perf_counter() - started
            self.rows += len(rows)
            return found

        return of_shard

    def cost_of_one(self) -> Cost:
        projection = self.features.projection_seconds
        return Cost(self.seconds - projection, projection) * (1 / max(1, self.rows))


def _manifest(
    model: DiffusionModel,
    images: Images | Journeys,
    objective: str,
    settings: FeatureSettings,
    timesteps: tuple[int, ...],
    dim: int,
) -> Manifest:
    return Manifest(
        model=model.fingerprint,
        data=images.fingerprint,
        objective=objective,
        timesteps=list(timesteps),
        draws=settings.draws,
        noise=settings.noise,
        seed=settings.seed,
        projection_seed=settings.projection_seed,
        parameters=settings.parameters or "all",
        projection=settings.projection,
        dim=dim,
        rows=len(images),
        precision="bfloat16" if settings.autocast else "float32",
        dtype=settings.dtype,
    )


def _compute(
    features: Features, images: Images | Journeys, skip_bad: bool, advance: Callable[[int], None]
) -> Callable[[range], Tensor]:
    """The function that gives the features [objectives, b, k] of some rows, a pass at a time."""

    def of_pass(rows: Sequence[int]) -> Tensor:
        try:
            return features(images.tensor(rows), images.ids[rows].tolist())
        except NotFiniteError:
            if not skip_bad:
                raise
            if len(rows) == 1:
                return torch.zeros(len(features.objectives), 1, features.projection.dim)
            return torch.cat([of_pass([row]) for row in rows], 1)

    def of_shard(rows: range) -> Tensor:
        parts = []
        for start in range(0, len(rows), features.batch_size):
            part = list(rows[start : start + features.batch_size])
            parts.append(of_pass(part))
            advance(len(part))
        return torch.cat(parts, 1)

    return of_shard


def _report_left_out(stores: dict[str, FeatureStore], images: Images | Journeys, skip_bad: bool) -> None:
    for objective, store in stores.items():
        ids = ", ".join(str(images.ids[row]) for row in store.left_out())
        if not ids:
            continue
        message = f"of {images.source}, the gradient of {objective} is zero or not finite for {ids}"
        if not skip_bad:
            raise DtrakError(f"{message} (--skip-bad leaves them out)")
        say(f"Left out: {message}")
