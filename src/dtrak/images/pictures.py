"""Single images in files, arrays or rows of data sets; pixels are read when they are needed."""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from dtrak.errors import DtrakError, UsageError

GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
SIDEWAYS = (5, 6, 7, 8)  # the EXIF orientations that swap width and height
DIGEST = "V64"  # the type of a digest in an array


Content = bytes | NDArray[np.uint8]  # an encoded image, or pixels [H, W, C]


Header = tuple[str, tuple[int, int]]  # Pillow's mode, and (width, height) of the upright image


@dataclass(frozen=True, eq=False)
class Picture:
    """One image: in a file, in memory, or in what a function returns."""

    name: str  # for error messages
    place: Path | Content | Callable[[], Content]
    elsewhere: Callable[[], Content] | None = None  # reads it in another process, which opens its source by name

    def digest(self) -> bytes:
        """Return 64 bytes that depend on the content as it is stored, for a fingerprint."""
        content = self._content()
        return digest_of(content.tobytes() if isinstance(content, np.ndarray) else content)

    def _content(self) -> Content:
        if isinstance(self.place, Path):
            return regular(self.place).read_bytes()
        return self.place() if callable(self.place) else self.place

    def loaded(self) -> "Picture":
        """Return the picture with its content in memory."""
        return Picture(self.name, self._content())

    def by_name(self) -> "Picture | None":
        """Return the picture as another process can open it; None if it has to be sent."""
        if isinstance(self.place, Path):
            return Picture(self.name, Path(os.path.abspath(self.place)))
        return None if self.elsewhere is None else Picture(self.name, self.elsewhere)

    def open(self) -> Image.Image:
        """Open the image: its header is read, its pixels are not yet decoded."""
        if isinstance(self.place, Path):
            return Image.open(regular(self.place))
        content = self._content()
        return _from_array(content) if isinstance(content, np.ndarray) else Image.open(BytesIO(content))

    def pixels(self, channels: int, crop: int | None, size: int | None) -> NDArray[np.uint8]:
        """Decode the pixels [H, W, C], upright, cropped and resized."""
        if isinstance(self.place, np.ndarray) and crop is None and size is None and self.place.shape[-1] == channels:
            return self.place
        with file_errors(self.name, DtrakError), self.open() as image:
            return transformed(image, channels, crop, size)

    def looked_at(self) -> tuple[Header, bytes | None]:
        """Return the header, and the digest if the header cannot be read without the whole content."""
        if not callable(self.place):
            return self.header(), None
        with file_errors(self.name, UsageError):
            there = self.loaded()
        return there.header(), there.digest()

    def header(self) -> Header:
        """Return Pillow's mode, and the (width, height) of the upright image."""
        with file_errors(self.name, UsageError), self.open() as image:
            # The base class reads only the header; PNG's getexif decodes all pixels. The size of a TIFF is upright.
            orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation)
            sideways = orientation in SIDEWAYS and image.format != "TIFF"
            return image.mode, (image.height, image.width) if sideways else image.size


def digest_of(content: bytes) -> bytes:
    return blake2b(content).digest()


def common_shape(
    pictures: Sequence[Picture],
    headers: Sequence[Header],
    size: int | None,
    crop: int | None,
    channels: int | None,
) -> tuple[int, int, int]:
    """Return the shape (C, H, W) that all `pictures` have after `transformed`; refuse pictures that do not fit."""
    first_size = headers[0][1]
    for picture, (mode, (width, height)) in zip(pictures, headers, strict=True):
        if mode in ("I", "F"):
            raise UsageError(f"{picture.name} has 32 bits per pixel: convert it to 8 or 16")
        if channels == 1 and mode not in GREY_MODES:
            raise UsageError(f"{picture.name} is in colour, but the images must be grey: give grey images")
        if crop is not None and min(width, height) < crop:
            raise UsageError(f"{picture.name} is {width}x{height} pixels, too small for a crop of {crop}")
        if size is None and crop is None and (width, height) != first_size:
            first = f"{pictures[0].name} is {first_size[0]}x{first_size[1]} pixels"
            raise UsageError(f"{first}, but {picture.name} is {width}x{height}: give a size to make them equal")
    width, height = (size, size) if size else (crop, crop) if crop else first_size
    return channels or (1 if all(mode in GREY_MODES for mode, _ in headers) else 3), height, width


def transformed(image: Image.Image, channels: int, crop: int | None, size: int | None) -> NDArray[np.uint8]:
    """Return the pixels [H, W, C] of an image, upright, with `channels` channels, cropped and resized."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        # Pillow would clip 16-bit values at 255 instead of scaling them.
        image = Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8))
    if image.mode == "P":
        # Pillow warns about palettes with transparency unless they are converted to RGBA first.
        image = image.convert("RGBA")
    image = image.convert("L" if channels == 1 else "RGB")
    if crop is not None:
        image = _centre(image, crop)
    if size is not None:
        image = _centre(image, min(image.size)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(image.height, image.width, channels)


def _centre(image: Image.Image, side: int) -> Image.Image:
    """Cut the central square out of an image."""
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _from_array(pixels: NDArray[np.uint8]) -> Image.Image:
    """Make an image from pixels [H, W, 1] or [H, W, 3]."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return the content of a PNG file of pixels [H, W, C], grey or RGB."""
    buffer = BytesIO()
    _from_array(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def is_whole(path: Path, shape: tuple[int, int, int]) -> bool:
    """Tell whether a file is an undamaged picture of `shape` (C, H, W)."""
    channels, height, width = shape
    picture = Picture(str(path), path)
    try:
        with file_errors(picture.name, DtrakError), picture.open() as image:
            image.verify()  # it checks the checksums; the pixels are decoded below
        return picture.pixels(channels, None, None).shape == (height, width, channels)
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
