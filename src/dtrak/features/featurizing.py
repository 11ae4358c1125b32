"""Compute the features of images and keep them on disk: this file decides what is missing, and runs the loop."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from dtrak.devices import total_memory, useful_threads
from dtrak.engines import Engine, device_of_worker, gpu_of
from dtrak.errors import DtrakError, UsageError
from dtrak.features.inputs import ModelInputs, model_inputs
from dtrak.features.settings import FeatureSettings
from dtrak.features.shards import Part, Parts, SentWork, Shard, Unseen, Work, part_of, shard_of, shard_of_sent
from dtrak.features.store import COST, Cost, FeatureStore, fill, lent, missing_shards, write_shard
from dtrak.features.trajectories import Trajectories
from dtrak.files import clear_leftovers, write_json
from dtrak.gradients.copies import timesteps_of
from dtrak.gradients.objectives import get_objective
from dtrak.images.images import Images
from dtrak.models import DiffusionModel
from dtrak.progress import progress_bar, say

COPY_BYTES = 200  # what a noised copy takes in memory, in addition to its noise


def featurize(
    model: DiffusionModel,
    images: Images | ModelInputs | Trajectories,
    objectives: Sequence[str],
    settings: FeatureSettings,
    folder: Path,
    name: str,
    engine: Engine | None = None,
    *,
    apart: bool = False,
    share: tuple[int, int] | None = None,
) -> dict[str, FeatureStore]:
    """Fill one store for each objective, `folder/name-objective-FINGERPRINT`. What a store has is not computed again.

    If copies are kept `apart`, each has its own row. With a `share` (i, n), only every n-th of the stores' shards is
    filled, from the i-th on, in this process.

    The objectives of one call share their forward passes. Trajectories have timesteps of their own. The work is done
    in this process, or by the workers of an engine.
    """
    for objective in objectives:
        get_objective(objective)
    if isinstance(images, Trajectories):
        timesteps = images.timesteps
    else:
        images = model_inputs(model, images)
        timesteps = timesteps_of(model, settings.timesteps, "visible" if apart else "uniform")
    check_copies(len(timesteps), settings.draws, model.shape, model.device)
    work = Work(model, images, images.fingerprint, tuple(objectives), settings, timesteps, apart)
    stores = {objective: _store(work, objective, folder / f"{name}-{objective}") for objective in objectives}
    incomplete = {objective: store for objective, store in stores.items() if store.missing()}
    if incomplete:
        work = replace(work, model=model.denoiser(), objectives=tuple(incomplete))
        _announce(work, sum(one.nbytes for one in incomplete.values()))
        _fill(work, list(incomplete.values()), engine, share)
    if share is None:
        _report_left_out(stores, images, settings.skip_bad)
    return stores


def check_copies(timesteps: int, draws: int, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse so many noised copies of an image that their noises do not fit into the memory."""
    needed, memory = timesteps * draws * (4 * math.prod(shape) + COPY_BYTES), total_memory(device)
    if needed > memory / 2:
        raise UsageError(
            f"{timesteps:,} timesteps with {draws:,} draws each: their noises take {needed / 1e9:,.1f} GB, but there "
            f"are {memory / 1e9:,.1f} GB of memory; ask for fewer"
        )


def _announce(work: Work, size: int) -> None:
    copies = len(work.timesteps) * work.settings.draws
    parameters = sum(value.numel() for value in work.parameters.values())
    say(
        f"features of {work.images.source}: {len(work.images):,} images × {copies} copies = "
        f"{len(work.images) * copies:,} passes, {parameters:,} parameters → {work.projection.dim:,} numbers, "
        f"{size / 1e6:,.1f} MB on disk"
    )


