"""Images: an ordered set with stable ids and columns (label, caption, artist, …), whose pixels are read when needed.

Where images come from is an `ImageSource`: plain values that can be compared and saved. What depends on images depends
on their facts: a hash of the pixels of all, one of their ids, and one of each column.
"""

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from dtrak.errors import DtrakError, UsageError, check_type
from dtrak.fingerprints import hash_of, of_array
from dtrak.images.image_files import Found, FoundImages, Memory, Picture, common_shape, file_errors, regular
from dtrak.images.npz import described, read_header, widened
from dtrak.images.selection import Selection
from dtrak.images.sources import find_source
from dtrak.progress import progress_bar, say

if TYPE_CHECKING:
    import torch

SHOWN = 10  # images in a notebook
MANY = 2000  # images that are read at a time, and with a bar if there are more
INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")  # 007 is read as text, and so is a number too large for int64


class TakesImages(Protocol):
    """A model, as far as images know it."""

    @property
    def source(self) -> str: ...
    @property
    def image_shape(self) -> tuple[int, int, int]: ...
    def fitted_to(self, shape: tuple[int, int, int]) -> "TakesImages": ...


@dataclass(frozen=True)
class ImageSource:
    """Where images come from, and what of them is taken: which ones, cropped to `crop` pixels, resized to `size`."""

    source: "str | Images"  # what was typed, or what Python code has, which is taken as it is
    select: Selection | None = None
    subset: str | None = None  # a file of ids
    crop: int | None = None
    size: int | None = None
    channels: int | None = None  # 1 or 3; those of the images if None
    memory: Memory | None = field(default=None, compare=False, repr=False)  # what was found in pictures before

    def open(self) -> "Images":
        """Return the images, which are found once; of files, only the headers are read."""
        return self._opened

    @cached_property
    def _opened(self) -> "Images":
        images = self.source
        if not isinstance(images, Images):
            for option, side in (("size", self.size), ("crop", self.crop)):
                if side is not None and side < 1:
                    raise UsageError(f"{option} is {side}, but must be at least 1 pixel")
            if self.channels not in (None, 1, 3):
                raise UsageError(f"channels is {self.channels}, but must be 1 (grey) or 3 (colour)")
            found = find_source(images, self.select)
            images = collected(found, images, self.crop, self.size, self.channels, self.memory)
        if self.subset is None:
            return images
        return images.select(images.positions(read_ids(self.subset), self.subset))

    @property
    def facts(self) -> dict[str, Any]:
        """What depends on these images depends on this."""
        return self.open().facts

    def fitting(self, model: TakesImages) -> "ImageSource":
        """Return the source of the same images in a shape that a model takes, as far as they can have one.

        Grey images get the channels of a model of colours. Without a size, images of another shape are cut to the
        central square and resized to the model's.
        """
        if isinstance(self.source, Images):
            return self
        channels, height, width = model.image_shape
        fitted, may_resize = self, self.size is None and height == width
        try:
            shape = self.open().shape
        except UsageError:  # they may differ in size; other errors are raised again below
            if not may_resize:
                raise
            fitted = replace(self, channels=channels)
        else:
            if shape[0] == 1 < channels:
                shape, fitted = (channels, *shape[1:]), replace(self, channels=channels)
            if not may_resize or model.fitted_to(shape).image_shape == shape:
                return fitted
            if shape[0] != channels:
                fitted = replace(self, channels=channels)  # this refuses images by name
        resized = replace(fitted, size=height)
        resized.open()
        say(f"{self.source}: images are resized to {width}×{height} pixels, for which {model.source} was made")
        return resized


