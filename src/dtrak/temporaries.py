"""Temporary files and folders: everything is written under a temporary name first, and leftovers are removed.

A process that writes holds a lock on its temporary file or folder, and a lock ends with its process. So any process may
remove what is not locked, even while others write into the same folder.
"""

import fcntl
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MANY = 500  # files of a folder
_writes_until_next: Counter[str] = Counter()  # by folder
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)


def temporary_name(path: Path) -> Path:
    """Return a new name beside `path` that no reader mistakes for the finished file."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def temporary(path: Path, is_folder: bool = False) -> Iterator[Path]:
    """Make a file or folder beside `path` that is locked during the block; after it, it is removed unless renamed."""
    _clear_now_and_then(path)
    found, lock = _locked(path, is_folder)
    try:
        yield found
    finally:
        _remove(found)
        os.close(lock)


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove from `folder` the temporary files of killed processes; if `name` is given, only those for that name."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = TEMPORARY.fullmatch(entry.name)
            if found and name in (None, found[1]) and not entry.is_symlink():
                _remove_unless_locked(Path(entry.path), entry.is_dir())


def _clear_now_and_then(path: Path) -> None:
    """Clear leftovers for this path; in a folder with many files, clear all of them, but only after as many writes.

    So the time of a write does not grow with the number of files beside it.
    """
    folder = os.path.abspath(path.parent)
    if _writes_until_next[folder] > 0:
        _writes_until_next[folder] -= 1
        return
    with suppress(OSError):
        count = sum(1 for _ in os.scandir(folder))
        clear_leftovers(path.parent, path.name if count <= MANY else None)
        _writes_until_next[folder] = count if count > MANY else 0


def clear_leftovers_below(folders: Iterable[Path]) -> None:
    """Call `clear_leftovers` for the folders and all folders inside them; links are not followed."""
    for folder in folders:
        for parent, _, _ in os.walk(folder):
            clear_leftovers(Path(parent))


def _locked(path: Path, is_folder: bool) -> tuple[Path, int]:
    """Make a temporary file or folder; return it with a descriptor that locks it until the descriptor is closed."""
    while True:
        found = temporary_name(path)
        if is_folder:
            found.mkdir()
        else:
            os.close(os.open(found, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            descriptor = _open(found, is_folder)
        except FileNotFoundError:  # another process removed it before it was locked
            continue
        with suppress(OSError):  # on disks without locks, `clear_leftovers` removes nothing either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if found.exists():
            return found, descriptor
        os.close(descriptor)


def _remove_unless_locked(path: Path, is_folder: bool) -> None:
    with suppress(OSError):
        descriptor = _open(path, is_folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        finally:
            os.close(descriptor)


def _open(path: Path, is_folder: bool) -> int:
    return os.open(path, os.O_RDONLY if is_folder else os.O_RDWR | os.O_NONBLOCK)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
