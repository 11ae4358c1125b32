"""Read single images of sources that hold many, in any process that can open the source by its name.

A worker gets the name of the source and the row of an image, and reads that row alone. It opens each source once.
"""

import math
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.images.pictures import regular

OPEN_SOURCES = 4  # that a process keeps open
IMAGES = "images.npy"  # the member of an .npz file that holds the array `images`
LOCAL_HEADER = 30  # bytes before the name of a member of a zip file


@dataclass(frozen=True)
class PixelRow:
    """A row of the array `images` of an .npz file."""

    path: str
    row: int

    def __call__(self) -> NDArray[np.uint8]:
        state = os.stat(self.path)
        return _pixel_rows(self.path, (state.st_ino, state.st_mtime_ns, state.st_size)).read(self.row)


@dataclass(frozen=True)
class HubRow:
    """The image in a row of hf:name:split."""

    source: str
    row: int

    def __call__(self) -> bytes:
        return _hub_rows(self.source)(self.row)


class PixelRows:
    """The array `images` of an .npz file, of which single rows are read.

    The file stays open, so its rows can be read even after it was renamed. Of a compressed array, everything before a
    row has to be unpacked, so rows are best read in their order.
    """

    def __init__(self, path: str) -> None:
        self._file, self._lock = FileIO(path), Lock()
        with zipfile.ZipFile(self._file) as archive:
            member = archive.getinfo(IMAGES)
            self._stream = archive.open(member)  # stays open when the archive is closed
        shape, is_by_columns, _ = read_header(self._stream)
        if is_by_columns:
            raise ValueError("its array 'images' is stored by columns")
        self.shape = shape if len(shape) == 4 else (*shape, 1)
        self._start = self._stream.tell()  # where rows begin in the member
        self._in_file = _place(self._file, member) if member.compress_type == zipfile.ZIP_STORED else None

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, row: int) -> NDArray[np.uint8]:
        """Return the pixels [H, W, C] of a row."""
        size = math.prod(self.shape[1:])
        at = self._start + row * size
        if self._in_file is not None:
            content = os.pread(self._file.fileno(), size, self._in_file + at)
        else:
            with self._lock:
                self._stream.seek(at)
                content = self._stream.read(size)
        if len(content) < size:
            raise ValueError("the file ends before it")
        return np.frombuffer(content, dtype=np.uint8).reshape(self.shape[1:])


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file: the shape, whether the array is stored by columns, and the type."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_by_columns, dtype = read(file)
    return shape, is_by_columns, dtype


def _place(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Return where in an archive the content of a member begins: after its header, its name and an extra field."""
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER)
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return member.header_offset + LOCAL_HEADER + name + extra


@lru_cache(OPEN_SOURCES)
def _pixel_rows(path: str, state: tuple[int, int, int]) -> PixelRows:
    """Open a file; it is opened again if its `state` on the disk has changed."""
    return PixelRows(path)


@lru_cache(OPEN_SOURCES)
def _hub_rows(source: str) -> Callable[[int], bytes]:
    import datasets

    name, _, split = source.removeprefix("hf:").rpartition(":")
    dataset = datasets.load_dataset(name, split=split)
    return encoded_rows(dataset, image_columns(dataset.features, source)[0])


def image_columns(features: Mapping[str, Any], source: str) -> list[str]:
    """Return the columns of a data set of Hugging Face that hold images."""
    import datasets

    found = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    if not found:
        raise UsageError(f"{source!r} has no image column, only {', '.join(features)}")
    return found


def encoded_rows(dataset: Any, column: str) -> Callable[[int], bytes]:
    """Return a function that reads the encoded image of a row."""
    import datasets

    encoded = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    return lambda row: encoded_image(encoded[row][column])


def encoded_image(cell: Mapping[str, Any] | None) -> bytes:
    """Return the encoded image of a cell, which has its bytes or the path of its file."""
    if cell is None:
        raise ValueError("it has no image")
    content: bytes | None = cell["bytes"]
    return regular(Path(cell["path"])).read_bytes() if content is None else content
