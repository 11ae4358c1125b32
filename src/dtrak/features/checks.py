"""Remember which shards of a store were found intact, so that a large store is not read whole whenever it is opened.

`checked.json` has for each shard the size and the times of its file, its checksum, and which of its rows are zeros. A
shard whose file has changed since then is read and checked again.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dtrak.errors import DtrakError
from dtrak.files import write_text

FILE = "checked.json"
SETTLED = 50_000_000  # nanoseconds; a file that changed so recently may change again without a new time


@dataclass(frozen=True)
class Check:
    """What was found in a shard."""

    size: int
    changed: tuple[int, int]  # the times of the file's content and of its entry on the disk, in nanoseconds
    checksum: str
    zeros: tuple[int, ...]  # the rows of skipped images, counted from the first of the shard


class Checks:
    """The shards of a store that were found intact."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_new = False

    def of(self, index: int, path: Path) -> Check | None:
        """Return what was found in a shard; None if it was not checked yet, or if its file has changed since."""
        found = self._found.get(index)
        with suppress(OSError):
            if found is not None and (found.size, found.changed) == _state(path):
                return found
        return None

    def add(self, index: int, path: Path, checksum: str, zeros: Sequence[int]) -> None:
        """Keep what was found in a shard."""
        with suppress(OSError):
            size, changed = _state(path)
            if time.time_ns() - max(changed) > SETTLED:
                self._found[index] = Check(size, changed, checksum, tuple(zeros))
                self._is_new = True

    def save(self) -> None:
        """Write down what was found since the last time. Without the file, shards are only checked again."""
        if self._is_new:
            lines = (
                f'"{index}": {json.dumps([one.size, *one.changed, one.checksum, one.zeros])}'
                for index, one in sorted(self._found.items())
            )
            with suppress(DtrakError):
                write_text(self.folder / FILE, "{\n" + ",\n".join(lines) + "\n}\n")
            self._is_new = False

    @cached_property
    def _found(self) -> dict[int, Check]:
        try:
            kept = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            return {
                int(index): Check(int(size), (int(content), int(entry)), str(checksum), tuple(map(int, zeros)))
                for index, (size, content, entry, checksum, zeros) in kept.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}


def digest(checksums: Sequence[str]) -> str:
    """Return 32 hexadecimal digits that change with the content of any shard."""
    return hashlib.blake2b("".join(checksums).encode(), digest_size=16).hexdigest()


def _state(path: Path) -> tuple[int, tuple[int, int]]:
    found = os.stat(path)
    return found.st_size, (found.st_mtime_ns, found.st_ctime_ns)
