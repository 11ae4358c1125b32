"""What may come in: requests from the explorer's own page, and pictures that can be decoded safely.

A page of another site can make a browser send requests to this machine. So requests to the API are refused if they do
not come from the explorer's page, and the headers forbid other pages to show, frame or read an answer. Starlette's
TrustedHostMiddleware refuses other names of this machine. Nothing is written to the disk here, and the name of an
uploaded file is never used.
"""

import asyncio
import warnings
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import FormData, Headers, MutableHeaders
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dtrak.images.image_files import transformed

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
MAX_ADDRESS = 16 << 10  # characters
MAX_BYTES = 20 << 20  # of a picture
MAX_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # decoders of rarer formats have more bugs
ENVELOPE = 64 << 10  # bytes that a form may have beside the picture
SECONDS_TO_UPLOAD = 120


class Guard:
    """Wraps the app, refuses requests from other sites, and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(HEADERS)
                answer.setdefault("Cache-Control", "no-store")
            await send(message)

        headers, app = Headers(scope=scope), self.app
        host, origin = headers.get("host", ""), headers.get("origin")
        is_foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        is_foreign |= origin not in (None, f"http://{host}", f"https://{host}")
        starts_work = scope["method"] not in ("GET", "HEAD") or scope["path"].startswith("/api/")  # only the API can
        if starts_work and is_foreign:
            app = JSONResponse({"error": "only the explorer's page may send this request"}, 403)
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_ADDRESS:
            app = JSONResponse({"error": f"the address is longer than {MAX_ADDRESS:,} characters"}, 414)
        await app(scope, receive, send_guarded)


class RefusedError(Exception):
    """The sent form or picture cannot be used; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FormParser(MultiPartParser):
    """A parser that keeps uploaded files in memory, never in a temporary file on disk."""

    spool_max_size = MAX_BYTES + ENVELOPE


async def read_form(request: Request) -> FormData:
    """Return the fields of a form; refuse one that is too large, and raise a TimeoutError for a late one."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RefusedError(415, "send a form with a picture or a seed: multipart/form-data")

    async def bounded() -> AsyncGenerator[bytes, None]:
        size = 0  # a form that is too long is refused at its end; one that is far too long is not read to its end
        async for chunk in request.stream():
            size += len(chunk)
            if size <= MAX_BYTES + ENVELOPE:
                yield chunk
            elif size > 4 * MAX_BYTES:
                break
        if size > MAX_BYTES + ENVELOPE:
            raise too_large()

    try:
        async with asyncio.timeout(SECONDS_TO_UPLOAD):
            parser = FormParser(request.headers, bounded(), max_files=1, max_fields=4, max_part_size=ENVELOPE)
            return await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:  # ValueErrors come from strange encodings
        raise RefusedError(400, f"the form cannot be read: {getattr(error, 'message', error)}") from None


def too_large() -> RefusedError:
    return RefusedError(413, f"the picture is larger than {MAX_BYTES >> 20} MB")


@dataclass(frozen=True)
class Fit:
    """How a picture is made to fit the training images."""

    shape: tuple[int, int, int]  # (C, H, W) of the training images
    crop: int | None
    size: int | None


def decode(content: bytes, fit: Fit) -> NDArray[np.uint8]:
    """Decode an image file to pixels [H, W, C] of the shape of the training images; check its size before that."""
    if len(content) > MAX_BYTES:
        raise too_large()
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns of large images, but our limit is lower
            image = Image.open(BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise RefusedError(413, f"the picture has more than {MAX_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        wanted = f"send one of {', '.join(FORMATS)}"
        raise RefusedError(415, f"this is not an image, or not of a known kind: {wanted}") from None
    except Exception as error:  # decoders raise many kinds of errors
        raise RefusedError(400, f"the picture cannot be read: {error}") from None
    with image:
        channels, height, width = fit.shape
        found = f"the picture has {image.width:,} × {image.height:,} pixels"
        if image.width * image.height > MAX_PIXELS:
            raise RefusedError(413, f"{found}, more than {MAX_PIXELS:,}")
        if image.mode in ("I", "F"):
            raise RefusedError(415, "the picture has 32 bits per pixel: convert it to 8 or 16")
        crop, size = None, None
        if image.size != (width, height):
            crop, size = fit.crop, height if height == width else fit.size
            if crop is not None and min(image.size) < crop:
                raise RefusedError(422, f"{found}, too few for this run's crop of {crop}")
            if size is None:
                raise RefusedError(422, f"{found}: send {width} × {height}")
        try:
            with warnings.catch_warnings(action="ignore"):
                pixels = transformed(image, channels, crop, size)
        except Exception as error:
            raise RefusedError(400, f"the picture is damaged: {error}") from None
    if pixels.shape != (height, width, channels):  # its metadata say that it is turned by 90°
        raise RefusedError(
            422, f"the picture has {pixels.shape[1]} × {pixels.shape[0]} pixels: send {width} × {height}"
        )
    return pixels
