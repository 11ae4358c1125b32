"""Keep the pictures that users add, in the folder asked/ of a run or an index, each as a PNG file.

Its name is a hash of its pixels. If a picture was drawn from a seed or has a prompt, a .json file beside it has both.
Its features are in the folder asked/features/NAME. The number of pictures and their bytes are limited: the oldest
pictures are removed first.
"""

import json
import re
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError
from dtrak.features.trajectories import SEED
from dtrak.files import write_bytes, write_json
from dtrak.images.image_files import Picture, png
from dtrak.images.images import Images
from dtrak.models.prompts import PROMPT
from dtrak.progress import say

FOLDER, FEATURES = "asked", "features"
NAME = re.compile(r"[0-9a-f]{16}\.png")
FEATURE_FILES = re.compile(
    r"part\.json|rows\.npy|cost\.json|checked\.json|shard-\d+\.safetensors|embeddings-.*\.npy|\d{5}|\..*\.tmp"
)
UNREADABLE = (DtrakError, OSError, ValueError, AttributeError)  # errors for a damaged picture or .json file
MAX_PICTURES = 200  # that are kept
MAX_BYTES = 256 << 20  # of these pictures and their features


class Home(Protocol):
    """A folder that keeps pictures, and opens them in the shape of its training images: a run, for example."""

    @property
    def folder(self) -> Path: ...
    @property
    def train_images(self) -> Images: ...
    def query_images(self, source: str) -> Images: ...


def name_of(pixels: NDArray[np.uint8], prompt: str | None = None) -> str:
    """Return the file name of a picture [H, W, C]; the same picture with another prompt has another name."""
    digest = blake2b(pixels.tobytes(), person=str(pixels.shape).encode()[:16], digest_size=8)
    digest.update((prompt or "").encode())
    return digest.hexdigest() + ".png"


def keep(home: Home, pixels: NDArray[np.uint8], seed: int | None = None, prompt: str | None = None) -> Images:
    """Write a picture [H, W, C] of the right shape, its seed and its prompt; return it as a set of one image."""
    path = home.folder / FOLDER / name_of(pixels, prompt)
    about = {name: value for name, value in ((SEED, seed), (PROMPT, prompt)) if value is not None}
    if about:
        write_json(path.with_suffix(".json"), about)
    if not path.exists():
        write_bytes(path, png(pixels))
    return _open(home, path)


def kept(home: Home) -> list[Images]:
    """Return the pictures that were added before, the oldest first, each as a set of one image."""
    found = []
    for path in _paths(home)[-MAX_PICTURES:]:
        try:
            found.append(_open(home, path))
        except UNREADABLE as error:
            say(f"Left out: {path.name}: {error}")
    return found


def features_of(home: Home, id_: str) -> Path:
    """Return the folder for the features of a picture."""
    return home.folder / FOLDER / FEATURES / Path(id_).stem


def remove_oldest(home: Home, but: str) -> set[str]:
    """Remove the oldest pictures above the limits, with their features, but never `but`; return the ids left.

    Files that someone else put into their folders stay, and so do pictures whose name is not the hash of their pixels.
    """
    files = {}
    for path in _paths(home):
        features = features_of(home, path.name)
        inside = [] if features.is_symlink() else [*sorted(features.rglob("*"), reverse=True), features]
        files[path] = [*inside, path, path.with_suffix(".json")]  # in this order, a kill leaves no lost features
    sizes = dict.fromkeys(files, 0)
    for path, one in [(path, one) for path, several in files.items() for one in several]:
        with suppress(OSError):  # another server may have removed it
            sizes[path] += one.lstat().st_size * one.is_file()
    for path in files:
        if len(sizes) <= MAX_PICTURES and sum(sizes.values()) <= MAX_BYTES:
            break
        try:
            pixels = Picture(path.name, path).pixels(home.train_images.shape[0])
            is_ours = name_of(pixels, _about(path).get(PROMPT)) == path.name
        except UNREADABLE:
            is_ours = False
        if path.name == but or not is_ours:
            continue
        for one in files[path]:
            with suppress(OSError):
                if one.is_dir() and not one.is_symlink():
                    one.rmdir()  # fails if it is not empty
                elif one.parent == path.parent or FEATURE_FILES.fullmatch(one.name):
                    one.unlink()
        del sizes[path]
    return {path.name for path in sizes}


def _paths(home: Home) -> list[Path]:
    """Return the paths of the pictures, the oldest first."""
    ages = {}
    for path in (home.folder / FOLDER).glob("*.png"):
        with suppress(FileNotFoundError):  # another server may have removed it
            if NAME.fullmatch(path.name) and path.is_file():
                ages[path] = path.stat().st_mtime, path.name
    return sorted(ages, key=lambda path: ages[path])


def _open(home: Home, path: Path) -> Images:
    image, about = home.query_images(str(path)), _about(path)
    columns = {SEED: np.array([int(about[SEED])])} if SEED in about else {}
    columns |= {PROMPT: np.array([about[PROMPT]])} if PROMPT in about else {}
    image = replace(image, columns=columns) if about else image
    _ = image.fingerprint  # computed now and kept, as the file may be removed later
    return image


def _about(path: Path) -> dict[str, str]:
    """Return the seed and the prompt of a picture, if it has them."""
    about = path.with_suffix(".json")
    return {name: str(value) for name, value in json.loads(about.read_text()).items()} if about.exists() else {}
