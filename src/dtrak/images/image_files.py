"""One picture: in a file, in memory or behind a function; its header, its pixels, and the hash of its pixels.

What was found in a picture counts for as long as its version stays the same: the size and times of a file, the etag of
an object in a store. The hash is of the pixels as a model sees them, so it depends neither on the place of a file nor
on its format. Grey pixels in three channels have the hash of the same pixels in one.
"""

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from dtrak.errors import DtrakError, UsageError
from dtrak.fingerprints import of_array

IMAGE_EXTENSIONS = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
SIDEWAYS = (5, 6, 7, 8)  # the EXIF orientations that swap width and height
PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of colour
WHOLE = ((0, 0, 1, 1),)  # first column, first row, and the steps between columns and rows of a PNG's only pass
INTERLACED = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))

Content = bytes | NDArray[np.uint8]  # an encoded image, or pixels [H, W, C]
Memory = MutableMapping[str, list[Any]]  # what was found in pictures before, by their names and versions


class Found(NamedTuple):
    """What was found when a picture was read."""

    version: str | None  # of its content then
    mode: str  # Pillow's
    extent: tuple[int, int]  # (width, height) of the upright image
    digest: bytes | None  # of its pixels, if they were read


@dataclass(eq=False, slots=True)
class Picture:
    """One image as it is used: upright, cut to `crop` pixels in its centre, resized to `size`."""

    name: str  # for error messages
    place: Path | NDArray[np.uint8] | Callable[[], Content]
    elsewhere: Callable[[], Content] | None = None  # reads it in another process, which opens its source by name
    version: str | Path | None = None  # changes with the content; or the file whose size and times do
    crop: int | None = None
    size: int | None = None
    found: Found | None = None

    def look(self, kind: type[DtrakError], whole: bool, memory: Memory | None = None) -> Found:
        """Return what the picture is now: its header, and its digest if `whole` or if that costs no more reading.

        It is read again only if it may have changed. Errors are of `kind`.
        """
        with file_errors(self.name, kind):
            version, known = self._version_now(), self.found
            if known is not None and known.version == version and (known.digest is not None or not whole):
                return known
            key = f"{self.name} {version} {self.crop} {self.size}"
            if memory is not None and version is not None and key in memory:
                mode, width, height, digest = memory[key]
                self.found = Found(version, mode, (width, height), bytes.fromhex(digest))
                return self.found
            with opened(self._content()) as image:
                # The base class reads only the header; PNG's getexif decodes all pixels. The size of a TIFF is upright.
                orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation)
                sideways = orientation in SIDEWAYS and image.format != "TIFF"
                mode, extent, digest = image.mode, image.size[::-1] if sideways else image.size, None
                if whole or callable(self.place):
                    digest = digest_of(transformed(image, 1 if mode in GREY_MODES else 3, self.crop, self.size))
            if callable(self.place) and known is not None and known.digest not in (None, digest):
                raise ValueError("it has changed since its source was opened: run the command again")
            self.found = Found(version, mode, extent, digest)
            if memory is not None and version is not None and digest is not None:
                memory[key] = [mode, *extent, digest.hex()]
            return self.found

    def pixels(self, channels: int) -> NDArray[np.uint8]:
        """Read the pixels [H, W, C]; refuse them if they are not those that were found before."""
        with file_errors(self.name, DtrakError):
            pixels = self._content()
            if not isinstance(pixels, np.ndarray) or self.crop or self.size or pixels.shape[-1] != channels:
                with opened(pixels) as image:
                    pixels = transformed(image, channels, self.crop, self.size)
        if self.found is not None and self.found.digest not in (None, digest_of(pixels)):
            raise DtrakError(f"{self.name} has changed since it was first read: run the command again")
        return pixels

    def by_name(self) -> "Picture | None":
        """Return the picture as another process can open it; None if it has to be sent."""
        place = Path(os.path.abspath(self.place)) if isinstance(self.place, Path) else self.elsewhere
        if place is None:
            return None
        found = None if self.found is None else self.found._replace(version=None)
        return replace(self, place=place, elsewhere=None, version=None, found=found)

    def _content(self) -> Path | Content:
        return self.place() if callable(self.place) else self.place

    def _version_now(self) -> str | None:
        if isinstance(self.place, np.ndarray):
            return of_array(self.place)
        if isinstance(self.place, Path):
            return version_of(self.place)
        return version_of(self.version) if isinstance(self.version, Path) else self.version


class FoundImages(NamedTuple):
    """What a source holds; most sources have not opened their pictures yet."""

    ids: NDArray[Any]  # [N] int64 or str
    columns: Mapping[str, NDArray[Any]]  # each [N]
    pictures: list[Picture]  # [N]


def version_of(file: Path) -> str:
    """Return a text that changes when the file does."""
    now = os.stat(file)
    return f"{now.st_size} {now.st_mtime_ns} {now.st_ctime_ns} {now.st_ino}"


