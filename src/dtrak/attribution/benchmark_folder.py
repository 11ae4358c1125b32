"""A benchmark folder keeps the losses of queries under retrained models, so that the models are not trained again.

The models were retrained on random subsets of the training images. The folder has these files:

- model/: the model to attribute; train.npz, validation.npz, generated.npz: images uint8 [N, H, W, C], labels [N]
- masks.npy: bool [M, N], which images each subset has
- losses.npy, generated_losses.npy: float32 [M, S, Q], L_Simple of each query under the models of S training seeds
- outputs/QUERIES-OBJECTIVE.npy: the same for other functions of the output, if they were kept
- retrained/subset-MMM-seed-S/: the models themselves, if they were kept; benchmark.json: how the folder was made
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
    """Return the file of the outputs of a kind of queries, for an objective."""
    return QUERIES[queries] if output == "simple" else f"outputs/{queries}-{output}.npy"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark folder; its files are read when they are needed."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> "Benchmark":
        """Open a folder; refuse it if it is not a benchmark."""
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
        """Return which training images each subset has, [M, N]."""
        masks = self._array("masks.npy")
        if masks.dtype != np.bool_ or masks.shape[1:] != (len(self.train),) or not len(masks):
            raise DtrakError(
                f"{self.folder / 'masks.npy'} is {masks.dtype} {list(masks.shape)}, "
                f"but must be bool [subsets, {len(self.train)}]"
            )
        return masks

    def queries(self, kind: str) -> Images:
        """Return the queries of a kind: `validation` or `generated`."""
        check_known("queries", kind, list(QUERIES))
        path = self.folder / f"{kind}.npz"
        if not path.exists():
            raise UsageError(f"{self.folder} has no {kind} queries: {path.name} is missing")
        return load_images(str(path))

    def losses(self, kind: str, output: str = "simple") -> NDArray[np.float32]:
        """Return the objective `output` of each query under each retrained model, [M, S, Q]."""
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
        """Return the outputs of images that are among the benchmark's queries, as means over seeds: [M, Q]."""
        known: dict[bytes, NDArray[np.float32]] = {}
        for kind in QUERIES:
            if (self.folder / f"{kind}.npz").exists():
                known |= zip(_contents(self.queries(kind)), self.losses(kind, output).mean(1).T, strict=True)
        columns = []
        for id_, content in zip(queries.ids, _contents(queries), strict=True):
            if content not in known:
                raise UsageError(
                    f"the losses of {id_} of {queries.source} under the retrained models are not in {self.folder}: "
                    "give queries from its files, " + " or ".join(f"{kind}.npz" for kind in QUERIES)
                )
            columns.append(known[content])
        return np.stack(columns, axis=1)

    def check_train(self, train: Images) -> None:
        """Refuse training images that are not the benchmark's, or that are in another order."""
        if train.shape != self.train.shape or _contents(train) != _contents(self.train):
            raise UsageError(f"{train.source} does not hold the training images of {self.folder}, in their order")

    @property
    def retrained(self) -> dict[int, Path]:
        """Return the folders of the retrained models that were kept, by subset; one for each subset."""
        found: dict[int, Path] = {}
        for path in sorted(self.folder.glob("retrained/subset-*-seed-*")):
            if match := re.fullmatch(r"subset-(\d+)-seed-\d+", path.name):
                found.setdefault(int(match[1]), path)
        return found

    @property
    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change with the subsets, the losses and the models that were kept."""
        digest = blake2b(self.masks.tobytes(), digest_size=8)
        for name in QUERIES.values():
            if (self.folder / name).exists():
                digest.update((self.folder / name).read_bytes())
        digest.update(repr(sorted(self.retrained)).encode())
        return digest.hexdigest()

    @property
    def training_seconds(self) -> float | None:
        """Return the mean seconds that the training of a model took; None if they were not kept."""
        kept = []
        for path in self.folder.glob("jobs/*.seconds"):
            with suppress(OSError, ValueError):  # a file that cannot be read counts as missing
                kept.append(float(path.read_text()))
        return float(np.mean(kept)) if kept and np.isfinite(kept).all() else None

    def _array(self, name: str) -> NDArray[Any]:
        """Read an array; raise an error that names the file if it is missing or damaged."""
        path = self.folder / name
        if not os.path.exists(path):
            raise UsageError(f"{self.folder} has no {name}")
        if not path.is_file():  # reading from a pipe could wait forever
            raise DtrakError(f"cannot read {path}: it is not a file")
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")  # fails if the file is shorter than its header says
            return np.array(mapped)
        except Exception as error:  # damaged headers raise errors of many kinds
            raise DtrakError(f"cannot read {path}: {error}") from error


def _contents(images: Images) -> list[bytes]:
    """Return a hash of each image's pixels, which equal images share."""
    return [blake2b(pixels.tobytes()).digest() for pixels in images.pixels(range(len(images)))]
