"""Keep fitted kernels on disk, beside their features, so that the next command opens them instead of fitting.

A fit is a folder with one .npy file for each array, which is mapped into memory, and `fit.json`. That file has a
fingerprint of everything that the fit depends on, the checksums of the arrays, and each λ that a rule found. If
something has changed or is damaged, the kernel is fitted again.
"""

import json
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtrak.contracts import Rows
from dtrak.errors import DtrakError
from dtrak.files import as_npy, whole_folder, write_bytes, write_json
from dtrak.kernels.ridge import Eigen, Gram, Ridge, is_quick_to_solve
from dtrak.noise import stable_hash
from dtrak.progress import say

VERSION = 1  # changes when the same features would be fitted in another way
FILE = "fit.json"

Fitted = TypeVar("Fitted", Gram, Eigen)


@dataclass(frozen=True, eq=False)
class KeptFit(Generic[Fitted]):
    """What is fitted once and then opened from its folder. Call it to get it."""

    folder: Path
    depends_on: Sequence[str]  # such as the digests of the features
    kind: type[Fitted]  # its fields are arrays and numbers
    fit: Callable[[], Fitted]

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change with anything that the fit depends on."""
        return f"{stable_hash(repr((VERSION, *self.depends_on))):016x}"

    def __call__(self) -> Fitted:
        """Open what was fitted, or fit it and keep it. A fit that cannot be written is used, but not kept."""
        found = self._opened()
        if found is not None:
            return found
        made = self.fit()
        try:
            with whole_folder(self.folder) as new:
                contents = {name: as_npy(np.asarray(value)) for name, value in vars(made).items()}
                for name, content in contents.items():
                    write_bytes(new / f"{name}.npy", content)
                checksums = {name: _checksum(content) for name, content in contents.items()}
                write_json(new / FILE, {"fingerprint": self.fingerprint, "arrays": checksums})
        except DtrakError as error:
            say(f"{error}; the fitted kernel is not kept")
            return made
        return self._opened() or made  # the same arrays as another command gets, in the same order in memory

    def damping(self, rule: str, find: Callable[[], float]) -> float:
        """Return the λ that a rule found for this fit. If it is not kept, find it and keep it."""
        kept = (self._description() or {}).get("dampings", {})
        if isinstance(kept, dict) and isinstance(kept.get(rule), float):
            return float(kept[rule])
        found = find()
        description = self._description()  # it may be there only now
        if description is not None:
            try:
                write_json(self.folder / FILE, {**description, "dampings": {**kept, rule: float(found)}})
            except DtrakError as error:
                say(f"{error}; the damping is not kept")
        return found

    def _description(self) -> dict[str, Any] | None:
        """Return what fit.json says; None if there is no fit or one of something else."""
        try:
            found = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            return found if found["fingerprint"] == self.fingerprint else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def _opened(self) -> Fitted | None:
        """Return what is in the folder; None if there is none that fits, or if it is damaged."""
        description = self._description()
        if description is None:
            return None
        try:
            found = {name: self._array(name, checksum) for name, checksum in description["arrays"].items()}
            values: dict[str, Any] = {name: one if one.ndim else one.item() for name, one in found.items()}
            return self.kind(**values)
        except (OSError, ValueError, TypeError, AttributeError, KeyError, EOFError):
            return None

    def _array(self, name: str, checksum: str) -> NDArray[Any]:
        """Map an array into memory; raise a ValueError if it is damaged."""
        path = self.folder / f"{name}.npy"
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if _checksum(content) != checksum:
                raise ValueError(f"{path} is damaged")
        # Copy on write, as torch warns about memory that cannot be written.
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
        return array


def kept_ridge(
    folder: Path, depends_on: Sequence[str], rows: Rows, one_damping: bool
) -> tuple[Callable[[], Ridge], KeptFit[Eigen]]:
    """Return the fit of a kernel to `rows`, and what keeps its eigenvectors; λ are kept there as well."""
    of_eigen = KeptFit(folder / "eigen", depends_on, Eigen, lambda: Eigen.of(Gram.of(rows), rows))
    of_gram = KeptFit(folder / "gram", depends_on, Gram, lambda: Gram.of(rows, inner=True))
    solves = one_damping and is_quick_to_solve(rows)
    return lambda: Ridge(rows, of_eigen, of_gram() if solves else None), of_eigen


def _checksum(content: bytes | mmap.mmap) -> str:
    return blake2b(content, digest_size=16).hexdigest()
