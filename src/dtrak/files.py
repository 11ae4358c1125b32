"""Write files and folders that are either complete or missing, even if the process that writes them is killed.

Everything is written under a temporary name in the same folder, flushed to the disk, and renamed. The name says which
process writes, so that any process can remove what a killed one has left. If the path is a link, its target is written;
if it exists and is no file, such as a device or a pipe, the content is written into it. Neither is ever replaced.
"""

import io
import itertools
import json
import os
import re
import shutil
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import filelock
from safetensors import SafetensorError

from dtrak.errors import DtrakError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEMPORARY = re.compile(r"\..+\.dtrak-([0-9a-f]{8})-(\d{1,9})-\d+\.tmp", re.DOTALL)
DAY = 86_400.0  # seconds after which a temporary file of another machine is a leftover
# The message of safetensors around that of the system: Error while serializing: I/O error: … (os error 28)
SYSTEM_ERROR = re.compile(r".*I/O error: (.*) \(os error \d+\)")
MARKER = "made-by-dtrak.txt"  # marks a folder that dtrak made and may remove
CONTAINER = Path("/proc/self/ns/pid")  # on Linux, the container in which processes have their numbers
_PLACE = f"{socket.gethostname()} {CONTAINER.stat().st_ino if CONTAINER.exists() else 0}"
MACHINE = f"{zlib.crc32(_PLACE.encode()):08x}"
_numbers = itertools.count()
_cleared: set[str] = set()  # folders from which this process has removed leftovers


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one line that says which path could not be written and why."""
    try:
        yield
    except OSError as error:
        raise DtrakError(f"cannot write {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        reason = SYSTEM_ERROR.sub(r"\1", str(error))
        raise DtrakError(f"cannot write {path}: {reason}") from error


def make_folder(path: Path) -> Path:
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Give a name beside `path` that no reader mistakes for it; what has it after the block is removed."""
    if (folder := os.path.abspath(path.parent)) not in _cleared:
        _cleared.add(folder)
        clear_leftovers(path.parent)
    new = path.with_name(f".{path.name}.dtrak-{MACHINE}-{os.getpid()}-{next(_numbers)}.tmp")
    try:
        yield new
    finally:
        _remove(new)


def clear_leftovers(folder: Path, below: bool = False) -> None:
    """Remove the temporary files of killed processes from a folder, or from all `below` it too; no link is followed."""
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            if (found := TEMPORARY.fullmatch(name)) and _is_left_over(Path(parent, name), found[1], int(found[2])):
                _remove(Path(parent, name))
        if not below:
            return


