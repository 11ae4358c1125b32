"""Read an uploaded picture: check its size before decoding it, decode it, and fit it to the model.

Nothing is written to the disk here, and the name of an uploaded file is never used.
"""

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from dtrak.images.image_files import transformed

MAX_BYTES = 20 << 20
MAX_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # decoders of rarer formats have more bugs
ENVELOPE = 64 << 10  # bytes that a form may have beside the picture
MAX_HELD = 4 * (MAX_BYTES + ENVELOPE)  # bytes of all forms that are arriving
SECONDS_TO_UPLOAD = 120


class RefusedError(Exception):
    """The sent form or picture cannot be used; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FormParser(MultiPartParser):
    """A parser that keeps uploaded files in memory, never in a temporary file on disk."""

    spool_max_size = MAX_BYTES + ENVELOPE


class Forms:
    """Reads forms. If arriving forms hold too much memory, the oldest is given up, so that none blocks the others."""

    def __init__(self) -> None:
        self._held: dict[asyncio.Timeout, int] = {}  # bytes that have arrived, by the time limit of the form

    async def read(self, headers: Headers, stream: AsyncIterator[bytes]) -> FormData:
        """Return the fields of a form; refuse one that is too large, and raise a TimeoutError for a late one."""
        if not headers.get("content-type", "").startswith("multipart/form-data"):
            raise RefusedError(415, "send a form with a picture or a seed: multipart/form-data")
        async with asyncio.timeout(SECONDS_TO_UPLOAD) as limit:
            self._held[limit] = 0
            try:
                bounded = self._bounded(limit, stream)
                return await FormParser(headers, bounded, max_files=1, max_fields=4, max_part_size=ENVELOPE).parse()
            except (MultiPartException, KeyError, ValueError) as error:  # ValueErrors come from strange encodings
                raise RefusedError(400, f"the form cannot be read: {getattr(error, 'message', error)}") from None
            finally:
                self._held.pop(limit, None)

    async def _bounded(self, limit: asyncio.Timeout, stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the stream, and refuse it at its end if it is too long; a far too long one is not read to its end."""
        size = 0
        async for chunk in stream:
            size += len(chunk)
            if size <= MAX_BYTES + ENVELOPE:
                self._hold(limit, size)
                yield chunk
            elif size > 4 * MAX_BYTES:
                break
        if size > MAX_BYTES + ENVELOPE:
            raise too_large()

    def _hold(self, limit: asyncio.Timeout, size: int) -> None:
        """Record how many bytes of a form have arrived; give up the oldest forms if all hold too much."""
        if limit in self._held:  # this form may have been given up
            self._held[limit] = size
        while sum(self._held.values()) > MAX_HELD:
            oldest = next(iter(self._held))
            del self._held[oldest]
            if not oldest.expired():
                oldest.reschedule(0)  # a time in the past: its time limit is over


def too_large() -> RefusedError:
    return RefusedError(413, f"the picture is larger than {MAX_BYTES >> 20} MB")


@dataclass(frozen=True)
class Fit:
    """How a picture is made to fit the training images."""

    shape: tuple[int, int, int]  # (C, H, W) of the training images
    crop: int | None
    size: int | None


def decode(content: bytes, fit: Fit) -> NDArray[np.uint8]:
    """Decode an image file to pixels [H, W, C] of the shape of the training images."""
    if len(content) > MAX_BYTES:
        raise too_large()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of large images, but our limit is lower
        return _decode(content, fit)


def _decode(content: bytes, fit: Fit) -> NDArray[np.uint8]:
    wanted = f"send one of {', '.join(FORMATS)}"
    try:
        image = Image.open(BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise RefusedError(413, f"the picture has more than {MAX_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise RefusedError(415, f"this is not an image, or not of a known kind: {wanted}") from None
    except Exception as error:  # decoders raise many kinds of errors
        raise RefusedError(400, f"the picture cannot be read: {error}") from None
    with image:
        if image.width * image.height > MAX_PIXELS:
            size = f"{image.width:,} × {image.height:,}"
            raise RefusedError(413, f"the picture has {size} pixels, more than {MAX_PIXELS:,}")
        if image.mode in ("I", "F"):
            raise RefusedError(415, "the picture has 32 bits per pixel: convert it to 8 or 16")
        crop, size_ = _fitting(image, fit)
        channels, height, width = fit.shape
        try:
            pixels = transformed(image, channels, crop, size_)
        except Exception as error:
            raise RefusedError(400, f"the picture is damaged: {error}") from None
    if pixels.shape != (height, width, channels):  # its metadata say that it is turned by 90°
        raise RefusedError(
            422, f"the picture has {pixels.shape[1]} × {pixels.shape[0]} pixels: send {width} × {height}"
        )
    return pixels


def _fitting(image: Image.Image, fit: Fit) -> tuple[int | None, int | None]:
    """Return the crop and the size that a picture needs, as for other queries; None if it fits."""
    _, height, width = fit.shape
    if image.size == (width, height):
        return None, None
    if fit.crop is not None and min(image.size) < fit.crop:
        size = f"{image.width} × {image.height}"
        raise RefusedError(422, f"the picture has {size} pixels, too few for this run's crop of {fit.crop}")
    size_ = height if height == width else fit.size
    if size_ is None:
        raise RefusedError(422, f"the picture has {image.width} × {image.height} pixels: send {width} × {height}")
    return fit.crop, size_
