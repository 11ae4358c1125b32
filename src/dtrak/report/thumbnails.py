"""Images made small enough to be shown by the hundred."""

from base64 import b64encode
from io import BytesIO

from PIL import Image

from dtrak.data import Images

SMALL = 32  # up to so many pixels a side, every single one is kept and drawn as a square


def thumbnail(images: Images, position: int, side: int) -> tuple[bytes, str]:
    """The file of one image with at most `side` pixels a side, and its media type.

    One image at a time, as thousands of large ones would fill the memory.
    """
    pixels = images.pixels([position])[0]
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    kind = "png" if max(image.size) <= SMALL else "webp"
    image.thumbnail((side, side))
    buffer = BytesIO()
    image.save(buffer, kind, quality=80)
    return buffer.getvalue(), f"image/{kind}"


def data_uri(images: Images, position: int, side: int) -> str:
    """The same, to be written into a page."""
    content, kind = thumbnail(images, position, side)
    return f"data:{kind};base64,{b64encode(content).decode()}"
