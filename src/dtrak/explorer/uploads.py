"""A picture that someone sends: measured before it is decoded, decoded within bounds, and fitted to the model.

Nothing of it touches the disk here, and its name is never looked at.
"""

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from dtrak.images.pictures import transformed
from dtrak.runs.run import Run

MOST_BYTES = 20 << 20
MOST_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # of the others, decoders are rarer and their faults more
ENVELOPE = 64 << 10  # what a form may add to the picture
MOST_HELD = 4 * (MOST_BYTES + ENVELOPE)  # bytes of forms that are coming
SECONDS_TO_UPLOAD = 120


class RefusedError(Exception):
    """What was sent will not do; `status` is HTTP's word for why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FormInMemory(MultiPartParser):
    """A form whose file never goes to a temporary one on disk."""

    spool_max_size = MOST_BYTES + ENVELOPE


class Forms:
    """The forms that are coming. When they hold too much memory, the oldest is given up: none can block the others."""

    def __init__(self) -> None:
        self._held: dict[asyncio.Timeout, int] = {}  # the bytes that have come, by when the form has to be there

    async def read(self, headers: Headers, stream: AsyncIterator[bytes]) -> FormData:
        """The fields of a form, as long as all of it is small enough. What does not come in time is a TimeoutError."""
        if not headers.get("content-type", "").startswith("multipart/form-data"):
            raise RefusedError(415, "send a form with a picture or a seed: multipart/form-data")
        async with asyncio.timeout(SECONDS_TO_UPLOAD) as limit:
            self._held[limit] = 0
            try:
                bounded = self._bounded(limit, stream)
                return await FormInMemory(headers, bounded, max_files=1, max_fields=4, max_part_size=ENVELOPE).parse()
            except (MultiPartException, KeyError, ValueError) as error:  # ValueErrors are those of strange encodings
                raise RefusedError(400, f"the form cannot be read: {getattr(error, 'message', error)}") from None
            finally:
                self._held.pop(limit, None)

    async def _bounded(self, limit: asyncio.Timeout, stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The stream, as long as it is short enough; what is far too much is not even read to its end."""
        size = 0
        async for chunk in stream:
            size += len(chunk)
            if size <= MOST_BYTES + ENVELOPE:
                self._hold(limit, size)
                yield chunk
            elif size > 4 * MOST_BYTES:
                break
        if size > MOST_BYTES + ENVELOPE:
            raise too_large()

    def _hold(self, limit: asyncio.Timeout, size: int) -> None:
        if limit in self._held:  # it may have been given up
            self._held[limit] = size
        while sum(self._held.values()) > MOST_HELD:
            oldest = next(iter(self._held))
            del self._held[oldest]
            if not oldest.expired():
                oldest.reschedule(0)  # which is long ago


def too_large() -> RefusedError:
    return RefusedError(413, f"the picture is larger than {MOST_BYTES >> 20} MB")


def decode(content: bytes, run: Run) -> NDArray[np.uint8]:
    """[H, W, C] as the run's images are, from the bytes of an image file."""
    if len(content) > MOST_BYTES:
        raise too_large()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's of large images: the bound below is lower than its own
        return _decode(content, run)


def _decode(content: bytes, run: Run) -> NDArray[np.uint8]:
    wanted = f"send one of {', '.join(FORMATS)}"
    try:
        image = Image.open(BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise RefusedError(413, f"the picture has more than {MOST_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise RefusedError(415, f"this is not an image, or not of a known kind: {wanted}") from None
    except Exception as error:  # each decoder raises its own kinds
        raise RefusedError(400, f"the picture cannot be read: {error}") from None
    with image:
        if image.width * image.height > MOST_PIXELS:
            size = f"{image.width:,} × {image.height:,}"
            raise RefusedError(413, f"the picture has {size} pixels, more than {MOST_PIXELS:,}")
        if image.mode in ("I", "F"):
            raise RefusedError(415, "the picture has 32 bits per pixel: convert it to 8 or 16")
        crop, size_ = _fitting(image, run)
        channels, height, width = run.train_images.shape
        try:
            pixels = transformed(image, channels, crop, size_)
        except Exception as error:
            raise RefusedError(400, f"the picture is damaged: {error}") from None
    if pixels.shape != (height, width, channels):  # it lay on its side
        raise RefusedError(422, f"the picture has {pixels.shape[1]} × {pixels.shape[0]} pixels: {_of(width, height)}")
    return pixels


def _fitting(image: Image.Image, run: Run) -> tuple[int | None, int | None]:
    """The crop and the size that fit a picture to the run's images, as for any other query; none if it fits."""
    data, (_, height, width) = run.recipe.data, run.train_images.shape
    if image.size == (width, height):
        return None, None
    if data.crop is not None and min(image.size) < data.crop:
        size = f"{image.width} × {image.height}"
        raise RefusedError(422, f"the picture has {size} pixels, too few for this run's crop of {data.crop}")
    size_ = height if height == width else data.size
    if size_ is None:
        raise RefusedError(422, f"the picture has {image.width} × {image.height} pixels: {_of(width, height)}")
    return data.crop, size_


def _of(width: int, height: int) -> str:
    return f"send one of {width} × {height}"
