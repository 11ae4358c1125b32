"""Images in an .npz file, with their ids, labels and other columns.

An .npz file is a zip archive. If its images are not compressed, each is read from the file when it is needed.
Otherwise all of them are unpacked into memory.
"""

import math
import os
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.images.image_files import Found, FoundImages, Picture, digest_of, file_errors, opened, version_of
from dtrak.images.metadata import LARGEST_INT64

IMAGES = "images.npy"  # the member of the archive that holds the array `images`
LOCAL_HEADER = 30  # bytes before the name of a member of a zip file
OPEN_FILES = 4  # that a process keeps open
PROMPT_OR_SEED = ("prompt", "caption", "text", "seed")  # keys that a model's prompts or noise come from
RESERVED = ("images", "ids", "labels", "label_names")  # keys that are not columns


@dataclass(frozen=True)
class PixelRow:
    """A row of the array `images` of an .npz file, which any process that sees the file can read."""

    path: str
    row: int

    def __call__(self) -> NDArray[np.uint8]:
        return _rows(self.path, version_of(Path(self.path)))[self.row]


@lru_cache(OPEN_FILES)
def _rows(path: str, version: str) -> "StoredRows | NDArray[np.uint8]":
    """Open a file, or open it again if it has another version."""
    if (stored := stored_rows(path)) is not None:
        return stored
    with np.load(path, allow_pickle=False) as archive:
        images: NDArray[np.uint8] = archive["images"]
    return images if images.ndim == 4 else images[..., None]


@dataclass(frozen=True)
class StoredRows:
    """Images [N, H, W, C] that stand in a file one after the other; each is read when it is asked for.

    A file that is mapped into memory would end this process when it is cut off.
    """

    file: FileIO
    start: int
    inside: int  # where they begin in their member of the archive
    shape: tuple[int, ...]

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        size = math.prod(self.shape[1:])
        content = os.pread(self.file.fileno(), size, self.start + row * size)
        if len(content) < size:
            raise ValueError("the file ends before it")
        return np.frombuffer(content, dtype=np.uint8).reshape(self.shape[1:])


def stored_rows(path: str) -> StoredRows | None:
    """Return the images of an .npz file as they stand in it; None if all of them have to be read at once."""
    with zipfile.ZipFile(path) as archive:
        member = archive.NameToInfo.get(IMAGES)
        if member is None or member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            return None
        with archive.open(member) as images:
            shape, is_by_columns, dtype = read_header(images, member.file_size)
            inside = images.tell()
    if is_by_columns or not _are_pixels(shape, dtype) or 0 in shape[1:]:
        return None
    file = FileIO(path)
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER)  # the name and an extra field follow it, and then the content
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    start = member.header_offset + LOCAL_HEADER + name + extra + inside
    return StoredRows(file, start, inside, shape if len(shape) == 4 else (*shape, 1))


