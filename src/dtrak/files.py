"""Write files that are either complete or missing, even if the process that writes them is killed.

Everything is written under a temporary name in the same folder, flushed to the disk, and renamed. If the path is a
link, its target is written; if it is a device or a pipe, the content is written into it. Neither is ever replaced.
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

# The message of safetensors around that of the system: Error while serializing: I/O error: … (os error 28)
SYSTEM_ERROR = re.compile(r".*I/O error: (.*) \(os error \d+\)")
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
MARKER = "made-by-dtrak.txt"  # marks a folder that dtrak made and may remove


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one line that says which path could not be written and why."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or SYSTEM_ERROR.sub(r"\1", str(error))
        raise DtrakError(f"cannot write {path}: {reason}") from error


def make_folder(path: Path) -> Path:
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def as_npy(array: "NDArray[Any]") -> bytes:
    """Return the content of an .npy file of the array."""
    import numpy as np

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
def kept_until_done(cache: Path | None, out: Path | None = None) -> Iterator[Path]:
    """Give the folder for features: `cache`, else one beside the output `out`, else a temporary one.

    The folder beside the output is removed when the work is done. After a kill it stays, and the next call continues
    from it.
    """
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
            if is_done or os.listdir(beside) == [MARKER]:  # it holds nothing to continue from
                _remove_marked(beside)
    else:
        with TemporaryDirectory() as temporary_folder:
            yield Path(temporary_folder)


def _mark(folder: Path) -> None:
    """Make a folder that dtrak may remove later; refuse one that dtrak has not made."""
    marker = folder / MARKER
    with write_errors(folder):
        is_ours = not folder.is_symlink() and (marker.is_file() or not folder.exists() or not any(folder.iterdir()))
    if not is_ours:
        raise UsageError(f"{folder} is not a folder that dtrak made: move it away, or give --cache FOLDER for features")
    write_text(marker, "dtrak removes this folder, with everything in it, when the scores are written.\n")


def _remove_marked(folder: Path) -> None:
    """Remove a folder, the marker last, so that after a kill the folder is still marked, or empty."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MARKER:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def is_stream(path: Path) -> bool:
    """Tell whether `path` can only be written into: a device, a pipe, or an open file such as standard output."""
    try:
        found = path.stat()
    except OSError:
        return False
    is_ordinary = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return not is_ordinary or DESCRIPTOR.fullmatch(str(path)) is not None or _standard_stream(path) is not None


def is_standard_output(path: Path) -> bool:
    """Tell whether `path` is another name of standard output."""
    return _standard_stream(path) == 1


def _standard_stream(path: Path) -> int | None:
    """Return the descriptor of standard output or standard error, if `path` is another name of it."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    return None


def _open_stream(path: Path) -> int:
    """Open a descriptor to write into; for a pipe, this waits for its reader."""
    numbered, standard = DESCRIPTOR.fullmatch(str(path)), _standard_stream(path)
    if standard is not None:
        sys.stdout.flush()
        return os.dup(standard)
    return os.dup(int(numbered[1])) if numbered else os.open(path, os.O_WRONLY)


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before hours of work for it."""
    with write_errors(path):
        if is_stream(path):
            _check_stream(path)
            return
        with temporary(_target_file(path)):
            pass


def check_not_read(out: Path, *inputs: str | Path | None) -> None:
    """Refuse to overwrite a file that the same command reads."""
    for path in inputs:
        with suppress(OSError, ValueError):
            if path is not None and not is_stream(out) and os.path.samefile(out, path):
                raise UsageError(f"{out} is also the input {path}: give another file to write")


def _check_stream(path: Path) -> None:
    if path.is_block_device():
        raise DtrakError(f"cannot write {path}: it is a disk, whose content would be lost")
    if not os.access(path, os.W_OK):
        raise DtrakError(f"cannot write {path}: Permission denied")


def _target(path: Path) -> Path:
    """Return the path itself, in a folder that is made if it is missing, or the target of a link."""
    if not path.is_symlink():
        make_folder(path.parent)
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise DtrakError(f"cannot write {path}: it is a link that leads back to itself")
    if not target.parent.is_dir():
        raise DtrakError(f"cannot write {path}: it is a link to {target}, whose folder does not exist")
    return target


def _target_file(path: Path) -> Path:
    target = _target(path)
    if target.is_dir():
        raise DtrakError(f"cannot write {path}: it is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise DtrakError(f"cannot write {path}: it is write-protected")
    return target


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; a device or a pipe is written into."""
    with write_errors(path):
        if is_stream(path):
            _check_stream(path)
            with open(_open_stream(path), "wb") as stream:
                stream.write(content)
            return
        target = _target_file(path)
        with temporary(target) as new:
            with open(new, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, new)
            os.replace(new, target)


def write_once(path: Path, text: str) -> None:
    """Write a file unless it exists already; of several processes, only the first writes it."""
    with write_errors(path):
        target = _target(path)
        with temporary(target) as new, suppress(FileExistsError):
            with open(new, "wb") as file:
                file.write(readable(text).encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(new, target)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, readable(text).encode())


def readable(text: str) -> str:
    """Replace bytes of a file name that are not text by \\udc80 …; JSON reads them back unchanged."""
    return text.encode(errors="backslashreplace").decode()


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it replaces `path` when the block ends without an error."""
    with write_errors(path):
        target = _target_folder(path)
        with temporary(target, is_folder=True) as new:
            yield new
            for file in new.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as written:
                        os.fsync(written.fileno())
            replace_folder(new, target)


def replace_folder(new: Path, path: Path) -> None:
    """Replace the folder `path`, or the one that it links to, by the folder `new` on the same disk."""
    with write_errors(path):
        target = _target_folder(path)
        old = temporary_name(target)
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _target_folder(path: Path) -> Path:
    target = _target(path)
    if target.exists() and not target.is_dir():
        raise DtrakError(f"cannot write {path}: it is not a folder")
    return target


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from working in `folder` during the block; the lock ends with its process."""
    import filelock

    lock = filelock.FileLock(make_folder(folder) / ".lock", blocking=False)
    with write_errors(folder):
        try:
            lock.acquire()
        except filelock.Timeout:
            raise DtrakError(f"another dtrak is at work in {folder}: wait until it has ended") from None
    try:
        yield
    finally:
        lock.release()


def full_name(source: str) -> str:
    """Return a path as one that is valid in any working folder; other names, such as hub ids, as they are."""
    return str(Path(source).resolve()) if os.path.exists(source) else source
