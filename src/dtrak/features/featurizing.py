"""Compute the features of images and keep them on disk: what is missing, the loop, a shard here or on a worker.

A worker gets the model once, and then the images of one shard after the other: their names where it can open their
source itself, otherwise their pixels. So no process needs all images. A worker that sees the stores writes the shard
itself; otherwise the features come home.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import dill
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dtrak.contracts import Engine, Objective, Projection
from dtrak.devices import total_memory, useful_threads
from dtrak.engines import device_of_worker, gpu_of
from dtrak.errors import DtrakError, UsageError
from dtrak.features.filling import fill, kept_rows, lent, missing_shards, write_shard
from dtrak.features.model_inputs import ModelInputs
from dtrak.features.spec import Spec
from dtrak.features.store import COST, PART, Cost, FeatureStore
from dtrak.features.trajectories import Trajectories
from dtrak.files import clear_leftovers, write_json
from dtrak.fingerprints import Facts
from dtrak.gradients.copies import Copies, timesteps_of
from dtrak.gradients.featurizer import Featurizer, NotFiniteError, activation_bytes
from dtrak.gradients.projections import make_projection
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition, moved, repeated
from dtrak.models.diffusion import usual_parameters
from dtrak.models.memory import copies_that_fit
from dtrak.progress import progress_bar, say

COPY_BYTES = 200  # what a noised copy takes in memory, in addition to its noise
MOST_COPIES = 64  # that share a forward pass for residuals


@dataclass(frozen=True, eq=False)
class Work:
    """Everything that the features of an image depend on, and how they are computed. It is sent to workers once."""

    model: DiffusionModel
    spec: Spec
    objectives: Sequence[Objective]
    copies: Copies
    condition: Condition  # of any one image, to try the network with
    batch_size: int | None
    skip_bad: bool
    device: str | None = None  # the device to compute on; None means the one that the model is on
    places: Sequence[tuple[str, tuple[int, int, int]]] = ()  # the stores' folders, and what their files are on the disk

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions and classes of a notebook are sent with their code."""
        values = [getattr(self, one.name) for one in fields(self)]
        return _received, (dill.dumps(values, recurse=True),)

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        return parameters_of(self.model, self.spec)

    @cached_property
    def projection(self) -> Projection:
        spec, shapes = self.spec, {name: tuple(value.shape) for name, value in self.parameters.items()}
        seed = spec.seed if spec.projection_seed is None else spec.projection_seed
        return make_projection(spec.projection, spec.projection_dim, shapes, seed)

    @cached_property
    def features(self) -> Featurizer:
        return Featurizer(
            self.model.to(self.device or self.model.device),
            self.objectives,
            self.copies,
            self.projection,
            self.parameters,
            condition=self.condition,
            apart=self.spec.copies == "apart",
            batch_size=self.batch_size,
            autocast=self.spec.autocast,
        )

    @cached_property
    def stores(self) -> list[FeatureStore]:
        """The stores, if this process sees all of them; none otherwise."""
        is_seen = all(_on_disk(Path(folder)) == found for folder, found in self.places)
        return [FeatureStore.open(Path(folder)) for folder, _ in self.places] if is_seen else []


def _received(content: bytes) -> Work:
    return Work(*dill.loads(content))


def _on_disk(folder: Path) -> tuple[int, int, int] | None:
    """Return what tells a store from that in a folder of the same name on another machine."""
    try:
        found = os.stat(folder / PART)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class Shard:
    """What a worker returns: features, or None if it has written them, and the seconds that they took."""

    features: NDArray[np.float32] | None  # not a tensor, which would be sent through shared memory
    cost: Cost
    unseen: str = ""  # why the images cannot be read there


@dataclass(frozen=True, eq=False)
class Part:
    """The images of one shard, as a worker gets them."""

    rows: range
    inputs: ModelInputs

    def __str__(self) -> str:
        return f"images {self.rows.start:,} to {self.rows.stop - 1:,}"


@dataclass(frozen=True, eq=False)
class Parts(Sequence[Part]):
    """The parts of several shards. Each is made when it is asked for, so that few are in memory."""

    inputs: ModelInputs
    shards: Sequence[range]
    by_name: bool  # whether workers read the images themselves

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return replace(self, shards=self.shards[index])
        rows = self.shards[index]
        return Part(rows, self.inputs.select(rows).sent(self.by_name))