def _is_left_over(path: Path, machine: str, process: int) -> bool:
    """Tell whether the process that makes a temporary file has ended; of another machine, only its age is known."""
    try:
        if machine != MACHINE:
            return time.time() - path.lstat().st_mtime > DAY
        os.kill(process, 0)
    except PermissionError:  # it runs, as another user's
        return False
    except OSError:
        return True
    return False


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Tell whether `path` can only be written into, as a device or a pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _target(path: Path, is_folder: bool = False) -> Path:
    """Return the path itself, in a folder that is made if it is missing, or the target of a link."""
    target = path
    if path.is_symlink():
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise DtrakError(f"cannot write {path}: it is a link that leads back to itself")
        if not target.parent.is_dir():
            raise DtrakError(f"cannot write {path}: it is a link to {target}, whose folder does not exist")
    make_folder(target.parent)
    if target.exists() and target.is_dir() != is_folder:
        raise DtrakError(f"cannot write {path}: it is {'not ' if is_folder else ''}a folder")
    if target.is_file() and not os.access(target, os.W_OK):
        raise DtrakError(f"cannot write {path}: it is write-protected")
    return target


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before hours of work for it."""
    with write_errors(path):
        if not is_stream(path):
            with temporary(_target(path)) as new:
                new.touch()
        elif not os.access(path, os.W_OK):
            raise DtrakError(f"cannot write {path}: Permission denied")


def check_not_read(out: Path, *inputs: str | Path | None) -> None:
    """Refuse to overwrite a file that the same command reads."""
    for path in inputs:
        with suppress(OSError, ValueError):
            if path is not None and not is_stream(out) and os.path.samefile(out, path):
                raise UsageError(f"{out} is also the input {path}: give another file to write")


def write_bytes(path: Path, content: bytes, once: bool = False) -> None:
    """Write a file completely or not at all. With `once`, a file that exists stays as it is."""
    with write_errors(path):
        if is_stream(path):
            path.write_bytes(content)
            return
        target = _target(path)
        with temporary(target) as new:
            with open(new, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if once:
                with suppress(FileExistsError):
                    os.link(new, target)
                return
            if target.exists():
                shutil.copymode(target, new)
            os.replace(new, target)


def write_text(path: Path, text: str, once: bool = False) -> None:
    write_bytes(path, readable(text).encode(), once)


def write_json(path: Path, content: Any, once: bool = False) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", once)


def readable(text: str) -> str:
    """Replace bytes of a file name that are not text by \\udc80 …; JSON reads them back unchanged."""
    return text.encode(errors="backslashreplace").decode()


def as_npy(array: "NDArray[Any]") -> bytes:
    """Return the content of an .npy file of the array."""
    import numpy as np  # dtrak --help does without

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def as_npz(arrays: "Mapping[str, NDArray[Any]]") -> bytes:
    """Return the content of a compressed .npz file of the arrays."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it replaces `path` when the block ends without an error."""
    with write_errors(path), temporary(_target(path, is_folder=True)) as new:
        new.mkdir()
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
        replace_folder(new, path)


def replace_folder(new: Path, path: Path) -> None:
    """Replace the folder `path`, or the one that it links to, by the folder `new` on the same disk."""
    with write_errors(path):
        target = _target(path, is_folder=True)
        with temporary(target) as old:
            if target.exists():
                target.rename(old)
            try:
                new.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from working in `folder` during the block, and remove what killed ones have left there.

    The lock ends with its process.
    """
    lock = filelock.FileLock(make_folder(folder) / ".lock", blocking=False)
    with write_errors(folder):
        try:
            lock.acquire()
        except filelock.Timeout:
            raise DtrakError(f"another dtrak is at work in {folder}: wait until it has ended") from None
    try:
        clear_leftovers(folder, below=True)
        yield
    finally:
        lock.release()


@contextmanager
def kept_until_done(cache: Path | None, out: Path | None = None) -> Iterator[Path]:
    """Give the folder for features: `cache`, else one beside the output `out`, else a temporary one.

    The folder beside the output is removed when the work is done. After a kill it stays, and the next call continues
    from it.
    """
    if cache is not None:
        yield cache
    elif out is None or is_stream(out):
        with TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        beside = out.with_name(f"{out.name}.features")
        with write_errors(beside):
            is_free = (beside / MARKER).is_file() or not beside.exists() or not any(beside.iterdir())
        if beside.is_symlink() or not is_free:
            raise UsageError(
                f"{beside} is not a folder that dtrak made: move it away, or give --cache FOLDER for features"
            )
        write_text(beside / MARKER, "dtrak removes this folder, with everything in it, when the scores are written.\n")
        is_done = False
        try:
            yield beside
            is_done = True
        finally:
            if is_done or os.listdir(beside) == [MARKER]:  # it holds nothing to continue from
                with temporary(beside) as old, suppress(OSError):
                    beside.rename(old)


class Remembered(dict[str, Any]):
    """What was found in files, by their names, sizes and times, in a JSON file; without it, files are read again."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        with suppress(OSError, ValueError, TypeError, RecursionError):
            self.update(json.loads(path.read_text(encoding="utf-8")))
        self._kept = len(self)

    def save(self) -> None:
        """Write down what was found since the last time."""
        if len(self) != self._kept and self.path.parent.is_dir():
            with suppress(DtrakError):
                write_json(self.path, self)
            self._kept = len(self)


def full_name(source: str) -> str:
    """Return a path as one that is valid in any working folder; other names, such as hub ids, as they are."""
    return str(Path(source).resolve()) if os.path.exists(source) else source
