"""Compute what stores lack, shard by shard, together with other processes; copy rows that stores beside them have."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import filelock
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import DtrakError
from dtrak.features.store import FeatureStore
from dtrak.files import clear_leftovers
from dtrak.fingerprints import Facts
from dtrak.progress import progress_bar


def missing_shards(
    stores: Sequence[FeatureStore], advance: Callable[[int], None], share: tuple[int, int] | None = None
) -> list[int]:
    """Return the shards that any of some stores of the same rows lacks; refuse a disk that is too small for them.

    With a `share` (i, n), only every n-th shard counts, from the i-th on. `advance` is called with the number of rows
    that all of the stores have.
    """
    needed, free = 0, shutil.disk_usage(stores[0].folder).free
    for store in stores:
        needed += store.nbytes - sum(path.stat().st_size for path in store.folder.glob("shard-*.safetensors"))
        if needed > free:
            raise DtrakError(f"{store.folder} needs {needed / 1e6:,.0f} MB more, but its disk has {free / 1e6:,.0f} MB")
    first, step = share or (1, 1)
    shards = stores[0].shards
    wanted = range(first - 1, len(shards), step)
    missing = {index: None for index in wanted if not all(store.has(index) for store in stores)}
    advance(sum(len(shards[index]) for index in wanted if index not in missing))
    return list(missing)


def fill(
    stores: Sequence[FeatureStore],
    compute: Callable[[Sequence[int]], Tensor],
    advance: Callable[[int], None],
    share: tuple[int, int] | None = None,
) -> None:
    """Compute what is missing in stores of the same rows; `compute(rows)` returns float32 [stores, b, …].

    A shard that another process is computing is left to it, and is computed here if that process dies. `advance` is
    called with the number of rows that did not need `compute`.
    """
    missing = missing_shards(stores, advance, share)
    while missing:
        left_to_others = []
        for index in missing:
            rows = stores[0].shards[index]
            with ExitStack() as locks:
                try:
                    for store in stores:
                        locks.enter_context(store.lock(index))
                except filelock.Timeout:
                    left_to_others.append(index)
                    continue
                if all(store.has(index) for store in stores):
                    advance(len(rows))
                    continue
                found = lent(stores, rows)
                advance(len(found))
                if computed := [row for row in rows if row not in found]:
                    found |= zip(computed, compute(computed).unbind(1), strict=True)
                for place, store in enumerate(stores):
                    store.write(index, torch.stack([found[row][place] for row in rows]))
        if len(left_to_others) == len(missing):
            time.sleep(0.2)
        missing = left_to_others
    for store in stores:
        clear_leftovers(store.folder)  # of processes that were killed meanwhile


def lent(stores: Sequence[FeatureStore], rows: range) -> dict[int, Tensor]:
    """Return those of some rows that stores beside each of these have, [stores, …] by row."""
    found = [store.lent(rows) for store in stores]
    return {row: torch.stack([of_store[row] for of_store in found]) for row in rows if all(row in one for one in found)}


def write_shard(stores: Sequence[FeatureStore], rows: Sequence[int], features: Tensor) -> None:
    """Write one shard, [stores, b, …], where it is missing."""
    index = rows[0] // len(stores[0].shards[0])
    for store, its_features in zip(stores, features, strict=True):
        with store.lock(index).acquire(blocking=True):
            if not store.has(index):
                store.write(index, its_features)


def kept_rows(
    folder: Path | None,
    name: str,
    part: Facts,
    shape: tuple[int, ...],
    compute: Callable[[Sequence[int]], Tensor],
    few: int,
    hashes: NDArray[np.void] | None = None,
) -> NDArray[np.float32]:
    """Return rows [N, …] of this shape: read them if the folder has the store of this name and part, or compute them.

    `compute(rows)` returns [b, …], and is called with `few` rows at a time. If the folder is None, nothing is kept.
    """
    if folder is None:
        with TemporaryDirectory() as temporary:
            return kept_rows(Path(temporary), name, part, shape, compute, few, hashes)
    store = FeatureStore.create(folder / name, part, shape[0], shape[1:], hashes=hashes)
    if store.missing():
        with progress_bar(name.replace("_", " "), shape[0], "rows") as advance:

            def computed(rows: Sequence[int]) -> Tensor:  # [1, b, …]
                parts = []
                for start in range(0, len(rows), few):
                    parts.append(compute(rows[start : start + few]).float().cpu())
                    advance(len(parts[-1]))
                return torch.cat(parts)[None]

            fill([store], computed, advance)
    return store.numpy()
