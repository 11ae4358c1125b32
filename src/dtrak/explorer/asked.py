"""The pictures that were asked about, in the run's folder asked/: a PNG under a name made from its pixels.

A picture that the model drew for the question has a .json beside it that says from which seed.
"""

import json
import re
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtrak.data import Images
from dtrak.errors import DtrakError
from dtrak.files import write_bytes, write_json
from dtrak.journeys import SEED
from dtrak.pictures import png
from dtrak.progress import say
from dtrak.runs import Run

NAME = re.compile(r"[0-9a-f]{16}\.png")


def name_of(pixels: NDArray[np.uint8]) -> str:
    """What the file of a picture [H, W, C] is called."""
    return blake2b(pixels.tobytes(), person=str(pixels.shape).encode()[:16], digest_size=8).hexdigest() + ".png"


def keep(run: Run, pixels: NDArray[np.uint8], seed: int | None = None) -> Images:
    """Keep a picture [H, W, C] of the run's shape, and where it came from; gives it as the only one of a set."""
    path = run.folder / "asked" / name_of(pixels)
    if seed is not None:
        write_json(path.with_suffix(".json"), {SEED: seed})
    if not path.exists():
        write_bytes(path, png(pixels))
    return _open(run, path)


def kept(run: Run) -> list[Images]:
    """What was asked about before, the oldest first; each is a set of its own."""
    found = []
    paths = [path for path in (run.folder / "asked").glob("*.png") if NAME.fullmatch(path.name)]
    for path in sorted(paths, key=lambda one: (one.stat().st_mtime, one.name)):
        try:
            found.append(_open(run, path))
        except (DtrakError, ValueError) as error:
            say(f"Left out: {error}")
    return found


def _open(run: Run, path: Path) -> Images:
    image, drawn = run.query_images(str(path)), path.with_suffix(".json")
    if not drawn.exists():
        return image
    return replace(image, columns={SEED: np.array([int(json.loads(drawn.read_text())[SEED])])})
