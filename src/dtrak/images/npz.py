"""Images in an .npz file, with their ids, labels and other columns.

An .npz file is a zip archive. If its images are not compressed, each is read from the file when it is needed.
Otherwise all of them are unpacked into memory.
"""

import math
import os
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.images.found import FoundImages
from dtrak.images.metadata import LARGEST_INT64
from dtrak.images.pictures import DIGEST, Content, Picture, digest_of, file_errors
from dtrak.images.rows import IMAGES, PixelRow, PixelRows, read_header

PROMPT_OR_SEED = ("prompt", "caption", "text", "seed")  # keys that a model's prompts or noise come from
RESERVED = ("images", "ids", "labels", "label_names")  # keys that are not columns


def npz_file(path: str) -> FoundImages:
    """Find the images of an .npz file."""
    arrays, rows, digests = _opened(path)

    def refuse(key: str, right: str) -> NoReturn:
        found = described(arrays[key]) if key in arrays else f"missing (there are: {', '.join(arrays)})"
        raise UsageError(f"{path}: {key!r} is {found}, but must be {right}")

    def all_in_memory() -> NDArray[np.uint8]:
        array = arrays.get("images")
        if array is None or not _are_pixels(array.shape, array.dtype):
            refuse("images", "uint8 [N, H, W] or [N, H, W, C] with C 1 or 3")
        if 0 in array.shape[1:]:
            refuse("images", "of at least one pixel each")
        return array

    images = all_in_memory() if rows is None else rows
    count = images.shape[0]

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
        columns["label"] = one_per_image("labels")
        names = arrays.get("label_names")
        if names is not None:
            if names.ndim != 1 or names.dtype.kind != "U":
                refuse("label_names", "strings [L]")
            labels = columns["label"]
            if labels.dtype.kind != "i" or not np.isin(labels, np.arange(len(names))).all():
                refuse("labels", f"integers from 0 to {len(names) - 1}, as there are {len(names)} label_names")
            columns["label"] = names[labels]
    return FoundImages(ids, columns, _pictures(path, images), digests)


def _pictures(path: str, images: NDArray[np.uint8] | PixelRows) -> list[Picture]:
    """Make N pictures of pixels [N, H, W] or [N, H, W, C].

    Other processes read each from the file, unless an array by columns has no image in one piece.
    """
    absolute, by_rows = os.path.abspath(path), True
    if isinstance(images, PixelRows):
        places: Iterable[Content | Callable[[], Content]] = (partial(images.read, row) for row in range(len(images)))
    else:
        places, by_rows = images if images.ndim == 4 else images[..., None], images.flags.c_contiguous
    return [
        Picture(f"{path}, image {row}", place, PixelRow(absolute, row) if by_rows else None)
        for row, place in enumerate(places)
    ]


def _opened(path: str) -> tuple[dict[str, NDArray[Any] | None], PixelRows | None, NDArray[np.void] | None]:
    """Read the arrays by key, but for images that can be read one by one: these and their digests are returned apart.

    An array is None if it is not an array, or needs pickle, which could run foreign code.
    """
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is not an .npz file, or it is damaged")
    arrays: dict[str, NDArray[Any] | None] = {}
    with file_errors(path, UsageError), np.load(path, allow_pickle=False) as archive:
        images, digests = _in_place(path, archive.zip)
        keys = [key for key in archive.files if images is None or key != "images"]
        sizes = {member.filename.removesuffix(".npy"): member.file_size for member in archive.zip.infolist()}
        needed = sum(sizes[key] for key in keys)
        if needed > _memory():
            raise ValueError(f"its arrays take {needed:,} bytes, which is more memory than there is")
        for key in keys:
            if f"{key}.npy" in archive.zip.namelist():
                with archive.zip.open(f"{key}.npy") as member:
                    check_header(member, sizes[key])
            try:
                array = archive[key]
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                array = None
            arrays[key] = array if isinstance(array, np.ndarray) else None
    return arrays, images, digests


def _in_place(path: str, archive: zipfile.ZipFile) -> tuple[PixelRows, NDArray[np.void]] | tuple[None, None]:
    """Return images that can be read one by one, as they are not compressed, and their digests [N].

    Return None if all have to be read at once.
    """
    if IMAGES not in archive.namelist():
        return None, None
    member = archive.getinfo(IMAGES)
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        return None, None
    with archive.open(member) as file:
        check_header(file, member.file_size)
        shape, is_by_columns, dtype = read_header(file)
    if is_by_columns or not _are_pixels(shape, dtype) or 0 in shape[1:]:
        return None, None
    digests, size = np.empty(shape[0], dtype=DIGEST), math.prod(shape[1:])
    with archive.open(member) as file:
        read_header(file)
        for row in range(shape[0]):
            digests[row] = digest_of(file.read(size))
        file.read()  # at the end, zipfile compares the checksum
    return PixelRows(path), digests


def _are_pixels(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return dtype == np.uint8 and len(shape) >= 3 and shape[3:] in ((), (1,), (3,))


def check_header(file: IO[bytes], size: int) -> None:
    """Refuse an .npy file of `size` bytes whose header does not fit the number of bytes after it.

    numpy would allocate the memory that the header promises before it reads the data. The file is rewound.
    """
    start = file.tell()
    shape, _, dtype = read_header(file)
    promised = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and (min(shape, default=0) < 0 or promised != size - (file.tell() - start)):
        raise ValueError(f"its header promises {promised:,} bytes, but {size - (file.tell() - start):,} follow")
    file.seek(start)


def _memory() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def widened(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Return integers as int64, other arrays unchanged; an error says with `what` where the array comes from."""
    if array.dtype.kind == "u" and array.max(initial=0) > LARGEST_INT64:
        raise UsageError(f"{what} holds {array.max()}, but integers must be below 2^63: give such ids as text")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def described(array: NDArray[Any] | None) -> str:
    """Describe an array by its type and shape, for an error message."""
    return "no plain array (it would need pickle)" if array is None else f"{array.dtype} {list(array.shape)}"
