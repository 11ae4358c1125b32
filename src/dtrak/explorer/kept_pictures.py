"""The pictures that were asked about, in the run's folder asked/: a PNG under a name made from its pixels.

A picture that the model drew for the question, or that came with a prompt, has a .json beside it that says so. Its
features lie in a folder of their own, asked/features/NAME. All of it has bounds: the oldest picture goes first.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError
from dtrak.features.trajectories import SEED
from dtrak.files import write_bytes, write_json
from dtrak.images.images import Images
from dtrak.images.pictures import Picture, png
from dtrak.models.prompts import PROMPT
from dtrak.progress import say
from dtrak.runs.run import Run

FOLDER, FEATURES = "asked", "features"
NAME = re.compile(r"[0-9a-f]{16}\.png")
MADE = re.compile(r"manifest\.json|cost\.json|shard-\d+\.safetensors|embeddings-.*\.npy|\d{5}|\..*\.tmp")
UNREADABLE = (DtrakError, OSError, ValueError, AttributeError)  # a picture, or the .json beside it
MOST_PICTURES = 200  # that are kept
MOST_BYTES = 256 << 20  # that they may take with their features


def name_of(pixels: NDArray[np.uint8], prompt: str | None = None) -> str:
    """What the file of a picture [H, W, C] is called; with another prompt it is another question."""
    digest = blake2b(pixels.tobytes(), person=str(pixels.shape).encode()[:16], digest_size=8)
    if prompt is not None:
        digest.update(prompt.encode())
    return digest.hexdigest() + ".png"


def keep(run: Run, pixels: NDArray[np.uint8], seed: int | None = None, prompt: str | None = None) -> Images:
    """Keep a picture [H, W, C] of the run's shape, and where it came from; gives it as the only one of a set."""
    path = run.folder / FOLDER / name_of(pixels, prompt)
    about = {name: value for name, value in ((SEED, seed), (PROMPT, prompt)) if value is not None}
    if about:
        write_json(path.with_suffix(".json"), about)
    if not path.exists():
        write_bytes(path, png(pixels))
    return _open(run, path)


def kept(run: Run) -> list[Images]:
    """What was asked about before, the oldest first; each is a set of its own."""
    found = []
    for path in _paths(run)[-MOST_PICTURES:]:
        try:
            found.append(_open(run, path))
        except UNREADABLE as error:
            say(f"Left out: {path.name}: {error}")
    return found


def features_of(run: Run, id_: str) -> Path:
    """The folder of all that is made of a picture."""
    return run.folder / FOLDER / FEATURES / Path(id_).stem


def remove_oldest(run: Run, but: str) -> set[str]:
    """Remove the oldest pictures beyond the bounds, `but` one, with all that was made of them; gives who is left."""
    paths = _paths(run)
    sizes = {path: sum(_size(one) for one in _all_of(run, path)) for path in paths}
    for path in paths:
        if len(sizes) <= MOST_PICTURES and sum(sizes.values()) <= MOST_BYTES:
            break
        if path.name != but and _is_own(run, path):
            _remove(run, path)
            del sizes[path]
    return {path.name for path in sizes}


def _paths(run: Run) -> list[Path]:
    """The pictures, the oldest first."""
    found = [path for path in (run.folder / FOLDER).glob("*.png") if NAME.fullmatch(path.name) and path.is_file()]
    ages = {}
    for path in found:
        with suppress(FileNotFoundError):  # another server of this run may have removed it
            ages[path] = path.stat().st_mtime, path.name
    return sorted(ages, key=lambda path: ages[path])


def _all_of(run: Run, path: Path) -> Iterator[Path]:
    """Every file and folder that belongs to a picture, in the order in which a kill between two leaves no orphans."""
    features = features_of(run, path.name)
    if features.is_dir() and not features.is_symlink():
        yield from sorted(features.rglob("*"), reverse=True)  # what is in a folder before the folder
        yield features
    yield from (path, path.with_suffix(".json"))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size if path.is_file() else 0
    return 0


def _is_own(run: Run, path: Path) -> bool:
    """Whether we made it: its name has to be that of its pixels."""
    try:
        pixels = Picture(path.name, path).pixels(run.train_images.shape[0], None, None)
        return name_of(pixels, _kept_about(path).get(PROMPT)) == path.name
    except UNREADABLE:
        return False


def _remove(run: Run, path: Path) -> None:
    """Remove a picture and what was made of it. What someone else put into its folders stays, and so do they."""
    for one in _all_of(run, path):
        with suppress(OSError):
            if one.is_dir() and not one.is_symlink():
                one.rmdir()  # which fails unless it is empty
            elif one.parent == path.parent or MADE.fullmatch(one.name):
                one.unlink()


def _open(run: Run, path: Path) -> Images:
    image, about = run.query_images(str(path)), _kept_about(path)
    columns = {SEED: np.array([int(about[SEED])])} if SEED in about else {}
    columns |= {PROMPT: np.array([about[PROMPT]])} if PROMPT in about else {}
    image = replace(image, columns=columns) if about else image
    _ = image.fingerprint  # is found and kept as long as the file is there
    return image


def _kept_about(path: Path) -> dict[str, str]:
    """Where a picture came from: its seed and its prompt, if it had them."""
    about = path.with_suffix(".json")
    return {name: str(value) for name, value in json.loads(about.read_text()).items()} if about.exists() else {}
