"""Images that Python code already has: tensors, arrays, PIL images, and data sets of torch and Hugging Face.

    uint8                      pixels as they are
    float, some below 0        in [−1, 1]
    float, none below 0        in [0, 1]

Which of these was found is printed. Arrays are [N, H, W, C] or [N, H, W], tensors [N, C, H, W] as well; the side of
length 1 or 3 is that of the channels. All images are kept with 8 bits for each channel.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dtrak.errors import UsageError
from dtrak.images.found import FoundImages
from dtrak.images.images import Images, collected, load_images
from dtrak.images.metadata import column_of
from dtrak.images.pictures import Picture, transformed
from dtrak.images.sources import found_in_dataset
from dtrak.progress import say

IMAGE_KEYS = ("image", "images", "img", "pixel_values")  # the names of images in the rows of data sets
LABELS = {"labels": "label", "fine_label": "label"}  # columns that have another name here
KINDS = "give a folder, an .npz file, a tensor, an array, a list of PIL images, or a data set"


def images_from(data: Any, *, name: str = "images", **columns: Any) -> Images:
    """Make images of what Python code has, with one value per image in each of the columns: label=[…], caption=[…].

    `name` is what error messages and progress call them.

    >>> import dtrak, numpy
    >>> dtrak.images_from(numpy.zeros((4, 8, 8, 3), numpy.uint8), name="mine", artist=["a", "b", "a", "b"])
    Images from mine: 4 of 8 × 8 pixels, colour
    columns: artist
    """
    made = _images(data, name)
    if not columns:
        return made
    found = {key: _column(values, f"{name}: {key}", len(made)) for key, values in columns.items()}
    from dataclasses import replace

    return replace(made, columns={**made.columns, **found})


def _images(data: Any, name: str) -> Images:
    if isinstance(data, Images):
        return data
    if isinstance(data, str | Path):
        return load_images(str(data))
    if _is_hugging_face(data):
        return collected(found_in_dataset(data, name), name)
    if isinstance(data, Mapping):
        key = next((key for key in IMAGE_KEYS if key in data), None)
        if key is None:
            raise UsageError(
                f"{name}: a mapping needs images, {KINDS}; it has {', '.join(map(str, data)) or 'nothing'}"
            )
        others = {LABELS.get(str(column), str(column)): values for column, values in data.items() if column != key}
        return images_from(data[key], name=name, **others)
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        return _of_pixels(_pixels(data, name), {}, name)
    is_table = type(data).__module__.partition(".")[0] == "pandas"  # its columns, not its rows, have numbers
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not is_table:
        return _of_rows(data, name)
    raise UsageError(f"{name} is a {type(data).__name__}: {KINDS}")


def _is_hugging_face(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "features")


def _of_rows(data: Any, name: str) -> Images:
    """Make images of a list, or of a data set whose rows are images, pairs (image, label), or dictionaries."""
    if not len(data):
        raise UsageError(f"{name} holds no images")
    rows = [data[row] for row in range(len(data))]
    columns: dict[str, list[Any]] = {}
    found = []
    for number, row in enumerate(rows):
        image, others = _row(row, f"{name}, row {number}")
        found.append(image)
        for key, value in others.items():
            columns.setdefault(key, [None] * len(rows))[number] = value.item() if hasattr(value, "item") else value
    if all(isinstance(one, Image.Image) for one in found):
        return _of_pictures(found, columns, name)
    if any(isinstance(one, Image.Image) for one in found):
        raise UsageError(f"{name} mixes PIL images with arrays: give one kind")
    if len({tuple(one.shape) for one in found}) > 1:
        raise UsageError(f"{name}: its images differ in shape: make them equal, or give PIL images and a size")
    stacked = np.stack([_array(one) for one in found])
    # A tensor of torch has its channels first.
    return _of_pixels(_pixels(stacked, name, channels_first=_is_tensor(found[0])), columns, name)


def _row(row: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the image in a row of a data set, and its other values by name."""
    if isinstance(row, Mapping):
        key = next((key for key in IMAGE_KEYS if key in row), None)
        if key is None:
            raise UsageError(f"{name} has no image, only {', '.join(map(str, row))}")
        return row[key], {LABELS.get(str(other), str(other)): value for other, value in row.items() if other != key}
    if isinstance(row, tuple | list) and row:
        return row[0], {"label": row[1]} if len(row) > 1 else {}
    if isinstance(row, Image.Image) or hasattr(row, "shape"):
        return row, {}
    raise UsageError(f"{name} is a {type(row).__name__}, not an image")