def digest_of(pixels: NDArray[np.uint8]) -> bytes:
    """Hash pixels [H, W, C]: 16 bytes."""
    red = pixels[..., 0]
    is_grey = all(np.array_equal(red, pixels[..., channel]) for channel in range(1, pixels.shape[-1]))
    return bytes.fromhex(of_array(red if is_grey else pixels))


def opened(content: Path | Content) -> Image.Image:
    """Open an image: its header is read, its pixels are not yet decoded."""
    if isinstance(content, np.ndarray):
        return Image.fromarray(content[..., 0] if content.shape[-1] == 1 else content)
    return Image.open(regular(content) if isinstance(content, Path) else BytesIO(content))


def common_shape(pictures: Sequence[Picture], headers: Sequence[Found], channels: int | None) -> tuple[int, int, int]:
    """Return the shape (C, H, W) that all `pictures` have when they are read; refuse pictures that do not fit."""
    crop, size, first_extent = pictures[0].crop, pictures[0].size, headers[0].extent
    for picture, header in zip(pictures, headers, strict=True):
        width, height = header.extent
        if header.mode in ("I", "F"):
            raise UsageError(f"{picture.name} has 32 bits per pixel: convert it to 8 or 16")
        if channels == 1 and header.mode not in GREY_MODES:
            raise UsageError(f"{picture.name} is in colour, but the images must be grey: give grey images")
        if crop is not None and min(width, height) < crop:
            raise UsageError(f"{picture.name} is {width}x{height} pixels, too small for a crop of {crop}")
        if size is None and crop is None and header.extent != first_extent:
            first = f"{pictures[0].name} is {first_extent[0]}x{first_extent[1]} pixels"
            raise UsageError(f"{first}, but {picture.name} is {width}x{height}: give a size to make them equal")
    width, height = (size, size) if size else (crop, crop) if crop else first_extent
    return channels or (1 if all(header.mode in GREY_MODES for header in headers) else 3), height, width


def transformed(image: Image.Image, channels: int, crop: int | None, size: int | None) -> NDArray[np.uint8]:
    """Return the pixels [H, W, C] of an image, upright, with `channels` channels, cropped and resized."""
    if isinstance(image, PngImageFile) and image.fp is not None:
        file = image.fp
        image.load()
        # Pillow leaves rows black for which there are no data.
        if image.crop((0, image.height - 2, *image.size)).getbbox(alpha_only=False) is None:
            with open(image.filename, "rb") if image.filename else nullcontext(file) as data:
                data.seek(0)
                _check_png(data.read())
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        # Pillow would clip 16-bit values at 255 instead of scaling them.
        image = Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8))
    if image.mode == "P":
        # Pillow warns about palettes with transparency unless they are converted to RGBA first.
        image = image.convert("RGBA")
    image = image.convert("L" if channels == 1 else "RGB")
    if crop is not None or size is not None:
        side = crop or min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(image.height, image.width, channels)


def _check_png(content: bytes) -> None:
    """Refuse a PNG file whose pixel data end before its last row."""
    width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", content[16:29])
    lacking, inflate, at = 0, zlib.decompressobj(), 8
    for left, top, across, down in INTERLACED if interlaced else WHOLE:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        lacking += rows * (1 + -(-columns * depth * PNG_CHANNELS[colour] // 8)) * (columns > 0)
    while lacking and at < len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        if kind == b"IDAT":
            lacking -= len(inflate.decompress(content[at + 8 : at + 8 + length], lacking))
        at += length + 12  # with the length itself, the kind and the checksum
    if lacking:
        raise OSError("its pixel data end early")


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return the content of a PNG file of pixels [H, W, C], grey or RGB."""
    buffer = BytesIO()
    opened(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def is_whole(path: Path, shape: tuple[int, int, int]) -> bool:
    """Tell whether a file is an undamaged picture of `shape` (C, H, W)."""
    channels, height, width = shape
    try:
        with file_errors(str(path), DtrakError), opened(path) as image:
            image.verify()  # it checks the checksums; the pixels are decoded below
        return Picture(str(path), path).pixels(channels).shape == (height, width, channels)
    except DtrakError:
        return False


def regular(path: Path) -> Path:
    """Return the path of an ordinary file; refuse pipes and devices, which might never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is a folder" if path.is_dir() else "it is a pipe or a device, not a file")
    return path


@contextmanager
def file_errors(name: str, kind: type[DtrakError]) -> Iterator[None]:
    """Turn any error of reading a file into an error of `kind` with one line that names the file."""
    try:
        yield
    except Exception as error:  # each decoder raises its own errors on damaged data
        not_an_image = isinstance(error, UnidentifiedImageError) and "it is not an image"
        reason = not_an_image or getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise kind(f"cannot read {name}: {reason}") from error
