"""The store keeps rows on disk, one for each image: features, latents, embeddings, residuals.

A store is what its part says: plain values for everything that its rows depend on. Its folder NAME-FINGERPRINT holds

    part.json                  the part, and the number, the shape and the type of the rows
    rows.npy                   for each row, a hash of what it alone depends on: its image and its condition
    shard-00000.safetensors    a few dozen rows with their checksum; a shard is complete or missing
    checked.json, cost.json    which shards were found intact, and the seconds that a row took

A process computes a shard while it holds the lock of that shard; if the process dies, the lock is free. So a killed
command continues where it stopped, several processes can fill one store, and nobody reads a half-written file.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import filelock
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dtrak.checks import first_mistake
from dtrak.errors import DtrakError, UsageError
from dtrak.files import as_npy, make_folder, write_bytes, write_json, write_text
from dtrak.fingerprints import Facts, first_difference, hash_of

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PART, HASHES, CHECKED, COST = "part.json", "rows.npy", "checked.json", "cost.json"
SHARD_ROWS = 32  # a killed process loses no more rows than these
SHARD_BYTES = 32 << 20  # the size of the largest shard, unless a row is larger
BLOCK_BYTES = 64 << 20  # how much is read at a time
SETTLED = 50_000_000  # nanoseconds; a file that changed so recently may change again without a new time


@dataclass(frozen=True)
class Header:
    """The content of part.json."""

    part: dict[str, Any]
    rows: PositiveInt
    shape: tuple[PositiveInt, ...]
    dtype: Literal["float32", "float16", "bfloat16"]


HEADERS = TypeAdapter(Header)  # made once, as that takes longer than to read a file


class Check(NamedTuple):
    """What was found in an intact shard."""

    size: int  # of its file
    changed: int  # the times of the file's content and of its entry on the disk, in nanoseconds
    entered: int
    checksum: str
    zeros: list[int]  # the rows of images that were left out, counted from the first of the shard


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
    """Rows on disk, [N, *shape]. `create` opens or makes the store of a part; `open` opens a store that exists."""

    def __init__(self, folder: Path, header: Header) -> None:
        self.folder = folder
        self.part: Facts = header.part
        self.shape, self.dtype = header.shape, header.dtype
        self._header = header
        self._has_news = False  # whether there are checks that checked.json does not have yet

    @classmethod
    def create(
        cls,
        folder: Path,
        part: Facts,
        rows: int,
        shape: tuple[int, ...],
        dtype: str = "float32",
        hashes: NDArray[np.void] | None = None,
    ) -> "FeatureStore":
        """Open the store of a part, or make it. It is in `folder` with the fingerprint of the part behind its name.

        `hashes` [N] say what each row depends on, beside those facts that the part has for all of them. Facts of the
        images together stand in part["images"]. If two stores with the same `folder` differ in nothing else, rows with
        the same hash are the same, and `fill` copies them.
        """
        folder = folder.with_name(f"{folder.name}-{hash_of(part)}")
        path, wanted = folder / PART, {"part": dict(part), "rows": rows, "shape": list(shape), "dtype": dtype}
        if not path.exists():
            if hashes is not None:
                write_bytes(folder / HASHES, as_npy(hashes), once=True)
            write_json(path, wanted, once=True)
        store = cls.open(folder)
        if difference := first_difference(asdict(store._header), wanted):
            raise UsageError(f"the features in {folder} were made with another {difference}: remove this folder")
        return store

    @classmethod
    def open(cls, folder: Path) -> "FeatureStore":
        """Open a store that exists."""
        path = folder / PART
        try:
            return cls(folder, HEADERS.validate_python(json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            raise UsageError(f"no features at {folder}: it has no {PART}") from None
        except (ValueError, OSError, RecursionError) as error:
            reason = first_mistake(error) if isinstance(error, ValidationError) else error
            raise DtrakError(f"{path} is not the part of a store: {reason}") from error

    def __len__(self) -> int:
        return self._header.rows

    @property
    def dim(self) -> int:
        return self.shape[-1]

    @property
    def nbytes(self) -> int:
        """Return the size of all rows on the disk."""
        return len(self) * math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @cached_property
    def shards(self) -> list[range]:
        """Return the rows of each shard."""
        step = max(1, min(SHARD_ROWS, SHARD_BYTES // (4 * math.prod(self.shape))))
        return [range(start, min(start + step, len(self))) for start in range(0, len(self), step)]

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        """Yield all rows in order, or only the `wanted` ones, in blocks: (rows, float32 [b, *shape])."""
        wanted = range(len(self)) if wanted is None else wanted
        if not wanted:
            return
        in_shard = len(self.shards[0])
        end = (wanted.stop - 1) // in_shard + 1
        step = max(1, BLOCK_BYTES // (in_shard * math.prod(self.shape) * 4))
        for first in range(wanted.start // in_shard, end, step):
            there = [self.shards[index] for index in range(first, min(first + step, end))]
            rows = range(max(there[0].start, wanted.start), min(there[-1].stop, wanted.stop))
            cuts = (slice(max(rows.start - one.start, 0), rows.stop - one.start) for one in there)
            yield rows, torch.cat([self._rows(index, cut) for index, cut in enumerate(cuts, first)])

    def at(self, rows: Sequence[int]) -> Tensor:
        """Return some rows in the given order, float32 [b, *shape]; only these are read of checked shards."""
        found = torch.empty(len(rows), *self.shape, dtype=DTYPES[self.dtype])
        for row, target in zip(rows, found.view(torch.uint8).numpy().reshape(len(rows), -1), strict=True):
            self._read_row(*divmod(int(row), len(self.shards[0])), target)
        return found.float()

    def _read_row(self, index: int, row: int, target: NDArray[np.uint8]) -> None:
        """Read one row of a shard. A safetensors file begins with the length of its header; its tensor is behind."""
        if index in self._checks or self.has(index):
            with suppress(OSError), open(self._path(index), "rb", buffering=0) as file:
                start = 8 + int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
                if os.preadv(file.fileno(), [target.data], start + row * len(target)) == len(target):
                    return
        raise self._damaged(index)

    def numpy(self) -> NDArray[np.float32]:
        """Return all rows at once, float32 [N, *shape]; only for small sets such as queries."""
        return np.concatenate([features.numpy() for _, features in self.blocks()])

    def missing(self) -> list[int]:
        """Return the shards that do not exist or do not match their checksum."""
        found = [index for index in range(len(self.shards)) if not self.has(index)]
        self._save_checks()
        return found

    def has(self, index: int) -> bool:
        """Return whether a shard exists and is not damaged."""
        return self._check(index) is not None

    def left_out(self) -> list[int]:
        """Return the rows of skipped images. They are zeros: they add nothing to a kernel and score zero."""
        pairs = zip(self.shards, self._all_checks(), strict=True)
        return [rows.start + zero for rows, check in pairs for zero in check.zeros]

    @property
    def digest(self) -> str:
        """Return 32 hexadecimal digits that change with any of the rows."""
        checksums = "".join(check.checksum for check in self._all_checks())
        return hashlib.blake2b(checksums.encode(), digest_size=16).hexdigest()

    def write(self, index: int, features: Tensor) -> None:
        """Write one shard, float32 [b, *shape], in the store's dtype."""
        stored = features.to(DTYPES[self.dtype]).contiguous()
        if not stored.isfinite().all():
            raise DtrakError(f"features of {self.folder} overflow {self.dtype}: store them as bfloat16 or float32")
        write_bytes(self._path(index), save({"features": stored}, {"checksum": _checksum(stored)}))

    @property
    def cost(self) -> Cost:
        """Return an estimate for all rows: the seconds per row, as last measured, times the number of rows."""
        try:
            kept = json.loads((self.folder / COST).read_text())
            return Cost(**{name: float(seconds) for name, seconds in kept.items()}) * len(self)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return Cost()

    def lock(self, index: int) -> filelock.BaseFileLock:
        """Return the lock of a shard, which raises Timeout at once if another process holds it."""
        return filelock.FileLock(make_folder(self.folder / ".locks") / f"{index:05d}", blocking=False)

    def lent(self, rows: range) -> dict[int, Tensor]:
        """Return those of some rows that stores beside this one have, whose parts differ in nothing but the images."""
        found: dict[int, Tensor] = {}
        for store, place_of in self._lenders:
            for row in rows:
                place = place_of.get(self._hashes[row].tobytes())
                if row not in found and place is not None and store.has(place // len(store.shards[0])):
                    found[row] = store.at([place])[0]
        return found

    @cached_property
    def _lenders(self) -> list[tuple["FeatureStore", dict[bytes, int]]]:
        """The stores beside this one that may have its rows, with the place of each hash in them."""
        found = []
        for store in self.beside() if len(self._hashes) else ():
            mine, its = ({**one.part, "images": None} for one in (self, store))
            if (mine, self.shape, self.dtype) == (its, store.shape, store.dtype):
                found.append((store, {one.tobytes(): place for place, one in enumerate(store._hashes)}))
        return found

    def beside(self) -> Iterator["FeatureStore"]:
        """Yield the other stores in the same folder whose names differ only in their fingerprints."""
        for folder in self.folder.parent.iterdir():
            if folder != self.folder and folder.name.rpartition("-")[0] == self.folder.name.rpartition("-")[0]:
                with suppress(DtrakError):
                    yield FeatureStore.open(folder)

    @cached_property
    def _hashes(self) -> NDArray[np.void]:
        """What each row depends on, [N]; [0] if that is not known."""
        with suppress(OSError, ValueError, EOFError):
            found: NDArray[np.void] = np.load(self.folder / HASHES, allow_pickle=False)
            return found
        return np.empty(0, "V16")

    def _path(self, index: int) -> Path:
        return self.folder / f"shard-{index:05d}.safetensors"

    @cached_property
    def _checks(self) -> dict[int, Check]:
        """What was found in shards; checked.json keeps it, so that a large store is not read whole at every start."""
        try:
            kept = json.loads((self.folder / CHECKED).read_text(encoding="utf-8"))
            return {int(index): Check(*check) for index, check in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _check(self, index: int) -> Check | None:
        """Return what is in a shard; None if it is missing or damaged. It is read only if its file has changed."""
        path = self._path(index)
        try:
            found = os.stat(path)
            state = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if index in self._checks and self._checks[index][:3] == state:
                return self._checks[index]
            with safe_open(path, "pt") as file:
                features, checksum = file.get_tensor("features"), file.metadata()["checksum"]
        except (OSError, SafetensorError, KeyError, TypeError):
            return None
        is_ours = features.shape == (len(self.shards[index]), *self.shape) and features.dtype == DTYPES[self.dtype]
        if not is_ours or checksum != _checksum(features):
            return None
        check = Check(*state, checksum, (~features.reshape(len(features), -1).any(1)).nonzero().flatten().tolist())
        if time.time_ns() - max(state[1:]) > SETTLED:
            self._checks[index], self._has_news = check, True
        return check

    def _all_checks(self) -> list[Check]:
        """Return what is in each shard; raise an error if one is missing or damaged."""
        found = [self._check(index) for index in range(len(self.shards))]
        if None in found:
            raise self._damaged(found.index(None))
        self._save_checks()
        return [check for check in found if check is not None]

    def _save_checks(self) -> None:
        """Write down what was found in shards since the last time. Without the file, they are only checked again."""
        if self._has_news:
            lines = ",\n".join(f'"{index}": {json.dumps(check)}' for index, check in sorted(self._checks.items()))
            with suppress(DtrakError):
                write_text(self.folder / CHECKED, f"{{\n{lines}\n}}\n")
            self._has_news = False

    def _rows(self, index: int, part: slice) -> Tensor:
        """Return some rows of a shard in float32; raise an error if the shard is missing or damaged."""
        if self.has(index):
            with suppress(OSError, SafetensorError, KeyError), safe_open(self._path(index), "pt") as file:
                features: Tensor = file.get_slice("features")[part]
                return features.float()
        raise self._damaged(index)

    def _damaged(self, index: int) -> DtrakError:
        return DtrakError(f"{self._path(index)} is missing or damaged: run the command that made these features again")


def _checksum(features: Tensor) -> str:
    return hashlib.blake2b(features.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