def npz_file(path: str) -> FoundImages:
    """Find the images of an .npz file; its checksums are compared."""
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is not an .npz file, or it is damaged")
    digests: list[bytes] = []
    with file_errors(path, UsageError):
        version, stored = version_of(Path(path)), stored_rows(path)
        arrays = _arrays(path, but=None if stored is None else "images")
        if stored is not None:  # all of them are read once
            with zipfile.ZipFile(path) as archive, archive.open(IMAGES) as file:
                file.read(stored.inside)
                for _ in range(stored.shape[0]):
                    content = file.read(math.prod(stored.shape[1:]))
                    digests.append(digest_of(np.frombuffer(content, dtype=np.uint8).reshape(stored.shape[1:])))
                file.read()  # at the end, zipfile compares the checksum

    def refuse(key: str, right: str) -> NoReturn:
        found = described(arrays[key]) if key in arrays else f"missing (there are: {', '.join(arrays)})"
        raise UsageError(f"{path}: {key!r} is {found}, but must be {right}")

    names, absolute = f"{path}, image", os.path.abspath(path)
    if stored is not None:
        header = opened(np.zeros(stored.shape[1:], dtype=np.uint8))
        pictures = [
            Picture(
                f"{names} {row}",
                PixelRow(path, row),
                PixelRow(absolute, row),
                Path(path),
                found=Found(version, header.mode, header.size, digest),
            )
            for row, digest in enumerate(digests)
        ]
    else:
        images = arrays.get("images")
        if images is None or not _are_pixels(images.shape, images.dtype):
            refuse("images", "uint8 [N, H, W] or [N, H, W, C] with C 1 or 3")
        if 0 in images.shape[1:]:
            refuse("images", "of at least one pixel each")
        pixels = np.ascontiguousarray(images if images.ndim == 4 else images[..., None])
        pictures = [Picture(f"{names} {row}", one, PixelRow(absolute, row)) for row, one in enumerate(pixels)]

    def one_per_image(key: str) -> NDArray[Any]:
        array = arrays[key]
        if array is None or array.shape != (len(pictures),) or array.dtype.kind not in "iuU":
            refuse(key, f"integers or strings [{len(pictures)}]")
        return widened(array, f"{path}: {key!r}")

    ids = one_per_image("ids") if "ids" in arrays else np.arange(len(pictures))
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        raise UsageError(f"{path}: 'ids' has {distinct[counts.argmax()]} more than once; every image needs its own id")
    columns = {key: a for key, a in arrays.items() if key not in RESERVED and a is not None and a.shape == ids.shape}
    for key in PROMPT_OR_SEED:
        if key in arrays and (key not in columns or columns[key].dtype.kind not in "iufU"):
            refuse(key, f"text or numbers [{len(pictures)}]")
    if "labels" in arrays:
        columns["label"] = labels = one_per_image("labels")
        if (label_names := arrays.get("label_names")) is not None:
            if label_names.ndim != 1 or label_names.dtype.kind != "U":
                refuse("label_names", "strings [L]")
            if labels.dtype.kind != "i" or not np.isin(labels, np.arange(len(label_names))).all():
                refuse(
                    "labels", f"integers from 0 to {len(label_names) - 1}, as there are {len(label_names)} label_names"
                )
            columns["label"] = label_names[labels]
    return FoundImages(ids, columns, pictures)


def _arrays(path: str, but: str | None) -> dict[str, NDArray[Any] | None]:
    """Read the arrays of a file by their keys, all but one of them.

    An array is None if it is none, or needs pickle, which could run foreign code.
    """
    arrays: dict[str, NDArray[Any] | None] = {}
    with np.load(path, allow_pickle=False) as archive:
        sizes = {member.filename.removesuffix(".npy"): member.file_size for member in archive.zip.infolist()}
        keys = [key for key in archive.files if key != but]
        needed, memory = sum(sizes[key] for key in keys), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            raise ValueError(f"its arrays take {needed:,} bytes, which is more memory than there is")
        for key in keys:
            if f"{key}.npy" in archive.zip.namelist():
                with archive.zip.open(f"{key}.npy") as member:
                    read_header(member, sizes[key])
            try:
                array = archive[key]
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                array = None
            arrays[key] = array if isinstance(array, np.ndarray) else None
    return arrays


def _are_pixels(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return dtype == np.uint8 and len(shape) >= 3 and shape[3:] in ((), (1,), (3,))


def read_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file of `size` bytes: the shape, whether it is stored by columns, and the type.

    Refuse one that does not fit the bytes after it: numpy would allocate the memory that it promises.
    """
    start, version = file.tell(), np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_by_columns, dtype = read(file)
    promised, left = math.prod(shape) * dtype.itemsize, size - (file.tell() - start)
    if not dtype.hasobject and (min(shape, default=0) < 0 or promised != left):
        raise ValueError(f"its header promises {promised:,} bytes, but {left:,} follow")
    return shape, is_by_columns, dtype


def widened(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Return integers as int64, other arrays unchanged; an error says with `what` where the array comes from."""
    if array.dtype.kind == "u" and array.max(initial=0) > LARGEST_INT64:
        raise UsageError(f"{what} holds {array.max()}, but integers must be below 2^63: give such ids as text")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def described(array: NDArray[Any] | None) -> str:
    """Describe an array by its type and shape, for an error message."""
    return "no plain array (it would need pickle)" if array is None else f"{array.dtype} {list(array.shape)}"
