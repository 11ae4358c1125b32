"""An ordered set of images with stable ids and columns (label, caption, artist, …); pixels are read when needed."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError, UsageError, check_type
from dtrak.images.found import FoundImages
from dtrak.images.npz import check_header, described, widened
from dtrak.images.pictures import DIGEST, Header, Picture, common_shape, file_errors, regular
from dtrak.images.selection import Selection
from dtrak.images.sources import find_source

if TYPE_CHECKING:
    import torch

SHOWN = 10  # images in a notebook
DIGEST_BYTES = 16  # of the content of one image
INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")  # 007 is read as text, and so is a number too large for int64


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
    _crop: int | None
    _size: int | None
    _digests: NDArray[np.void] | None = None  # [N], of the contents, if they were read when the images were found

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        channels, height, width = self.shape
        colour = "grey" if channels == 1 else "colour"
        text = f"Images from {self.source}: {len(self):,} of {width} × {height} pixels, {colour}"
        return f"{text}\ncolumns: {', '.join(self.columns)}" if self.columns else text

    def _repr_html_(self) -> str:
        from dtrak.figures.html import part, picture, row

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
            found = picture.pixels(channels, self._crop, self._size)
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
        digests = None if self._digests is None else self._digests[chosen]
        return replace(self, ids=self.ids[chosen], columns=columns, _pictures=self._pictures[chosen], _digests=digests)

    @property
    def transformation(self) -> tuple[int | None, int | None]:
        """The crop and the size that pixels are transformed to when they are read."""
        return self._crop, self._size

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
        return replace(self, _pictures=np.fromiter(pictures, dtype=np.object_), _crop=None, _size=None, _digests=None)

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
        return replace(self, _pictures=np.fromiter(pictures, dtype=np.object_), _digests=None)

    def loaded(self, digests: NDArray[np.void]) -> "Images":
        """Return the images with their content in memory; refuse one whose content does not have its digest [N]."""
        pictures = []
        for picture, digest in zip(self._pictures, digests, strict=True):
            with file_errors(picture.name, DtrakError):
                content = picture.loaded()
            if content.digest()[:DIGEST_BYTES] != digest.tobytes():
                raise DtrakError(f"{picture.name} has changed since its features were begun: run the command again")
            pictures.append(content)
        return replace(self, _pictures=np.fromiter(pictures, dtype=np.object_))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that depend on ids, shape, transformation and content, but not on the files' paths."""
        return self._fingerprints[0]

    @property
    def digests(self) -> NDArray[np.void]:
        """Bytes [N] that depend on the content of each image as it was when it was read for the fingerprint."""
        return self._fingerprints[1]

    @cached_property
    def _fingerprints(self) -> tuple[str, NDArray[np.void]]:
        settings = json.dumps([self.ids.tolist(), self.shape, self._crop, self._size])
        of_all, digests = blake2b(settings.encode(), digest_size=8), np.empty(len(self), dtype=f"V{DIGEST_BYTES}")
        for row, picture in enumerate(self._pictures):
            if self._digests is not None:
                digest = self._digests[row].tobytes()
            else:
                with file_errors(picture.name, DtrakError):
                    digest = picture.digest()
            of_all.update(digest)
            digests[row] = digest[:DIGEST_BYTES]
        return of_all.hexdigest(), digests


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
    source = str(source)
    for option, side in (("size", size), ("crop", crop)):
        if side is not None and side < 1:
            raise UsageError(f"{option} is {side}, but must be at least 1 pixel")
    if channels not in (None, 1, 3):
        raise UsageError(f"channels is {channels}, but must be 1 (grey) or 3 (colour)")
    return collected(find_source(source, select), source, size, crop, channels)


def collected(
    found: FoundImages, source: str, size: int | None = None, crop: int | None = None, channels: int | None = None
) -> Images:
    """Return found images as a set, in their common shape."""
    if not found.pictures:
        raise UsageError(f"{source} holds no images")
    headers, digests = _looked_at(found)
    shape = common_shape(found.pictures, headers, size, crop, channels)
    pictures = np.fromiter(found.pictures, dtype=np.object_)
    return Images(source, found.ids, found.columns, shape, pictures, crop, size, digests)


def _looked_at(found: FoundImages) -> tuple[list[Header], NDArray[np.void] | None]:
    """Return the headers of all images, and their digests if all contents had to be read for that: once is enough."""
    if found.digests is not None:
        return [found.pictures[0].header()] * len(found.pictures), found.digests
    looked = [picture.looked_at() for picture in found.pictures]
    read = [digest for _, digest in looked if digest is not None]
    digests = np.frombuffer(b"".join(read), dtype=DIGEST) if len(read) == len(looked) else None
    return [header for header, _ in looked], digests


def images_by_id(
    source: str, ids: NDArray[Any], shape: tuple[int, int, int], crop: int | None, size: int | None
) -> Images:
    """Find the images [N] of a source that have these ids. None is opened before its pixels are asked for."""
    found = find_source(source)
    place_of = {str(one): place for place, one in enumerate(found.ids.tolist())}
    lacking = next((one for one in ids.tolist() if str(one) not in place_of), None)
    if lacking is not None:
        raise UsageError(f"{source} has no image {lacking} any more")
    pictures = np.fromiter((found.pictures[place_of[str(one)]] for one in ids.tolist()), dtype=np.object_)
    return Images(source, ids, {}, shape, pictures, crop, size)


def read_ids(path: str) -> NDArray[Any]:
    """Read ids, [B] int64 or str, from an .npy array or from the lines of a .txt file."""
    extension = Path(path).suffix.lower()
    if extension not in (".npy", ".txt"):
        raise UsageError(f"cannot read ids from {path!r}: give an .npy or a .txt file")
    with file_errors(path, UsageError), open(regular(Path(path)), "rb") as file:
        if extension == ".npy":
            check_header(file, os.path.getsize(path))
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