def _of_pictures(pictures: Sequence[Image.Image], columns: Mapping[str, Sequence[Any]], name: str) -> Images:
    grey = all(one.mode in ("1", "L") for one in pictures)
    pixels = [transformed(one, 1 if grey else 3, None, None) for one in pictures]
    return _collected(pixels, columns, name)


def _of_pixels(pixels: NDArray[np.uint8], columns: Mapping[str, Sequence[Any]], name: str) -> Images:
    return _collected(list(pixels), columns, name)


def _collected(pixels: Sequence[NDArray[np.uint8]], columns: Mapping[str, Sequence[Any]], name: str) -> Images:
    if not pixels:
        raise UsageError(f"{name} holds no images")
    pictures = [Picture(f"{name}, image {row}", one) for row, one in enumerate(pixels)]
    arrays = {key: _column(values, f"{name}: {key}", len(pictures)) for key, values in columns.items()}
    return collected(FoundImages(np.arange(len(pictures)), arrays, pictures), name)


def _pixels(data: Any, name: str, channels_first: bool | None = None) -> NDArray[np.uint8]:
    """Return pixels uint8 [N, H, W, C] of a tensor or array."""
    first = _is_tensor(data) if channels_first is None else channels_first
    array = _array(data)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or not {array.shape[1], array.shape[3]} & {1, 3}:
        raise UsageError(f"{name} is {list(array.shape)}: images are [N, H, W, C] or [N, C, H, W] with 1 or 3 channels")
    if array.shape[1] in (1, 3) and (first or array.shape[3] not in (1, 3)):
        array = array.transpose(0, 2, 3, 1)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind != "f":
        raise UsageError(f"{name} holds {array.dtype}: give uint8, or floats in [-1, 1] or [0, 1]")
    return _eight_bits(array, name)


def _eight_bits(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Return floats as pixels, and say how they were read."""
    low, high = float(array.min(initial=0)), float(array.max(initial=0))
    if not np.isfinite(array).all() or low < -1 or high > 1:
        raise UsageError(f"{name} holds floats from {low:g} to {high:g}: they must be in [-1, 1] or [0, 1]")
    scaled = (array + 1) * 127.5 if low < 0 else array * 255
    pixels = scaled.round().astype(np.uint8)
    rounded = "" if np.abs(scaled - pixels).max(initial=0) < 0.01 else ", rounded to 8 bits"
    say(f"{name}: floats in {'[-1, 1]' if low < 0 else '[0, 1]'}{rounded}")
    return np.ascontiguousarray(pixels)


def _is_tensor(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "torch"


def _array(data: Any) -> NDArray[Any]:
    return np.asarray(
        data.detach().cpu().float() if _is_half(data) else data.detach().cpu() if _is_tensor(data) else data
    )


def _is_half(data: Any) -> bool:
    return _is_tensor(data) and str(data.dtype) in ("torch.bfloat16", "torch.float16")


def _column(values: Any, what: str, count: int) -> NDArray[Any]:
    """Return one value per image: an array [N, …] of numbers, or what `column_of` makes of a list."""
    if hasattr(values, "shape"):
        array = _array(values)
    elif isinstance(values, Sequence) and not isinstance(values, str):
        array = column_of(list(values))
    else:
        raise UsageError(
            f"{what} is a {type(values).__name__}: give a list, an array or a tensor with a value per image"
        )
    if len(array) != count:
        raise UsageError(f"{what} has {len(array)} values, but there are {count} images")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array