@dataclass(frozen=True, eq=False)
class Images:
    """An ordered set of images with stable ids and columns (label, caption, artist, …), one value per image.

    >>> import dtrak
    >>> dtrak.load_images("digits:train")
    Images from digits:train: 1,000 of 8 × 8 pixels, grey
    columns: label
    """

    source: str  # what the user typed
    ids: NDArray[Any]  # [N] int64 or str
    columns: Mapping[str, NDArray[Any]]  # each [N]
    shape: tuple[int, int, int]  # (C, H, W)
    _pictures: NDArray[np.object_]  # [N] of Picture
    _memory: Memory | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        channels, height, width = self.shape
        colour = "grey" if channels == 1 else "colour"
        text = f"Images from {self.source}: {len(self):,} of {width} × {height} pixels, {colour}"
        return f"{text}\ncolumns: {', '.join(self.columns)}" if self.columns else text

    def _repr_html_(self) -> str:
        from dtrak.figures.html_pictures import part, picture, row

        first = self.first(SHOWN)
        values = [first.columns[name] for name in list(self.columns)[:1]]
        pairs = enumerate(zip(first.ids, *values, strict=True))
        cells = [picture(self.pixels([n])[0], [str(one) for one in texts]) for n, texts in pairs]
        return part(repr(self).replace("\n", ", "), row(cells))

    def pixels(self, indices: Sequence[int] | NDArray[Any]) -> NDArray[np.uint8]:
        """Read the pixels [B, H, W, C] of some images from the source."""
        channels, height, width = self.shape
        pictures: list[Picture] = self._pictures[list(indices)].tolist()
        pixels = np.empty((len(pictures), height, width, channels), dtype=np.uint8)
        for target, picture in zip(pixels, pictures, strict=True):
            found = picture.pixels(channels)
            if found.shape != target.shape:
                raise DtrakError(f"cannot read {picture.name}: its pixels do not have the size that its header gives")
            target[:] = found
        return pixels

    def tensor(self, indices: Sequence[int] | NDArray[Any]) -> "torch.Tensor":
        """Read some images as float32 [B, C, H, W] in [-1, 1].

        >>> import dtrak
        >>> dtrak.load_images("digits:train").tensor([0, 1]).shape
        torch.Size([2, 1, 8, 8])
        """
        import torch

        return torch.from_numpy(self.pixels(indices)).permute(0, 3, 1, 2).contiguous().float() / 127.5 - 1

    def select(self, indices: Sequence[int] | NDArray[Any]) -> "Images":
        """Return a subset of B images in the given order; no pixels are read.

        >>> import dtrak
        >>> dtrak.load_images("digits:train").select([4, 2]).ids
        array([4, 2])
        """
        chosen = list(indices)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return replace(self, ids=self.ids[chosen], columns=columns, _pictures=self._pictures[chosen])

    @property
    def transformation(self) -> tuple[int | None, int | None]:
        """The crop and the size that pixels are transformed to when they are read."""
        return next(((one.crop, one.size) for one in self._pictures), (None, None))

    def first(self, count: int | None) -> "Images":
        """Return the first `count` images; all of them if there are fewer, or if `count` is None.

        >>> import dtrak
        >>> len(dtrak.load_images("digits:train").first(20))
        20
        """
        return self.select(range(len(self))[:count])

    def in_memory(self) -> "Images":
        """Return the same images with their final pixels in memory, for machines that do not have their files."""
        pixels = self.pixels(range(len(self)))
        pictures = [Picture(f"{self.source}, image {id_}", array) for id_, array in zip(self.ids, pixels, strict=True)]
        return replace(self, _pictures=np.fromiter(pictures, dtype=np.object_), _memory=None)

    def positions(self, ids: Sequence[Any] | NDArray[Any], what: str) -> NDArray[np.int64]:
        """Return the positions [B] of `ids` in this set; an error says with `what` where the ids come from."""
        # Compared as text: ids come from files and command lines, where 5 and "5" are the same.
        position_of = {str(id_): position for position, id_ in enumerate(self.ids)}
        positions: dict[str, int] = {}
        for name in map(str, ids):
            if name not in position_of:
                span = f", ids {self.ids[0]} … {self.ids[-1]}" if len(self) else ""
                raise UsageError(f"{what}: id {name} is not in {self.source} ({len(self)} images{span})")
            if name in positions:
                raise UsageError(f"{what}: id {name} is given twice")
            positions[name] = position_of[name]
        return np.fromiter(positions.values(), dtype=np.int64)

    def by_name(self) -> "Images | None":
        """Return the same images as another process can open them by their names; None if it cannot."""
        pictures = [picture.by_name() for picture in self._pictures]
        if any(one is None for one in pictures):
            return None
        return replace(self, _pictures=np.fromiter(pictures, dtype=np.object_), _memory=None)

    @property
    def digests(self) -> NDArray[np.void]:
        """The hash of the pixels of each image, [N], as they were when they were last read; `facts` reads them now."""
        if any(one.found is None or one.found.digest is None for one in self._pictures):
            looked_at(self._pictures, DtrakError, True, self._memory)
        return np.frombuffer(b"".join(one.found.digest for one in self._pictures), dtype="V16")

    @property
    def facts(self) -> dict[str, Any]:
        """What depends on these images depends on this: plain values, read now. A file that did not change is known."""
        looked_at(self._pictures, DtrakError, True, self._memory)
        return {
            "count": len(self),
            "shape": list(self.shape),
            "pixels": xxh3_128(self.digests.tobytes()).hexdigest(),
            "ids": of_array(self.ids),
            "columns": {name: of_array(column) for name, column in self.columns.items()},
        }

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that depend on ids, shape and pixels, as they were when this was first asked for."""
        return hash_of([self.ids.tolist(), self.shape, self.digests.tobytes().hex()])


def load_images(
    source: str | Path,
    *,
    size: int | None = None,
    crop: int | None = None,
    channels: int | None = None,
    select: Selection | None = None,
) -> Images:
    """Load the images of `source`, cropped to `crop` pixels, then resized to `size`, with 1 or 3 `channels`.

    With `select`, load only some of them (see `dtrak.images.selection`); the others are not opened.

    A source is digits:train, digits:validation, a folder, an .npz file, an image, hf:name:split, parquet:files, or a
    folder that fsspec opens, such as s3://bucket/images.

    >>> import dtrak
    >>> images = dtrak.load_images("digits:validation")
    >>> len(images), images.shape, list(images.columns)
    (797, (1, 8, 8), ['label'])
    """
    check_type("images", source, (str, Path), "a folder, a file or hf:name:split; dtrak.images_from takes objects")
    return ImageSource(str(source), select, crop=crop, size=size, channels=channels).open()


def collected(
    found: FoundImages,
    source: str,
    crop: int | None = None,
    size: int | None = None,
    channels: int | None = None,
    memory: Memory | None = None,
) -> Images:
    """Return found images as a set, in their common shape."""
    if not found.pictures:
        raise UsageError(f"{source} holds no images")
    if crop or size:
        for picture in found.pictures:
            picture.crop, picture.size = crop, size
            picture.found = picture.found and picture.found._replace(digest=None)
    shape = common_shape(found.pictures, looked_at(found.pictures, UsageError, False, memory), channels)
    return Images(source, found.ids, found.columns, shape, np.fromiter(found.pictures, dtype=np.object_), memory)


def looked_at(
    pictures: Sequence[Picture] | NDArray[np.object_], kind: type[DtrakError], whole: bool, memory: Memory | None
) -> list[Found]:
    """Look at all pictures; of many, at several at a time."""
    look = partial(Picture.look, kind=kind, whole=whole, memory=memory)
    if len(pictures) <= MANY:
        return [look(one) for one in pictures]
    found: list[Found] = []
    with ThreadPoolExecutor() as pool, progress_bar("reading", len(pictures), "images") as advance:
        advance(0)
        for start in range(0, len(pictures), MANY):
            found += pool.map(look, pictures[start : start + MANY])
            advance(len(pictures[start : start + MANY]))
    return found


def images_by_id(
    source: str, ids: NDArray[Any], shape: tuple[int, int, int], crop: int | None, size: int | None
) -> Images:
    """Find the images [N] of a source that have these ids. None is opened before its pixels are asked for."""
    found = find_source(source)
    picture_of = {str(one): picture for one, picture in zip(found.ids.tolist(), found.pictures, strict=True)}
    lacking = next((one for one in ids.tolist() if str(one) not in picture_of), None)
    if lacking is not None:
        raise UsageError(f"{source} has no image {lacking} any more")
    pictures = (replace(picture_of[str(one)], crop=crop, size=size) for one in ids.tolist())
    return Images(source, ids, {}, shape, np.fromiter(pictures, dtype=np.object_))


def read_ids(path: str) -> NDArray[Any]:
    """Read ids, [B] int64 or str, from an .npy array or from the lines of a .txt file."""
    extension = Path(path).suffix.lower()
    if extension not in (".npy", ".txt"):
        raise UsageError(f"cannot read ids from {path!r}: give an .npy or a .txt file")
    with file_errors(path, UsageError), open(regular(Path(path)), "rb") as file:
        if extension == ".npy":
            read_header(file, os.path.getsize(path))
            file.seek(0)
            ids = np.lib.format.read_array(file, allow_pickle=False)
        else:
            lines = [line.strip() for line in file.read().decode("utf-8-sig").splitlines() if line.strip()]
            ids = np.array([int(line) for line in lines] if all(map(INTEGER.fullmatch, lines)) else lines)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU" or len(ids) == 0:
        raise UsageError(f"{path} holds {described(ids)}, but ids must be integers or strings [N], at least one")
    for id_ in ids.tolist() if ids.dtype.kind == "U" else ():
        # A run keeps its ids as the lines of a file.
        if id_.splitlines() != [id_] or id_ != id_.strip() or id_ != id_.encode(errors="ignore").decode():
            raise UsageError(f"{path} holds the id {id_!r}, but an id must be one line of text")
    return widened(ids, path)
