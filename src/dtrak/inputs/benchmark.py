"""A benchmark folder: what models retrained on random subsets made of some queries, so that nobody has to retrain them.

- model/: the model to attribute; train.npz, validation.npz, generated.npz: images uint8 [N, H, W, C], labels [N]
- masks.npy: bool [M, N], which images each subset has
- losses.npy, generated_losses.npy: float32 [M, S, Q], L_Simple of each query under the models of S training seeds
- outputs/QUERIES-OBJECTIVE.npy: the same for other functions of the output, where they were kept
- retrained/subset-MMM-seed-S/: the models themselves, where they were kept; benchmark.json: how it was made
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError, UsageError, check_known
from dtrak.images.images import Images, load_images

QUERIES = {"validation": "losses.npy", "generated": "generated_losses.npy"}


def losses_file(queries: str, output: str) -> str:
    """Where the outputs of a kind of queries lie, for an objective."""
    return QUERIES[queries] if output == "simple" else f"outputs/{queries}-{output}.npy"


@dataclass(frozen=True)
class Benchmark:
    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> "Benchmark":
        found = cls(Path(folder))
        for name in ("model", "train.npz", "masks.npy"):
            if not os.path.exists(found.folder / name):
                raise UsageError(f"{folder} is not a benchmark: it has no {name} (`dtrak evaluate lds RUN` makes one)")
        return found

    @cached_property
    def train(self) -> Images:
        return load_images(str(self.folder / "train.npz"))

    @cached_property
    def masks(self) -> NDArray[np.bool_]:
        """[M, N]."""
        masks = self._array("masks.npy")
        if masks.dtype != np.bool_ or masks.shape[1:] != (len(self.train),) or not len(masks):
            raise DtrakError(
                f"{self.folder / 'masks.npy'} is {masks.dtype} {list(masks.shape)}, "
                f"but must be bool [subsets, {len(self.train)}]"
            )
        return masks

    def queries(self, kind: str) -> Images:
        check_known("queries", kind, list(QUERIES))
        path = self.folder / f"{kind}.npz"
        if not path.exists():
            raise UsageError(f"{self.folder} has no {kind} queries: {path.name} is missing")
        return load_images(str(path))

    def losses(self, kind: str, output: str = "simple") -> NDArray[np.float32]:
        """[M, S, Q]: the objective `output` of each query under each retrained model."""
        check_known("queries", kind, list(QUERIES))
        name = losses_file(kind, output)
        losses = self._array(name)
        expected = (len(self.masks), len(self.queries(kind)))
        if losses.ndim != 3 or (losses.shape[0], losses.shape[2]) != expected or not losses.shape[1]:
            raise DtrakError(
                f"{self.folder / name} is {list(losses.shape)}, but must be [{expected[0]}, seeds, {expected[1]}]"
            )
        if losses.dtype.kind != "f":
            raise DtrakError(f"{self.folder / name} holds {losses.dtype}, but must hold float32")
        if not np.isfinite(losses).all():
            subset, seed, query = np.argwhere(~np.isfinite(losses))[0]
            raise DtrakError(
                f"{self.folder / name} is not finite for subset {subset}, seed {seed} and query {query}: make it again"
            )
        return losses

    def losses_of(self, queries: Images, output: str = "simple") -> NDArray[np.float32]:
        """[M, Q], the mean over seeds of the outputs of any images that are among the benchmark's queries."""
        known: dict[bytes, NDArray[np.float32]] = {}
        for kind in QUERIES:
            if (self.folder / f"{kind}.npz").exists():
                known |= zip(_contents(self.queries(kind)), self.losses(kind, output).mean(1).T, strict=True)
        columns = []
        for id_, content in zip(queries.ids, _contents(queries), strict=True):
            if content not in known:
                raise UsageError(
                    f"the losses of {id_} of {queries.source} under the retrained models are not in {self.folder}: "
                    "ask about its own queries, " + " or ".join(f"{kind}.npz" for kind in QUERIES)
                )
            columns.append(known[content])
        return np.stack(columns, axis=1)

    def check_train(self, train: Images) -> None:
        """Refuse training images other than the benchmark's own, in its order."""
        if train.shape != self.train.shape or _contents(train) != _contents(self.train):
            raise UsageError(f"{train.source} does not hold the training images of {self.folder}, in their order")

    @property
    def retrained(self) -> dict[int, Path]:
        """The folders of retrained models by subset, one of each, where they were kept."""
        found: dict[int, Path] = {}
        for path in sorted(self.folder.glob("retrained/subset-*-seed-*")):
            if match := re.fullmatch(r"subset-(\d+)-seed-\d+", path.name):
                found.setdefault(int(match[1]), path)
        return found

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the subsets, the losses and the models that were kept."""
        digest = blake2b(self.masks.tobytes(), digest_size=8)
        for name in QUERIES.values():
            if (self.folder / name).exists():
                digest.update((self.folder / name).read_bytes())
        digest.update(repr(sorted(self.retrained)).encode())
        return digest.hexdigest()

    @property
    def training_seconds(self) -> float | None:
        """The mean over retrained models of what their training took, where that was kept."""
        kept = []
        for path in self.folder.glob("jobs/*.seconds"):
            with suppress(OSError, ValueError):  # one that cannot be read is one that was not kept
                kept.append(float(path.read_text()))
        return float(np.mean(kept)) if kept and np.isfinite(kept).all() else None

    def _array(self, name: str) -> NDArray[Any]:
        path = self.folder / name
        if not os.path.exists(path):
            raise UsageError(f"{self.folder} has no {name}")
        if not path.is_file():  # a pipe would be waited for
            raise DtrakError(f"cannot read {path}: it is not a file")
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")  # which promises no more than the file has
            return np.array(mapped)
        except Exception as error:  # damaged heads raise all kinds
            raise DtrakError(f"cannot read {path}: {error}") from error


def _contents(images: Images) -> list[bytes]:
    """What tells one picture from another, for each."""
    return [blake2b(pixels.tobytes()).digest() for pixels in images.pixels(range(len(images)))]
