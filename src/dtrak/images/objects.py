"""Images that Python code already has: tensors, arrays, PIL images, and data sets of torch and Hugging Face.

    uint8                      pixels as they are
    float, some below 0        in [−1, 1]
    float, none below 0        in [0, 1]

Which of these was found is printed. Arrays are [N, H, W, C] or [N, H, W], tensors [N, C, H, W] as well; the side of
length 1 or 3 is that of the channels. All images are kept with 8 bits for each channel.

What comes from other libraries is known by what it has, and by the name of its module: none of them is imported here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dtrak.errors import UsageError
from dtrak.images.image_files import FoundImages, Picture, transformed
from dtrak.images.images import Images, collected, load_images
from dtrak.images.metadata import column_of
from dtrak.images.remote import found_in_dataset
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
    if isinstance(data, Images):
        made = data
    elif isinstance(data, str | Path):
        made = load_images(str(data))
    elif _module(data) == "datasets" and hasattr(data, "features"):
        made = collected(found_in_dataset(data, name), name)
    else:
        pixels, found = _pixels_and_columns(data, name)
        pictures = [Picture(f"{name}, image {row}", one) for row, one in enumerate(pixels)]
        made = collected(FoundImages(np.arange(len(pictures)), {}, pictures), name)
        columns = {**found, **columns}
    added = {key: _column(values, f"{name}: {key}", len(made)) for key, values in columns.items()}
    return replace(made, columns={**made.columns, **added}) if added else made


def _pixels_and_columns(data: Any, name: str) -> tuple[Iterable[NDArray[np.uint8]], dict[str, Any]]:
    """Return pixels [N, H, W, C], which differ in size if PIL images do, and the values of columns by name."""
    if isinstance(data, Mapping):
        images, columns = _image_and_others(data, f"{name}: a mapping needs images, {KINDS}; it has")
        pixels, more = _pixels_and_columns(images, name)
        return pixels, {**more, **columns}
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        return _pixels(_array(data), name, _module(data) == "torch"), {}
    # The numbers of a table of pandas are those of its columns, not of its rows.
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or _module(data) == "pandas":
        raise UsageError(f"{name} is a {type(data).__name__}: {KINDS}")
    if not len(data):
        raise UsageError(f"{name} holds no images")
    found, rows = [], []
    for number in range(len(data)):
        row = data[number]
        if isinstance(row, Mapping):
            image, others = _image_and_others(row, f"{name}, row {number} has no image, only")
        elif isinstance(row, tuple | list) and row:
            image, others = row[0], dict(zip(("label",), row[1:], strict=False))
        elif isinstance(row, Image.Image) or hasattr(row, "shape"):
            image, others = row, {}
        else:
            raise UsageError(f"{name}, row {number} is a {type(row).__name__}, not an image")
        found.append(image)
        rows.append({key: value.item() if hasattr(value, "item") else value for key, value in others.items()})
    columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    are_pictures = {isinstance(one, Image.Image) for one in found}
    if are_pictures == {True}:
        channels = 1 if all(one.mode in ("1", "L") for one in found) else 3
        return [transformed(one, channels, None, None) for one in found], columns
    if are_pictures == {True, False}:
        raise UsageError(f"{name} mixes PIL images with arrays: give one kind")
    if len({tuple(one.shape) for one in found}) > 1:
        raise UsageError(f"{name}: its images differ in shape: make them equal, or give PIL images and a size")
    return _pixels(np.stack([_array(one) for one in found]), name, _module(found[0]) == "torch"), columns


def _image_and_others(row: Mapping[Any, Any], refusal: str) -> tuple[Any, dict[str, Any]]:
    key = next((key for key in IMAGE_KEYS if key in row), None)
    if key is None:
        raise UsageError(f"{refusal} {', '.join(map(str, row)) or 'nothing'}")
    return row[key], {LABELS.get(str(other), str(other)): value for other, value in row.items() if other != key}


def _pixels(array: NDArray[Any], name: str, channels_first: bool) -> NDArray[np.uint8]:
    """Return pixels uint8 [N, H, W, C]; of floats, say how they were read. Tensors of torch have channels first."""
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or not {array.shape[1], array.shape[3]} & {1, 3}:
        raise UsageError(f"{name} is {list(array.shape)}: images are [N, H, W, C] or [N, C, H, W] with 1 or 3 channels")
    if array.shape[1] in (1, 3) and (channels_first or array.shape[3] not in (1, 3)):
        array = array.transpose(0, 2, 3, 1)
    if array.dtype.kind == "f":
        low, high = float(array.min(initial=0)), float(array.max(initial=0))
        if not np.isfinite(array).all() or low < -1 or high > 1:
            raise UsageError(f"{name} holds floats from {low:g} to {high:g}: they must be in [-1, 1] or [0, 1]")
        scaled = (array + 1) * 127.5 if low < 0 else array * 255
        array = scaled.round().astype(np.uint8)
        rounded = "" if np.abs(scaled - array).max(initial=0) < 0.01 else ", rounded to 8 bits"
        say(f"{name}: floats in {'[-1, 1]' if low < 0 else '[0, 1]'}{rounded}")
    if array.dtype != np.uint8:
        raise UsageError(f"{name} holds {array.dtype}: give uint8, or floats in [-1, 1] or [0, 1]")
    return np.ascontiguousarray(array)


def _column(values: Any, what: str, count: int) -> NDArray[Any]:
    """Return one value per image: an array [N, …] of numbers, or what `column_of` makes of a list."""
    if hasattr(values, "shape"):
        array = _array(values)
    elif isinstance(values, Sequence) and not isinstance(values, str):
        array = column_of(list(values))
    else:
        kind = type(values).__name__
        raise UsageError(f"{what} is a {kind}: give a list, an array or a tensor with a value per image")
    if len(array) != count:
        raise UsageError(f"{what} has {len(array)} values, but there are {count} images")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _array(data: Any) -> NDArray[Any]:
    """Return an array or a tensor as an array; numpy has no bfloat16."""
    if _module(data) != "torch":
        return np.asarray(data)
    here = data.detach().cpu()
    return np.asarray(here.float() if str(here.dtype) in ("torch.bfloat16", "torch.float16") else here)


def _module(data: Any) -> str:
    return type(data).__module__.partition(".")[0]
