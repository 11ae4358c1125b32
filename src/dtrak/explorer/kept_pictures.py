"""Keep the pictures that users add, in the run's folder asked/, each as a PNG file named by a hash of its pixels.

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
FEATURE_FILES = re.compile(
    r"manifest\.json|cost\.json|checked\.json|shard-\d+\.safetensors|embeddings-.*\.npy|\d{5}|\..*\.tmp"
)
UNREADABLE = (DtrakError, OSError, ValueError, AttributeError)  # errors for a damaged picture or .json file
MAX_PICTURES = 200  # that are kept
MAX_BYTES = 256 << 20  # of these pictures and their features


def name_of(pixels: NDArray[np.uint8], prompt: str | None = None) -> str:
    """Return the file name of a picture [H, W, C]; the same picture with another prompt has another name."""
    digest = blake2b(pixels.tobytes(), person=str(pixels.shape).encode()[:16], digest_size=8)
    if prompt is not None:
        digest.update(prompt.encode())
    return digest.hexdigest() + ".png"


def keep(run: Run, pixels: NDArray[np.uint8], seed: int | None = None, prompt: str | None = None) -> Images:
    """Write a picture [H, W, C] of the run's shape, its seed and its prompt; return it as a set of one image."""
    path = run.folder / FOLDER / name_of(pixels, prompt)
    about = {name: value for name, value in ((SEED, seed), (PROMPT, prompt)) if value is not None}
    if about:
        write_json(path.with_suffix(".json"), about)
    if not path.exists():
        write_bytes(path, png(pixels))
    return _open(run, path)


def kept(run: Run) -> list[Images]:
    """Return the pictures that were added before, the oldest first, each as a set of one image."""
    found = []
    for path in _paths(run)[-MAX_PICTURES:]:
        try:
            found.append(_open(run, path))
        except UNREADABLE as error:
            say(f"Left out: {path.name}: {error}")
    return found


def features_of(run: Run, id_: str) -> Path:
    """Return the folder for the features of a picture."""
    return run.folder / FOLDER / FEATURES / Path(id_).stem


def remove_oldest(run: Run, but: str) -> set[str]:
    """Remove the oldest pictures above the limits, with their features, but never `but`; return the ids left."""
    paths = _paths(run)
    sizes = {path: sum(_size(one) for one in _all_of(run, path)) for path in paths}
    for path in paths:
        if len(sizes) <= MAX_PICTURES and sum(sizes.values()) <= MAX_BYTES:
            break
        if path.name != but and _is_made_here(run, path):
            _remove(run, path)
            del sizes[path]
    return {path.name for path in sizes}


def _paths(run: Run) -> list[Path]:
    """Return the paths of the pictures, the oldest first."""
    found = [path for path in (run.folder / FOLDER).glob("*.png") if NAME.fullmatch(path.name) and path.is_file()]
    ages = {}
    for path in found:
        with suppress(FileNotFoundError):  # another server of this run may have removed it
            ages[path] = path.stat().st_mtime, path.name
    return sorted(ages, key=lambda path: ages[path])


def _all_of(run: Run, path: Path) -> Iterator[Path]:
    """Yield every file and folder of a picture; removed in this order, a kill in between leaves no lost features."""
    features = features_of(run, path.name)
    if features.is_dir() and not features.is_symlink():
        yield from sorted(features.rglob("*"), reverse=True)  # the content of a folder comes before the folder
        yield features
    yield from (path, path.with_suffix(".json"))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size if path.is_file() else 0
    return 0


def _is_made_here(run: Run, path: Path) -> bool:
    """Tell whether the explorer wrote this picture: then its name is the hash of its pixels."""
    try:
        pixels = Picture(path.name, path).pixels(run.train_images.shape[0], None, None)
        return name_of(pixels, _kept_about(path).get(PROMPT)) == path.name
    except UNREADABLE:
        return False


def _remove(run: Run, path: Path) -> None:
    """Remove a picture and its features. Files that someone else put into its folders stay, and so do these folders."""
    for one in _all_of(run, path):
        with suppress(OSError):
            if one.is_dir() and not one.is_symlink():
                one.rmdir()  # fails if it is not empty
            elif one.parent == path.parent or FEATURE_FILES.fullmatch(one.name):
                one.unlink()


def _open(run: Run, path: Path) -> Images:
    image, about = run.query_images(str(path)), _kept_about(path)
    columns = {SEED: np.array([int(about[SEED])])} if SEED in about else {}
    columns |= {PROMPT: np.array([about[PROMPT]])} if PROMPT in about else {}
    image = replace(image, columns=columns) if about else image
    _ = image.fingerprint  # computed now and kept, as the file may be removed later
    return image


def _kept_about(path: Path) -> dict[str, str]:
    """Return the seed and the prompt of a picture, if it has them."""
    about = path.with_suffix(".json")
    return {name: str(value) for name, value in json.loads(about.read_text()).items()} if about.exists() else {}
