"""The pictures that were asked about, in the run's folder asked/: a PNG under a name made from its pixels.

A picture that the model drew for the question, or that came with a prompt, has a .json beside it that says so.
"""

import json
import re
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError
from dtrak.features.trajectories import SEED
from dtrak.files import write_bytes, write_json
from dtrak.images.images import Images
from dtrak.images.pictures import png
from dtrak.models.prompts import PROMPT
from dtrak.progress import say
from dtrak.runs.run import Run

NAME = re.compile(r"[0-9a-f]{16}\.png")


def name_of(pixels: NDArray[np.uint8], prompt: str | None = None) -> str:
    """What the file of a picture [H, W, C] is called; with another prompt it is another question."""
    digest = blake2b(pixels.tobytes(), person=str(pixels.shape).encode()[:16], digest_size=8)
    if prompt is not None:
        digest.update(prompt.encode())
    return digest.hexdigest() + ".png"


def keep(run: Run, pixels: NDArray[np.uint8], seed: int | None = None, prompt: str | None = None) -> Images:
    """Keep a picture [H, W, C] of the run's shape, and where it came from; gives it as the only one of a set."""
    path = run.folder / "asked" / name_of(pixels, prompt)
    about = {name: value for name, value in ((SEED, seed), (PROMPT, prompt)) if value is not None}
    if about:
        write_json(path.with_suffix(".json"), about)
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
    image, about = run.query_images(str(path)), path.with_suffix(".json")
    if not about.exists():
        return image
    told = json.loads(about.read_text())
    columns = {SEED: np.array([int(told[SEED])])} if SEED in told else {}
    return replace(image, columns=columns | ({PROMPT: np.array([str(told[PROMPT])])} if PROMPT in told else {}))
