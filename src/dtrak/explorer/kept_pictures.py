"""Keep the pictures that users add, in the folder asked/ of a run or an index, each as a PNG file.

Its name is a hash of its pixels.

If a picture was drawn from a seed or has a prompt, a .json file beside it has both. Its features are in the folder
asked/features/NAME. The number of pictures and their bytes are limited: the oldest pictures are removed first.
"""

import json
import re
from collections.abc import Iterator
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
    if prompt is not None:
        digest.update(prompt.encode())
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
    """Remove the oldest pictures above the limits, with their features, but never `but`; return the ids left."""
    paths = _paths(home)
    sizes = {path: sum(_size(one) for one in _all_of(home, path)) for path in paths}
    for path in paths:
        if len(sizes) <= MAX_PICTURES and sum(sizes.values()) <= MAX_BYTES:
            break
        if path.name != but and _is_made_here(home, path):
            _remove(home, path)
            del sizes[path]
    return {path.name for path in sizes}


def _paths(home: Home) -> list[Path]:
    """Return the paths of the pictures, the oldest first."""
    found = [path for path in (home.folder / FOLDER).glob("*.png") if NAME.fullmatch(path.name) and path.is_file()]
    ages = {}
    for path in found:
        with suppress(FileNotFoundError):  # another server may have removed it
            ages[path] = path.stat().st_mtime, path.name
    return sorted(ages, key=lambda path: ages[path])


def _all_of(home: Home, path: Path) -> Iterator[Path]:
    """Yield every file and folder of a picture; removed in this order, a kill in between leaves no lost features."""
    features = features_of(home, path.name)
    if features.is_dir() and not features.is_symlink():
        yield from sorted(features.rglob("*"), reverse=True)  # the content of a folder comes before the folder
        yield features
    yield from (path, path.with_suffix(".json"))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size if path.is_file() else 0
    return 0


def _is_made_here(home: Home, path: Path) -> bool:
    """Tell whether the explorer wrote this picture: then its name is the hash of its pixels."""
    try:
        pixels = Picture(path.name, path).pixels(home.train_images.shape[0])
        return name_of(pixels, _kept_about(path).get(PROMPT)) == path.name
    except UNREADABLE:
        return False


def _remove(home: Home, path: Path) -> None:
    """Remove a picture and its features. Files that someone else put into its folders stay, and so do these folders."""
    for one in _all_of(home, path):
        with suppress(OSError):
            if one.is_dir() and not one.is_symlink():
                one.rmdir()  # fails if it is not empty
            elif one.parent == path.parent or FEATURE_FILES.fullmatch(one.name):
                one.unlink()


def _open(home: Home, path: Path) -> Images:
    image, about = home.query_images(str(path)), _kept_about(path)
    columns = {SEED: np.array([int(about[SEED])])} if SEED in about else {}
    columns |= {PROMPT: np.array([about[PROMPT]])} if PROMPT in about else {}
    image = replace(image, columns=columns) if about else image
    _ = image.fingerprint  # computed now and kept, as the file may be removed later
    return image


def _kept_about(path: Path) -> dict[str, str]:
    """Return the seed and the prompt of a picture, if it has them."""
    about = path.with_suffix(".json")
    return {name: str(value) for name, value in json.loads(about.read_text()).items()} if about.exists() else {}