def _fill(work: Work, stores: list[FeatureStore], engine: Engine | None, share: tuple[int, int] | None) -> None:
    """Compute what the stores of the work's objectives lack, and keep how many seconds a row took."""
    total, rows_done = Cost(), 0

    def counted(rows: Sequence[int], shard: Shard) -> Tensor | None:
        nonlocal total, rows_done
        total, rows_done = total + shard.cost, rows_done + len(rows)
        return None if shard.features is None else torch.from_numpy(shard.features)

    def computed(rows: Sequence[int]) -> Tensor:
        features = counted(rows, shard_of(work, part_of(work.images, rows), advance))
        assert features is not None
        return features

    shards = stores[0].shards
    first, step = share or (1, 1)
    with progress_bar("features", sum(map(len, shards[first - 1 :: step])), "images") as advance:
        if engine is None or share is not None:
            fill(stores, computed, advance, share)
        else:
            missing: list[range] = []
            for rows in (shards[index] for index in missing_shards(stores, advance)):
                found = lent(stores, rows)
                if len(found) < len(rows):  # workers compute whole shards
                    missing.append(rows)
                else:
                    write_shard(stores, rows, torch.stack([found[row] for row in rows], 1))
                    advance(len(rows))
            for done, shard in _shards_by(engine, work, stores, missing):
                features = counted(done, shard)
                if features is not None:
                    write_shard(stores, done, features)
                advance(len(done))
    if rows_done:  # other processes may have computed all of them
        for store in stores:
            write_json(store.folder / COST, asdict(total * (1 / (rows_done * len(stores)))))


def _shards_by(
    engine: Engine, work: Work, stores: Sequence[FeatureStore], missing: list[range]
) -> Iterator[tuple[Sequence[int], Shard]]:
    """Yield shards as an engine's workers finish them; each has as many threads as this process would take for it.

    Workers read the images themselves. If one cannot, the pixels of the shards that are still missing are sent.
    """
    left = {rows[0]: rows for rows in missing}
    for part, shard in _run(engine, work, stores, Parts(work.images, missing, by_name=True)):
        if isinstance(shard, Unseen):
            part_of(work.images, part.rows).loaded()  # if the image is gone here, too, this says so
            break
        del left[part.rows[0]]
        yield part.rows, shard
    else:
        return
    say(f"workers cannot read {work.images.source} themselves ({shard.reason}): pixels are sent to them")
    for part, shard in _run(engine, work, stores, Parts(work.images, [*left.values()], by_name=False)):
        assert isinstance(shard, Shard)
        yield part.rows, shard


def _run(
    engine: Engine, work: Work, stores: Sequence[FeatureStore], parts: Parts
) -> Iterator[tuple[Part, Shard | Unseen]]:
    threads = useful_threads(work.features.pass_bytes, torch.get_num_threads())
    device = work.model.device
    gpu, card = gpu_of(str(device))
    try:
        if gpu and not engine.is_here:
            work.model.to("cpu")  # a worker may know this GPU under another name
        sent = SentWork.of(replace(work, device=device_of_worker(engine, str(device))), stores)
        yield from engine.run(shard_of_sent, sent, parts, threads, gpu, card or None)  # card 0 may mean just cuda
    finally:
        work.model.to(device)
        for store in stores:
            clear_leftovers(store.folder)  # of workers that were killed while they wrote


def _store(work: Work, objective: str, folder: Path) -> FeatureStore:
    settings, images = work.settings, work.images
    copies = len(work.timesteps) * settings.draws
    part = {
        "model": work.model.fingerprint,
        "images": work.data,
        "objective": objective,
        "timesteps": list(work.timesteps),
        "draws": settings.draws,
        "noise": settings.noise,
        "seed": settings.seed,
        "projection": settings.projection_of(work.apart),
        "projection_dim": work.projection.dim,
        "projection_seed": settings.projection_seed,
        "parameters": work.pattern,
        "copies": "apart" if work.apart else "averaged",
        "dtype": settings.dtype,
        "autocast": settings.autocast,
    }
    shape = (copies, work.projection.dim) if work.apart else (work.projection.dim,)
    # Noise of an image's own is named by the set of images as well.
    hashes = images.hashes if isinstance(images, ModelInputs) and settings.noise == "shared" else None
    return FeatureStore.create(folder, part, len(images), shape, settings.dtype, hashes)


def _report_left_out(stores: dict[str, FeatureStore], images: ModelInputs | Trajectories, skip_bad: bool) -> None:
    for objective, store in stores.items():
        ids = ", ".join(str(images.ids[row]) for row in store.left_out())
        if not ids:
            continue
        message = f"of {images.source}, the gradient of {objective} is zero or not finite for {ids}"
        if not skip_bad:
            raise DtrakError(f"{message} (--skip-bad leaves them out)")
        say(f"Left out: {message}")