def featurize(
    model: DiffusionModel,
    inputs: ModelInputs | Trajectories,
    spec: Spec,
    objectives: Mapping[str, Objective],
    places: Mapping[str, tuple[Path, Facts]],
    *,
    engine: Engine | None = None,
    batch_size: int | None = None,
    skip_bad: bool = False,
    share: tuple[int, int] | None = None,
) -> dict[str, FeatureStore]:
    """Return a store for each objective. What it has is not computed again.

    `places` are the folder and the part of each store (`FeatureStore.create`). The objectives of one call share their
    forward passes. Trajectories have timesteps of their own. The work is done in this process, or by the workers of an
    `engine`; with a `share` (i, n), only every n-th shard is computed, from the i-th on, in this process.
    """
    timesteps = inputs.timesteps if isinstance(inputs, Trajectories) else timesteps_of(model, spec.timesteps)
    check_copies(len(timesteps), spec.draws, model.shape, model.device)
    copies = Copies(timesteps, spec.draws, spec.noise, spec.seed)
    work = Work(model, spec, (), copies, {}, batch_size, skip_bad)
    of_copies = (len(copies.pairs()),) if spec.copies == "apart" else ()
    shape = (*of_copies, work.projection.dim)
    stores = {
        name: FeatureStore.create(*places[name], len(inputs), shape, spec.dtype, inputs.hashes) for name in objectives
    }
    incomplete = {name: store for name, store in stores.items() if store.missing()}
    if incomplete:
        passes, parameters = len(inputs) * len(copies.pairs()), sum(one.numel() for one in work.parameters.values())
        say(
            f"features of {inputs.source}: {len(inputs):,} images × {len(copies.pairs())} copies = {passes:,} passes, "
            f"{parameters:,} parameters → {shape[-1]:,} numbers, "
            f"{sum(store.nbytes for store in incomplete.values()) / 1e6:,.1f} MB on disk"
        )
        given = inputs.inputs if isinstance(inputs, Trajectories) else inputs
        given = given if spec.noise == "shared" else given.named()
        wanted, condition = [objectives[name] for name in incomplete], given.condition([0])
        work = replace(work, model=model.denoiser(), objectives=wanted, condition=condition)
        _fill(work, given, list(incomplete.values()), engine, share)
    for name, store in stores.items() if share is None else ():
        if ids := ", ".join(str(inputs.ids[row]) for row in store.left_out()):
            message = f"of {inputs.source}, the gradient of {name} is zero or not finite for {ids}"
            if not skip_bad:
                raise DtrakError(f"{message} (--skip-bad leaves them out)")
            say(f"Left out: {message}")
    return stores


