"""Files that are there whole or not at all, whatever kills the process that writes them.

Everything is written under a temporary name in the same folder, flushed to the disk, and renamed.
"""

import io
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dtrak.errors import DtrakError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rust's safetensors wraps the system's words in its own: Error while serializing: I/O error: … (os error 28)
SYSTEM_ERROR = re.compile(r".*I/O error: (.*) \(os error \d+\)")


@contextmanager
def naming_the_path(path: Path) -> Iterator[None]:
    """Turn a failure of the disk into one line that says what could not be written and why."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or SYSTEM_ERROR.sub(r"\1", str(error))
        raise DtrakError(f"cannot write {path}: {reason}") from error


def temporary_name(path: Path) -> Path:
    """A name beside `path`, unique to this call, that no reader takes for the real thing."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def clear_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left of `name` in `folder`; only for who works there `alone_in` it."""
    for leftover in folder.glob(f".{name}.*.tmp"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


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
    elif out is not None:
        beside = out.with_name(f"{out.name}.features")
        yield beside
        shutil.rmtree(beside, ignore_errors=True)
    else:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)


def check_writable(path: Path) -> None:
    """Refuse, before hours of work, a path at which no file can be written in the end."""
    make_folder(path.parent)
    if path.is_dir():
        raise DtrakError(f"cannot write {path}: it is a folder")
    probe = temporary_name(path)
    with naming_the_path(path):
        probe.touch()
        probe.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; on failure nothing of it stays behind."""
    make_folder(path.parent)
    temporary = temporary_name(path)
    with naming_the_path(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_once(path: Path, text: str) -> None:
    """Write a file whole unless there is one already: of several processes, the first has its way."""
    make_folder(path.parent)
    temporary = temporary_name(path)
    with naming_the_path(path):
        try:
            temporary.write_text(text)
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it takes the place of `path` when the block ends without an error."""
    make_folder(path.parent)
    temporary = temporary_name(path)
    with naming_the_path(path):
        try:
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as written:
                        os.fsync(written.fileno())
            replace_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(new: Path, path: Path) -> None:
    """Let the folder `new` take the place of `path`."""
    with naming_the_path(path):
        old = temporary_name(path)
        if path.exists():
            path.rename(old)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)


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
