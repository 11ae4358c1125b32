"""Files that are there whole or not at all, whatever kills the process that writes them.

Everything is written under a temporary name in the same folder, flushed to the disk, and renamed. A link is written
through to its target, and a device or a pipe is written into: neither is ever replaced.
"""

import io
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dtrak.errors import DtrakError, UsageError
from dtrak.temporaries import clear_leftovers as clear_leftovers
from dtrak.temporaries import temporary, temporary_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rust's safetensors wraps the system's words in its own: Error while serializing: I/O error: … (os error 28)
SYSTEM_ERROR = re.compile(r".*I/O error: (.*) \(os error \d+\)")
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
MARKER = "made-by-dtrak.txt"  # in a folder that is removed when it has served


@contextmanager
def naming_the_path(path: Path) -> Iterator[None]:
    """Turn a failure of the disk into one line that says what could not be written and why."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or SYSTEM_ERROR.sub(r"\1", str(error))
        raise DtrakError(f"cannot write {path}: {reason}") from error


def make_folder(path: Path) -> Path:
    with naming_the_path(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def as_npy(array: "NDArray[Any]") -> bytes:
    """What an .npy file of the array holds."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def as_npz(arrays: "Mapping[str, NDArray[Any]]") -> bytes:
    """What a compressed .npz file of the arrays holds."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


@contextmanager
def kept_until_done(cache: Path | None, out: Path | None = None) -> Iterator[Path]:
    """The folder that the user gave; or one beside the output, which a kill leaves there to go on from."""
    if cache is not None:
        yield cache
    elif out is not None and not is_stream(out):
        beside = out.with_name(f"{out.name}.features")
        _mark(beside)
        is_done = False
        try:
            yield beside
            is_done = True
        finally:
            if is_done or os.listdir(beside) == [MARKER]:  # nothing in there to go on from
                _remove_marked(beside)
    else:
        with TemporaryDirectory() as temporary_folder:
            yield Path(temporary_folder)


def _mark(folder: Path) -> None:
    """Make a folder that this program may remove again; refuse one that someone else has made."""
    marker = folder / MARKER
    with naming_the_path(folder):
        is_ours = not folder.is_symlink() and (marker.is_file() or not folder.exists() or not any(folder.iterdir()))
    if not is_ours:
        raise UsageError(f"{folder} is not a folder that dtrak made: move it away, or give --cache FOLDER for features")
    write_text(marker, "dtrak removes this folder, and all that is in it, when the scores are written.\n")


def _remove_marked(folder: Path) -> None:
    """Remove a folder, its marker last: a kill leaves one that is still marked, or empty."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MARKER:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def is_stream(path: Path) -> bool:
    """Whether `path` can only be written into: a device, a pipe, or an open file such as standard output."""
    try:
        found = path.stat()
    except OSError:
        return False
    is_ordinary = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return not is_ordinary or DESCRIPTOR.fullmatch(str(path)) is not None or _standard(path) is not None


def is_standard_output(path: Path) -> bool:
    """Whether what is written to `path` goes where a command prints."""
    return _standard(path) == 1


def _standard(path: Path) -> int | None:
    """The descriptor of standard output or standard error, if `path` is another name of it."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    return None


def _open_stream(path: Path) -> int:
    """A descriptor to write into; a pipe waits for its reader."""
    numbered, standard = DESCRIPTOR.fullmatch(str(path)), _standard(path)
    if standard is not None:
        sys.stdout.flush()
        return os.dup(standard)
    return os.dup(int(numbered[1])) if numbered else os.open(path, os.O_WRONLY)


def check_writable(path: Path) -> None:
    """Refuse, before hours of work, a path at which no file can be written in the end."""
    with naming_the_path(path):
        if is_stream(path):
            _check_stream(path)
            return
        with temporary(_place_of_file(path)):
            pass


def check_not_read(out: Path, *inputs: str | Path | None) -> None:
    """Refuse to write over what the same command reads."""
    for one in inputs:
        with suppress(OSError, ValueError):
            if one is not None and not is_stream(out) and os.path.samefile(out, one):
                raise UsageError(f"{out} is what is read as {one}: give another file to write")


def _check_stream(path: Path) -> None:
    if path.is_block_device():
        raise DtrakError(f"cannot write {path}: it is a disk, whose content would be lost")
    if not os.access(path, os.W_OK):
        raise DtrakError(f"cannot write {path}: Permission denied")


def _place(path: Path) -> Path:
    """Where `path` is written, in a folder that is there: at the end of a link, or at the path itself."""
    if not path.is_symlink():
        make_folder(path.parent)
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise DtrakError(f"cannot write {path}: it is a link that leads back to itself")
    if not target.parent.is_dir():
        raise DtrakError(f"cannot write {path}: it is a link to {target}, whose folder does not exist")
    return target


def _place_of_file(path: Path) -> Path:
    place = _place(path)
    if place.is_dir():
        raise DtrakError(f"cannot write {path}: it is a folder")
    if place.exists() and not os.access(place, os.W_OK):
        raise DtrakError(f"cannot write {path}: it is write-protected")
    return place


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; on failure nothing of it stays behind. A device or a pipe is written into."""
    with naming_the_path(path):
        if is_stream(path):
            _check_stream(path)
            with open(_open_stream(path), "wb") as stream:
                stream.write(content)
            return
        place = _place_of_file(path)
        with temporary(place) as new:
            with open(new, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if place.exists():
                shutil.copymode(place, new)
            os.replace(new, place)


def write_once(path: Path, text: str) -> None:
    """Write a file whole unless there is one already: of several processes, the first has its way."""
    with naming_the_path(path):
        place = _place(path)
        with temporary(place) as new, suppress(FileExistsError):
            with open(new, "wb") as file:
                file.write(readable(text).encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(new, place)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, readable(text).encode())


def readable(text: str) -> str:
    """The same with \\udc80 … for bytes of a file's name that are no text; JSON reads them back as they were."""
    return text.encode(errors="backslashreplace").decode()


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it takes the place of `path` when the block ends without an error."""
    with naming_the_path(path):
        place = _place_of_folder(path)
        with temporary(place, is_folder=True) as new:
            yield new
            for file in new.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as written:
                        os.fsync(written.fileno())
            replace_folder(new, place)


def replace_folder(new: Path, path: Path) -> None:
    """Let the folder `new`, on the same disk, take the place of `path`, or of the folder that it is a link to."""
    with naming_the_path(path):
        place = _place_of_folder(path)
        old = temporary_name(place)
        if place.exists():
            place.rename(old)
        try:
            new.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _place_of_folder(path: Path) -> Path:
    place = _place(path)
    if place.exists() and not place.is_dir():
        raise DtrakError(f"cannot write {path}: it is not a folder")
    return place


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from working in `folder` as long as the block lasts; a lock dies with its process."""
    import filelock

    lock = filelock.FileLock(make_folder(folder) / ".lock", blocking=False)
    with naming_the_path(folder):
        try:
            lock.acquire()
        except filelock.Timeout:
            raise DtrakError(f"another dtrak is at work in {folder}: wait until it has ended") from None
    try:
        yield
    finally:
        lock.release()
