"""The store keeps features on disk, [N, k] or [N, C, k] of every copy, in shards. A shard is complete or missing.

A folder holds `manifest.json`, which says by fingerprints what the features were made from, and one safetensors file
for every few dozen rows, with its checksum. A process computes a shard while it holds the lock of that shard; if the
process dies, the lock is free. So a killed command continues where it stopped, several processes can fill one store,
and nobody reads a half-written file.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dtrak.checks import first_mistake, shortened
from dtrak.errors import DtrakError, UsageError
from dtrak.features.checks import Checks, digest
from dtrak.features.shares import Share
from dtrak.files import make_folder, write_bytes, write_json

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MANIFEST = "manifest.json"
COST = "cost.json"  # seconds per row
SHARD_ROWS = 32  # a killed process loses no more rows than these
SHARD_BYTES = 32 << 20  # the largest shard of features of every copy
BLOCK_BYTES = 64 << 20  # how much is read at a time
EVERY_ROW = slice(None)


@dataclass(frozen=True)
class Manifest:
    """A manifest says what features were made from. Two stores with equal manifests hold equal features."""

    model: str
    data: str
    objective: str
    timesteps: list[int]
    draws: int
    noise: str
    seed: int
    parameters: str
    projection: str
    dim: int
    rows: int
    copies: int | None = None  # how many copies of an image have their own rows; None if it has one row
    projection_seed: int | None = None  # None if it is the seed of the noise
    precision: str = "float32"
    dtype: str = "float32"
    version: int = 1

    @property
    def bytes(self) -> int:
        return self.rows * math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one image's features: (k,) or (C, k)."""
        return (self.dim,) if self.copies is None else (self.copies, self.dim)


MANIFESTS = TypeAdapter(Manifest)  # made once, as that takes longer than to read a manifest


@dataclass(frozen=True)
class Cost:
    """The seconds that features took: for gradients, and for their projection."""

    gradients: float = 0.0
    projection: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.gradients + other.gradients, self.projection + other.projection)

    def __mul__(self, factor: float) -> "Cost":
        return Cost(self.gradients * factor, self.projection * factor)