def check_copies(timesteps: int, draws: int, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse so many noised copies of an image that their noises do not fit into the memory."""
    needed, memory = timesteps * draws * (4 * math.prod(shape) + COPY_BYTES), total_memory(device)
    if needed > memory / 2:
        raise UsageError(
            f"{timesteps:,} timesteps with {draws:,} draws each: their noises take {needed / 1e9:,.1f} GB, but there "
            f"are {memory / 1e9:,.1f} GB of memory; ask for fewer"
        )


def parameters_of(model: DiffusionModel, spec: Spec) -> dict[str, nn.Parameter]:
    """Return the parameters whose gradients are taken, by name."""
    words = {"usual": False, "later": True}
    is_word = spec.layers in words
    return model.parameters(usual_parameters(model.network, words[spec.layers]) if is_word else spec.layers)


def _fill(
    work: Work,
    inputs: ModelInputs,
    stores: list[FeatureStore],
    engine: Engine | None,
    share: tuple[int, int] | None,
) -> None:
    """Compute what the stores of the work's objectives lack, and keep how many seconds a row took."""
    total, rows_done, shards = Cost(), 0, stores[0].shards

    def computed(rows: Sequence[int]) -> Tensor:
        nonlocal total, rows_done
        features, cost = compute(work, inputs.select(rows), advance)
        total, rows_done = total + cost, rows_done + len(rows)
        return features

    first, step = share or (1, 1)
    with progress_bar("features", sum(map(len, shards[first - 1 :: step])), "images") as advance:
        if engine is None or share is not None:
            fill(stores, computed, advance, share)
        else:
            missing = []
            for rows in (shards[index] for index in missing_shards(stores, advance)):
                found = lent(stores, rows)
                if len(found) < len(rows):  # workers compute whole shards
                    missing.append(rows)
                else:
                    write_shard(stores, rows, torch.stack([found[row] for row in rows], 1))
                    advance(len(rows))
            for rows, shard in _shards_by(engine, work, inputs, stores, missing):
                total, rows_done = total + shard.cost, rows_done + len(rows)
                if shard.features is not None:
                    write_shard(stores, rows, torch.from_numpy(shard.features))
                advance(len(rows))
    for store in stores if rows_done else ():  # other processes may have computed all of them
        write_json(store.folder / COST, asdict(total * (1 / (rows_done * len(stores)))))


def _shards_by(
    engine: Engine,
    work: Work,
    inputs: ModelInputs,
    stores: Sequence[FeatureStore],
    missing: Sequence[range],
) -> Iterator[tuple[range, Shard]]:
    """Yield shards as an engine's workers finish them; each has as many threads as this process would take for it.

    Workers read the images themselves. If one cannot, the pixels of the shards that are still missing are sent.
    """
    threads, device = useful_threads(work.features.pass_bytes, torch.get_num_threads()), work.model.device
    gpu, card = gpu_of(str(device))
    places = [(os.path.abspath(store.folder), _on_disk(store.folder) or (0, 0, 0)) for store in stores]
    left = dict.fromkeys(missing)
    try:
        if gpu and not engine.is_here:
            work.model.to("cpu")  # a worker may know this GPU under another name
        sent = replace(work, device=device_of_worker(engine, str(device)), places=places)
        for by_name in (True, False):
            parts = Parts(inputs, [*left], by_name)
            for part, shard in engine.run(on_worker, sent, parts, threads, gpu, card or None):  # 0 may mean just cuda
                if shard.unseen:
                    inputs.select(part.rows).in_memory()  # if the image is gone here, too, this says so
                    say(f"workers cannot read {inputs.source} themselves ({shard.unseen}): pixels are sent to them")
                    break
                del left[part.rows]
                yield part.rows, shard
            if not left:
                return
    finally:
        work.model.to(device)
        for store in stores:
            clear_leftovers(store.folder)  # of workers that were killed while they wrote


def on_worker(work: Work, part: Part) -> Shard:
    """Compute the features of a part on a worker."""
    try:
        inputs = part.inputs.in_memory()
    except DtrakError as error:
        if isinstance(error.__cause__, OSError):  # the worker may be on a machine without these files
            return Shard(None, Cost(), str(error))
        raise
    features, cost = compute(work, inputs)
    if not work.stores:
        return Shard(features.numpy(), cost)
    write_shard(work.stores, part.rows, features)
    return Shard(None, cost)


def compute(
    work: Work, inputs: ModelInputs, advance: Callable[[int], None] = lambda count: None
) -> tuple[Tensor, Cost]:
    """Return the features of some images, [objectives, b, k] or [objectives, b, KZ, k]; images to skip have zeros."""
    features, started, parts = work.features, time.perf_counter(), []
    projected = features.projection_seconds
    for start in range(0, len(inputs), features.batch_size):
        rows = range(start, min(start + features.batch_size, len(inputs)))
        try:
            parts.append(features(*inputs.batch(rows)))
        except NotFiniteError:
            if not work.skip_bad:
                raise
            for row in rows:
                try:
                    parts.append(features(*inputs.batch([row])))
                except NotFiniteError:
                    copies = (features.rows,) if features.apart else ()
                    parts.append(torch.zeros(len(features.objectives), 1, *copies, features.projection.dim))
        advance(len(rows))
    projection = features.projection_seconds - projected
    return torch.cat(parts, 1), Cost(time.perf_counter() - started - projection, projection)


def residuals_of(
    model: DiffusionModel, inputs: ModelInputs, spec: Spec, folder: Path | None, part: Facts
) -> NDArray[np.float32]:
    """Return r = √(mean (ε_θ − ε)²) of every copy, [N, KZ]; 0 where the network's output is not finite.

    The folder keeps them in its store `residuals` of this part.
    """
    copies, device = Copies(timesteps_of(model, spec.timesteps), spec.draws, spec.noise, spec.seed), model.device
    names = inputs.named().names if spec.noise == "per-image" else [""] * len(inputs)
    t = torch.tensor([timestep for timestep, _ in copies.pairs()])
    step = min(MOST_COPIES, copies_that_fit(activation_bytes(model, inputs.condition([0])), total_memory(device)))

    def compute(rows: Sequence[int]) -> Tensor:
        noises = torch.cat([copies.noises(model.shape, names[row]) for row in rows])
        clean, steps = inputs.tensor(rows).repeat_interleave(len(t), 0), t.repeat(len(rows))
        condition, found = repeated(inputs.condition(rows), len(t)), []
        for first in range(0, len(noises), step):
            some = slice(first, first + step)
            noised = clean[some].to(device), noises[some].to(device), steps[some].to(device)
            own = moved({name: value[some] for name, value in condition.items()}, device)
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=spec.autocast):
                predicted = model.predict_target(model.process.add_noise(*noised), noised[2], own).float()
            errors = predicted - model.process.target(*noised)
            found.append(errors.square().flatten(1).mean(1).sqrt().nan_to_num(0, 0).cpu())
        return torch.cat(found).view(len(rows), len(t))

    was_training = model.network.training
    model.network.eval()
    try:
        few, shape = max(1, step // len(t)), (len(inputs), len(t))
        return kept_rows(folder, "residuals", part, shape, compute, few, inputs.hashes)
    finally:
        model.network.train(was_training)
