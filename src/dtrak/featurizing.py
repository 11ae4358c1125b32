"""From images to features on disk: what to compute, what it will cost, and the loop that does it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from dtrak.data import Images
from dtrak.errors import UsageError, choose
from dtrak.features import DTYPES, FeatureStore, Manifest, fill
from dtrak.gradients import Copies, Features
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
    seed: int = 0
    dtype: str = "float32"  # on disk
    batch_size: int | None = None  # images that share a pass; chosen by the model's size if None

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
    images: Images,
    objectives: Sequence[str],
    settings: FeatureSettings,
    folder: Path,
    name: str,
) -> dict[str, FeatureStore]:
    """Fill one store for each objective, `folder/name-objective`; what is there already is not computed again.

    Objectives that are asked for together share their forward passes.
    """
    model.check_fits(images.shape, images.source)
    parameters = model.parameters(settings.parameters)
    sizes = {key: value.numel() for key, value in parameters.items()}
    copies = Copies(
        select_timesteps(settings.timesteps, model.timesteps), settings.draws, settings.noise, settings.seed
    )
    for objective in objectives:
        get_objective(objective)
    projection = make_projection(settings.projection, settings.projection_dim, sizes, settings.seed)

    def store(objective: str) -> FeatureStore:
        manifest = Manifest(
            model=model.fingerprint,
            data=images.fingerprint,
            objective=objective,
            timesteps=list(copies.timesteps),
            draws=copies.draws,
            noise=copies.noise,
            seed=copies.seed,
            parameters=settings.parameters or "all",
            projection=settings.projection,
            dim=projection.dim,
            rows=len(images),
            dtype=settings.dtype,
        )
        return FeatureStore.create(folder / f"{name}-{objective}", manifest)

    stores = {objective: store(objective) for objective in objectives}
    incomplete = {objective: its_store for objective, its_store in stores.items() if its_store.missing()}
    if not incomplete:
        return stores
    features = Features(model, list(incomplete), copies, projection, parameters, settings.batch_size)
    passes, size = len(images) * len(features.timesteps), sum(one.manifest.bytes for one in incomplete.values())
    say(
        f"{name}: {len(images):,} images × {len(features.timesteps)} copies = {passes:,} passes, "
        f"{sum(sizes.values()):,} parameters → {projection.dim:,} numbers, {size / 1e6:,.1f} MB on disk"
    )

    def compute(rows: range) -> Tensor:
        indices = list(rows)
        return features(images.tensor(indices), images.ids[indices].tolist())

    with progress_bar(name, len(images), "images") as advance:
        fill(list(incomplete.values()), compute, advance)
    return stores