class FeatureStore:
    """Features on disk. `create` opens or makes the store of a manifest; `open` opens a store that exists."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._checks = Checks(folder)
        self._readable: set[int] = set()  # shards that were found intact before, of which single rows may be read
        self._intact: dict[int, tuple[str, list[int]]] = {}  # checksums and rows of zeros, of this process

    @classmethod
    def create(cls, folder: Path, manifest: Manifest) -> "FeatureStore":
        """Open the store of a manifest, or make it. Refuse a store with another manifest."""
        path = folder / MANIFEST
        if not path.exists():
            write_json(path, asdict(manifest), once=True)
        found = cls.open(folder).manifest
        for field, wanted in asdict(manifest).items():
            there = getattr(found, field)
            if there != wanted:
                raise UsageError(
                    f"the features in {folder} were made with {field} {_short(there)}, not {_short(wanted)}: "
                    "give another cache folder, or remove this one"
                )
        return cls(folder, manifest)

    @classmethod
    def open(cls, folder: Path) -> "FeatureStore":
        """Open a store that exists, and check its manifest."""
        path = folder / MANIFEST
        try:
            manifest = MANIFESTS.validate_python(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UsageError(f"no features at {folder}: it has no manifest.json") from None
        except ValidationError as error:
            raise DtrakError(f"{path} is not the manifest of a feature store: {first_mistake(error)}") from None
        except (ValueError, OSError, RecursionError) as error:
            raise DtrakError(f"{path} is not the manifest of a feature store: {error}") from error
        if manifest.dtype not in DTYPES or manifest.rows < 1 or math.prod(manifest.shape) < 1:
            said = f"rows {manifest.rows}, dim {manifest.dim} and dtype {shortened(manifest.dtype)}"
            raise DtrakError(f"{path} is not the manifest of a feature store: it has {said}")
        return cls(folder, manifest)

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def dim(self) -> int:
        return self.manifest.dim

    @cached_property
    def shards(self) -> list[range]:
        """Return the rows of each shard."""
        rows = SHARD_ROWS
        if self.manifest.copies is not None:
            rows = max(1, min(rows, SHARD_BYTES // (4 * math.prod(self.manifest.shape))))
        return [range(start, min(start + rows, len(self))) for start in range(0, len(self), rows)]

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        """Yield all rows in order, or only the `wanted` ones, in blocks: (rows, float32 [b, k] or [b, C, k])."""
        wanted = range(len(self)) if wanted is None else wanted
        if not wanted:
            return
        in_shard = len(self.shards[0])
        end = (wanted.stop - 1) // in_shard + 1
        step = max(1, BLOCK_BYTES // (in_shard * math.prod(self.manifest.shape) * 4))
        for start in range(wanted.start // in_shard, end, step):
            part = range(start, min(start + step, end))
            rows = range(max(self.shards[part[0]].start, wanted.start), min(self.shards[part[-1]].stop, wanted.stop))
            yield rows, torch.cat([self._rows_of(index, rows) for index in part])

    def _rows_of(self, index: int, rows: range) -> Tensor:
        """Return those of a shard's rows that are in `rows`, float32."""
        there = self.shards[index]
        first, last = max(rows.start, there.start) - there.start, min(rows.stop, there.stop) - there.start
        return self._read_whole(index, slice(first, last))

    def at(self, rows: Sequence[int]) -> Tensor:
        """Return some rows in the given order, float32 [b, k] or [b, C, k]; only these are read of checked shards."""
        dtype, in_shard = DTYPES[self.manifest.dtype], len(self.shards[0])
        size = math.prod(self.manifest.shape) * dtype.itemsize
        content = bytearray(len(rows) * size)  # one piece of memory: a search reads a thousand rows
        for start, row in zip(range(0, len(content), size), rows, strict=True):
            self._read_row(*divmod(int(row), in_shard), memoryview(content)[start : start + size])
        return torch.frombuffer(content, dtype=dtype).reshape(len(rows), *self.manifest.shape).float()

    def _read_row(self, index: int, row: int, target: memoryview) -> None:
        """Read one row of a shard. A safetensors file begins with the length of its header; its tensor is behind."""
        if index not in self._readable:
            if self._checks.of(index, self._path(index)) is None:
                found = self._read_whole(index, slice(row, row + 1)).to(DTYPES[self.manifest.dtype])
                target[:] = found.flatten().view(torch.uint8).numpy().tobytes()
                return
            self._readable.add(index)
        try:
            file = os.open(f"{self.folder}/{_name(index)}", os.O_RDONLY)
            try:
                start = 8 + int.from_bytes(os.pread(file, 8, 0), "little")
                is_whole = os.preadv(file, [target], start + row * len(target)) == len(target)
            finally:
                os.close(file)
        except OSError:
            is_whole = False
        if not is_whole:
            raise self._damaged(index)

    def numpy(self) -> Any:
        """Return all rows at once, float32 [N, k] or [N, C, k]; only for small sets such as queries."""
        return torch.cat([features for _, features in self.blocks()]).numpy()

    def missing(self) -> list[int]:
        """Return the shards that do not exist or do not match their checksum."""
        found = [index for index in range(len(self.shards)) if not self.has(index)]
        self._checks.save()
        return found

    def has(self, index: int) -> bool:
        """Return whether a shard exists and is not damaged."""
        return self._checks.of(index, self._path(index)) is not None or self._read(index) is not None

    def left_out(self) -> list[int]:
        """Return the rows of skipped images. They are zeros: they add nothing to a kernel and score zero."""
        found = [rows.start + zero for index, rows in enumerate(self.shards) for zero in self._checked(index)[1]]
        self._checks.save()
        return found

    @property
    def digest(self) -> str:
        """Return 32 hexadecimal digits that change with any of the features."""
        found = digest([self._checked(index)[0] for index in range(len(self.shards))])
        self._checks.save()
        return found

    def write(self, index: int, features: Tensor) -> None:
        """Write one shard, float32 [b, k] or [b, C, k], in the store's dtype."""
        stored = features.to(DTYPES[self.manifest.dtype]).contiguous()
        if not stored.isfinite().all():
            raise DtrakError(
                f"features of {self.folder} overflow {self.manifest.dtype}: store them as bfloat16 or float32"
            )
        write_bytes(self._path(index), save({"features": stored}, {"checksum": _checksum(stored)}))

    @property
    def cost(self) -> Cost:
        """Return an estimate for all rows: the seconds per row, as last measured, times the number of rows."""
        try:
            kept = json.loads((self.folder / COST).read_text())
            return Cost(**{name: float(seconds) for name, seconds in kept.items()}) * len(self)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return Cost()

    def keep_cost(self, per_row: Cost) -> None:
        """Write down how many seconds a row took."""
        write_json(self.folder / COST, asdict(per_row))

    def lock(self, index: int) -> filelock.BaseFileLock:
        """Return the lock of a shard, which raises Timeout at once if another process holds it."""
        return filelock.FileLock(make_folder(self.folder / ".locks") / f"{index:05d}", blocking=False)

    def _path(self, index: int) -> Path:
        return self.folder / _name(index)

    def _checked(self, index: int) -> tuple[str, list[int]]:
        """Return the checksum and the rows of zeros of a shard; raise an error if it is missing or damaged."""
        known = self._checks.of(index, self._path(index))
        if known is not None:
            return known.checksum, [*known.zeros]
        self._intact.pop(index, None)
        self._read_whole(index)
        return self._intact[index]

    def _read(self, index: int, part: slice = EVERY_ROW) -> Tensor | None:
        """Return some rows of a shard, all of them if it is not checked yet; None if it is missing or damaged."""
        path = self._path(index)
        is_checked = index in self._intact or self._checks.of(index, path) is not None
        try:
            with safe_open(path, "pt") as file:
                stored = file.get_slice("features")
                shape = tuple(stored.get_shape())
                features: Tensor = stored[part if is_checked else EVERY_ROW]
                checksum = file.metadata()["checksum"]
        except (OSError, SafetensorError, KeyError, TypeError):
            return None
        if shape != (len(self.shards[index]), *self.manifest.shape) or features.dtype != DTYPES[self.manifest.dtype]:
            return None
        if is_checked:
            return features
        if checksum != _checksum(features):
            return None
        zeros = (~features.flatten(1).any(1)).nonzero().flatten().tolist()
        self._intact[index] = checksum, zeros
        self._checks.add(index, path, checksum, zeros)
        return features[part]

    def _read_whole(self, index: int, part: slice = EVERY_ROW) -> Tensor:
        """Return some rows of a shard in float32; raise an error if the shard is missing or damaged."""
        features = self._read(index, part)
        if features is None:
            raise self._damaged(index)
        return features.float()

    def _damaged(self, index: int) -> DtrakError:
        return DtrakError(f"{self._path(index)} is missing or damaged: run the command that made these features again")


