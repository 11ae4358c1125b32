"""Keep fitted preconditioners on disk, beside their features, so that the next command opens them instead of fitting.

A fit is a folder with one .npy file for each array, which is mapped into memory, and `fit.json`. That file has a
fingerprint of everything that the fit depends on, the checksums of the arrays, and each λ that a rule found. If
something has changed or is damaged, the preconditioner is fitted again.
"""

import json
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError
from dtrak.files import as_npy, whole_folder, write_bytes, write_json
from dtrak.noise import stable_hash
from dtrak.progress import say

VERSION = 1  # changes when the same features would be fitted in another way
FILE = "fit.json"


class Keepable(Protocol):
    """What can be kept, such as a preconditioner: its arrays are all that was fitted."""

    def arrays(self) -> dict[str, NDArray[Any]]: ...


Fitted = TypeVar("Fitted", bound=Keepable)


@dataclass(frozen=True, eq=False)
class KeptFit(Generic[Fitted]):
    """A preconditioner, or its matrix, that is fitted once and then opened from its folder. Call it to get it."""

    folder: Path
    depends_on: Sequence[str]  # such as the digests of the features
    fit: Callable[[], Fitted]
    open: Callable[[Mapping[str, NDArray[Any]]], Fitted]

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
                contents = {name: as_npy(array) for name, array in made.arrays().items()}
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
            return self.open({name: self._array(name, checksum) for name, checksum in description["arrays"].items()})
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


def _checksum(content: bytes | mmap.mmap) -> str:
    return blake2b(content, digest_size=16).hexdigest()
