"""Compute the features of one shard, in this process or on a worker.

A worker gets the model once, and then parts of the images: those of one shard. Where their source can be opened by its
name, a part has only names, and the worker reads these images itself. Otherwise it has their pixels. So no process
needs all images. The content of each image is compared with what it was when the features were begun. A worker that
sees the stores writes the shard itself; otherwise the features come home.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dtrak.contracts import Objective, Projection
from dtrak.errors import DtrakError
from dtrak.features.inputs import ModelInputs
from dtrak.features.settings import FeatureSettings
from dtrak.features.store import PART, Cost, FeatureStore, write_shard
from dtrak.features.trajectories import Trajectories
from dtrak.gradients.copies import Copies
from dtrak.gradients.featurizer import Featurizer, NotFiniteError
from dtrak.gradients.objectives import OBJECTIVES, get_objective
from dtrak.gradients.projections import PROJECTIONS, MakeProjection, make_projection
from dtrak.models import DiffusionModel
from dtrak.models.diffusion import usual_parameters


@dataclass(frozen=True, eq=False)
class Work:
    """Everything that the features of some images depend on. It can be sent to other processes."""

    model: DiffusionModel
    images: ModelInputs | Trajectories
    data: str  # the images' fingerprint
    objectives: tuple[str, ...]
    settings: FeatureSettings
    timesteps: tuple[int, ...]
    apart: bool = False  # whether every copy has its own row
    device: str | None = None  # the device to compute on; None means the one that the model is on

    @property
    def pattern(self) -> str:
        """Return the pattern that chooses the parameters."""
        return self.settings.parameters or usual_parameters(self.model.network, self.apart)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return self.model.parameters(self.pattern)

    @cached_property
    def projection(self) -> Projection:
        settings, shapes = self.settings, {name: tuple(value.shape) for name, value in self.parameters.items()}
        seed = settings.seed if settings.projection_seed is None else settings.projection_seed
        return make_projection(settings.projection_of(self.apart), settings.projection_dim, shapes, seed)

    @cached_property
    def features(self) -> Featurizer:
        settings = self.settings
        return Featurizer(
            self.model.to(self.device or self.model.device),
            [get_objective(one) for one in self.objectives],
            Copies(self.timesteps, settings.draws, settings.noise, settings.seed, self.data),
            self.projection,
            self.parameters,
            condition=self.images.condition([0]),
            apart=self.apart,
            batch_size=settings.batch_size,
            autocast=settings.autocast,
        )


@dataclass(frozen=True)
class Place:
    """The folder of a store, and what its part.json is on the disk, so that no other folder is taken for it."""

    folder: str
    part: tuple[int, int, int]

    @classmethod
    def of(cls, store: FeatureStore) -> "Place":
        return cls(os.path.abspath(store.folder), _state(store.folder))

    @property
    def is_seen(self) -> bool:
        try:
            return _state(Path(self.folder)) == self.part
        except OSError:
            return False


def _state(folder: Path) -> tuple[int, int, int]:
    found = os.stat(folder / PART)
    return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True, eq=False)
class SentWork:
    """Work as a worker gets it, with the functions that Python code gave, as the worker does not know their names."""

    work: Work
    objectives: dict[str, Objective]
    projections: dict[str, MakeProjection]
    places: tuple[Place, ...] = ()  # of the stores

    @classmethod
    def of(cls, work: Work, stores: Sequence[FeatureStore] = ()) -> "SentWork":
        projection = work.settings.projection_of(work.apart)
        if isinstance(work.images, ModelInputs):  # images come with the parts; the condition of one is needed before
            first = work.images.select([0]).alone()
            work = replace(work, images=replace(first, images=first.images.select([])))
        added = OBJECTIVES.added(work.objectives), PROJECTIONS.added([projection])
        return cls(work, *added, tuple(Place.of(store) for store in stores))

    @cached_property
    def stores(self) -> list[FeatureStore]:
        """The stores, if this process sees them; none of them otherwise."""
        if all(place.is_seen for place in self.places):
            return [FeatureStore.open(Path(place.folder)) for place in self.places]
        return []


@dataclass(frozen=True, eq=False)
class Part:
    """The images of one shard."""

    rows: Sequence[int]
    images: ModelInputs | None  # of these rows alone; None for trajectories, which a worker has whole

    def __str__(self) -> str:
        return f"images {self.rows[0]:,} to {self.rows[-1]:,}"

    def loaded(self) -> "Part":
        """Read the images; refuse one that has changed."""
        return self if self.images is None else replace(self, images=self.images.in_memory())


def part_of(images: ModelInputs | Trajectories, rows: Sequence[int]) -> Part:
    """Return the part of some rows, for this process."""
    return Part(rows, images.select(rows) if isinstance(images, ModelInputs) else None)


@dataclass(frozen=True, eq=False)
class Parts(Sequence[Part]):
    """The parts of several shards for workers. Each is made when it is asked for, so that few are in memory."""

    images: ModelInputs | Trajectories
    shards: Sequence[range]
    by_name: bool  # whether workers read the images themselves

    def __len__(self) -> int:
        return len(self.shards)

    @overload
    def __getitem__(self, which: int) -> Part: ...
    @overload
    def __getitem__(self, which: slice) -> "Parts": ...
    def __getitem__(self, which: int | slice) -> "Part | Parts":
        if isinstance(which, slice):
            return replace(self, shards=self.shards[which])
        part = part_of(self.images, self.shards[which])
        if part.images is None:
            return part
        named = part.images.by_name() if self.by_name else None
        return replace(part, images=(part.images.in_memory() if named is None else named).alone())


@dataclass(frozen=True)
class Shard:
    """The features of some rows, and the seconds that they took."""

    # [objectives, b, k] or [objectives, b, KZ, k]; an array of numpy, as tensors would be sent through shared memory.
    # None if a worker has written them.
    features: NDArray[np.float32] | None
    cost: Cost


@dataclass(frozen=True)
class Unseen:
    """What a worker returns if it cannot read the images of a part."""

    reason: str


def shard_of(work: Work, part: Part, advance: Callable[[int], None] = lambda count: None) -> Shard:
    """Compute the features of a part, one pass after the other."""
    part = part.loaded()
    features, started = work.features, time.perf_counter()
    projected = features.projection_seconds
    parts = []
    for start in range(0, len(part.rows), features.batch_size):
        rows = part.rows[start : start + features.batch_size]
        parts.append(_of_pass(work, part, list(rows)))
        advance(len(rows))
    projection = features.projection_seconds - projected
    return Shard(torch.cat(parts, 1).numpy(), Cost(time.perf_counter() - started - projection, projection))


def shard_of_sent(sent: SentWork, part: Part) -> Shard | Unseen:
    """Compute the features of a part on a worker."""
    OBJECTIVES.learn(sent.objectives)
    PROJECTIONS.learn(sent.projections)
    try:
        part = part.loaded()
    except DtrakError as error:
        if isinstance(error.__cause__, OSError):  # the worker may be on a machine without these files
            return Unseen(str(error))
        raise
    shard = shard_of(sent.work, part)
    if not sent.stores or shard.features is None:
        return shard
    write_shard(sent.stores, part.rows, torch.from_numpy(shard.features))
    return replace(shard, features=None)


def _of_pass(work: Work, part: Part, rows: list[int]) -> Tensor:
    """Compute the features of rows that share a pass; images to skip have zeros."""
    features, images = work.features, part.images or work.images
    places = rows if part.images is None else [part.rows.index(row) for row in rows]
    try:
        return features(images.tensor(places), images.ids[places].tolist(), images.condition(places))
    except NotFiniteError:
        if not work.settings.skip_bad:
            raise
        if len(rows) == 1:
            copies = (features.rows,) if features.apart else ()
            return torch.zeros(len(features.objectives), 1, *copies, features.projection.dim)
        return torch.cat([_of_pass(work, part, [row]) for row in rows], 1)
