"""Files of images that tests make, and what they expect of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dtrak.errors import DtrakError, UsageError
from dtrak.images.images import Images


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save_image(path: Path, pixels: NDArray[np.uint8], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def save_npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def everything(images: Images) -> NDArray[np.uint8]:
    return images.pixels(range(len(images)))


def refused(call: Callable[[], object], *parts: object, kind: type[DtrakError] = UsageError) -> str:
    """The message of the error that `call` must raise, after checking that it has all `parts`."""
    with pytest.raises(DtrakError) as caught:
        call()
    assert type(caught.value) is kind
    message = str(caught.value)
    for part in parts:
        assert str(part) in message
    assert "\n" not in message
    return message