def fill(
    stores: Sequence[FeatureStore],
    compute: Callable[[range], Tensor],
    advance: Callable[[int], None],
    share: Share | None = None,
) -> None:
    """Compute what is missing in stores of the same rows; `compute(rows)` returns float32 [stores, b, …, k].

    With a `share`, only the shards of that share are computed.

    A shard that another process is computing is left to it, and is computed here if that process dies. `advance` is
    called with the number of rows that did not need `compute`.
    """
    rows_of, missing = stores[0].shards, _begin(stores, advance, share)
    while missing:
        left_to_others = []
        for index in missing:
            with ExitStack() as locks:
                try:
                    for store in stores:
                        locks.enter_context(store.lock(index))
                except filelock.Timeout:
                    left_to_others.append(index)
                    continue
                if all(store.has(index) for store in stores):
                    advance(len(rows_of[index]))
                    continue
                features = compute(rows_of[index])
                for store, its_features in zip(stores, features, strict=True):
                    store.write(index, its_features)
        if len(left_to_others) == len(missing):
            time.sleep(0.2)
        missing = left_to_others


def fill_from(
    stores: Sequence[FeatureStore],
    compute: Callable[[list[range]], Iterable[tuple[range, Tensor | None]]],
    advance: Callable[[int], None],
) -> None:
    """Fill stores as `fill` does, from a `compute` that yields the missing shards in the order in which workers end.

    It yields None in place of features that a worker has written.
    """
    rows_of, missing = stores[0].shards, _begin(stores, advance)
    for rows, features in compute([rows_of[index] for index in missing]):
        if features is not None:
            write_rows(stores, rows, features)
        advance(len(rows))


def write_rows(stores: Sequence[FeatureStore], rows: range, features: Tensor) -> None:
    """Write the features of one shard, [stores, b, …, k], where they are missing."""
    index = rows.start // len(stores[0].shards[0])
    for store, its_features in zip(stores, features, strict=True):
        with store.lock(index).acquire(blocking=True):
            if not store.has(index):
                store.write(index, its_features)


def _begin(stores: Sequence[FeatureStore], advance: Callable[[int], None], share: Share | None = None) -> list[int]:
    """Return the shards that any of the stores lacks; call `advance` with the number of rows that all of them have."""
    _check_space(stores)
    rows_of = stores[0].shards
    wanted = range(len(rows_of)) if share is None else share.of(len(rows_of))
    missing = [index for index in wanted if not all(store.has(index) for store in stores)]
    advance(sum(len(rows_of[index]) for index in wanted) - sum(len(rows_of[index]) for index in missing))
    return missing


def _check_space(stores: Sequence[FeatureStore]) -> None:
    """Refuse to begin if the stores will not fit on the disk."""
    needed, free = 0, shutil.disk_usage(stores[0].folder).free
    for store in stores:
        written = sum(path.stat().st_size for path in store.folder.glob("shard-*.safetensors"))
        needed += store.manifest.bytes - written
        if needed > free:
            raise DtrakError(f"{store.folder} needs {needed / 1e6:,.0f} MB more, but its disk has {free / 1e6:,.0f} MB")


def _name(index: int) -> str:
    return f"shard-{index:05d}.safetensors"


def _checksum(features: Tensor) -> str:
    return hashlib.blake2b(features.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
