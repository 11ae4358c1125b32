"""Images in an .npz file, with their ids, labels and other columns.

An .npz file is a zip archive. If its images are not compressed, each is read from the file when it is needed.
Otherwise all of them are unpacked into memory.
"""

import math
import os
import struct
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.images.image_files import Found, FoundImages, Picture, digest_of, file_errors, version_of
from dtrak.images.metadata import LARGEST_INT64

IMAGES = "images.npy"  # the member of the archive that holds the array `images`
OPEN_FILES = 4  # that a process keeps open
PROMPT_OR_SEED = ("prompt", "caption", "text", "seed")  # keys that a model's prompts or noise come from
RESERVED = ("images", "ids", "labels", "label_names")  # keys that are not columns


@dataclass(frozen=True)
class PixelRow:
    """Pixels that stand in a file, which any process that sees the file can read.

    A file that is mapped into memory would end this process if it is cut off.
    """

    path: str
    start: int
    shape: tuple[int, ...]  # (H, W, C)

    def __call__(self) -> NDArray[np.uint8]:
        file = _opened(self.path, version_of(Path(self.path)))
        content = os.pread(file.fileno(), math.prod(self.shape), self.start)
        if len(content) < math.prod(self.shape):
            raise ValueError("the file ends before it")
        return np.frombuffer(content, dtype=np.uint8).reshape(self.shape)


@lru_cache(OPEN_FILES)
def _opened(path: str, version: str) -> FileIO:
    return FileIO(path)


def npz_file(path: str) -> FoundImages:
    """Find the images of an .npz file, and read all the rest of it."""
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is not an .npz file, or it is damaged")
    arrays: dict[str, NDArray[Any] | None] = {}  # None if it is no array, or needs pickle, which could run foreign code
    with file_errors(path, UsageError), np.load(path, allow_pickle=False) as archive:
        pictures = _in_place(path, archive.zip)
        keys = [key for key in archive.files if pictures is None or key != "images"]
        sizes = {member.filename.removesuffix(".npy"): member.file_size for member in archive.zip.infolist()}
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

    def refuse(key: str, right: str) -> NoReturn:
        found = described(arrays[key]) if key in arrays else f"missing (there are: {', '.join(arrays)})"
        raise UsageError(f"{path}: {key!r} is {found}, but must be {right}")

    if pictures is None:
        images = arrays.get("images")
        if images is None or not _are_pixels(images.shape, images.dtype):
            refuse("images", "uint8 [N, H, W] or [N, H, W, C] with C 1 or 3")
        if 0 in images.shape[1:]:
            refuse("images", "of at least one pixel each")
        pixels = np.ascontiguousarray(images if images.ndim == 4 else images[..., None])
        pictures = [Picture(f"{path}, image {row}", one) for row, one in enumerate(pixels)]
    count = len(pictures)

    def one_per_image(key: str) -> NDArray[Any]:
        array = arrays[key]
        if array is None or array.shape != (count,) or array.dtype.kind not in "iuU":
            refuse(key, f"integers or strings [{count}]")
        return widened(array, f"{path}: {key!r}")

    ids = one_per_image("ids") if "ids" in arrays else np.arange(count)
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        raise UsageError(f"{path}: 'ids' has {distinct[counts.argmax()]} more than once; every image needs its own id")
    columns = {key: a for key, a in arrays.items() if key not in RESERVED and a is not None and a.shape == ids.shape}
    for key in PROMPT_OR_SEED:
        if key in arrays and (key not in columns or columns[key].dtype.kind not in "iufU"):
            refuse(key, f"text or numbers [{count}]")
    if "labels" in arrays:
        columns["label"] = labels = one_per_image("labels")
        if (names := arrays.get("label_names")) is not None:
            if names.ndim != 1 or names.dtype.kind != "U":
                refuse("label_names", "strings [L]")
            if labels.dtype.kind != "i" or not np.isin(labels, np.arange(len(names))).all():
                refuse("labels", f"integers from 0 to {len(names) - 1}, as there are {len(names)} label_names")
            columns["label"] = names[labels]
    return FoundImages(ids, columns, pictures)


def _in_place(path: str, archive: zipfile.ZipFile) -> list[Picture] | None:
    """Find the images in the file itself, and read them once; return None if they have to be unpacked."""
    member = archive.NameToInfo.get(IMAGES)
    if member is None or member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        return None
    absolute, version, pictures = os.path.abspath(path), version_of(Path(path)), list[Picture]()
    with archive.open(member) as file, open(path, "rb") as raw:
        whole, is_by_columns, dtype = read_header(file, member.file_size)
        if is_by_columns or not _are_pixels(whole, dtype) or 0 in whole[1:]:
            return None
        count, *shape = whole
        raw.seek(member.header_offset + 26)  # in the member's own header of 30 bytes before its name and extra field
        start = member.header_offset + 30 + sum(struct.unpack("<HH", raw.read(4))) + file.tell()
        height, width, channels = shape if len(shape) == 3 else (*shape, 1)
        for row in range(count):
            place = PixelRow(absolute, start + row * math.prod(shape), (height, width, channels))
            pixels = np.frombuffer(file.read(math.prod(shape)), dtype=np.uint8).reshape(place.shape)
            found = Found(version, "L" if channels == 1 else "RGB", (width, height), digest_of(pixels))
            pictures.append(Picture(f"{path}, image {row}", place, place, Path(path), found=found))
        file.read()  # at the end, zipfile compares the checksum
    return pictures


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
