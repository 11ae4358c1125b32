"""The sources of images: built-in digits, .npz files, folders, single files, folders on other machines, parquet files,
Hugging Face data sets, and the published CelebA and ArtBench-10.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from dtrak.errors import UsageError, check_known
from dtrak.files import full_name
from dtrak.images.image_files import IMAGE_EXTENSIONS, FoundImages, Picture, file_errors, regular
from dtrak.images.metadata import METADATA_FILES, images_and_columns, table_rows
from dtrak.images.npz import npz_file
from dtrak.images.remote import hugging_face, parquet_files, remote_folder
from dtrak.images.selection import Selection, chosen_rows
from dtrak.progress import say

CELEBA_SPLITS = {"train": "0", "validation": "1", "test": "2"}  # the numbers in list_eval_partition.txt
# The list of a published data set's images, and its splits.
LISTS = {
    "celeba": ("list_eval_partition.txt", tuple(CELEBA_SPLITS)),
    "artbench": ("ArtBench-10.csv", ("train", "test")),
}


def find_source(source: str, select: Selection | None = None) -> FoundImages:
    """Find the images of a source, or those that are selected from it, without opening them."""
    kind = source.partition(":")[0]
    if ":" in source and kind in KINDS:
        found = KINDS[kind](source)
    elif "://" in source:
        found = remote_folder(source)
    elif source and os.path.isdir(source):
        found = image_folder(Path(source))
    elif os.path.isfile(source) and source.lower().endswith(".npz"):
        found = npz_file(source)
    elif os.path.isfile(source):
        found = FoundImages(np.array([Path(source).name]), {}, [Picture(source, Path(source))])
    else:
        raise UsageError(
            f"no images at {source!r}: give digits:train, digits:validation, a folder, an .npz file, hf:name:split, "
            "parquet:files, celeba:folder:split or artbench:folder:split"
        )
    if select is None:
        return found
    rows = chosen_rows(found.columns.get("label"), len(found.pictures), select, source)
    columns = {name: column[rows] for name, column in found.columns.items()}
    return FoundImages(found.ids[rows], columns, [found.pictures[row] for row in rows])


def digits(source: str) -> FoundImages:
    from sklearn.datasets import load_digits

    check_known("source", source, ["digits:train", "digits:validation"])
    values, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(values))
    rows = order[:1000] if source == "digits:train" else order[1000:]
    pixels = np.round(values[rows] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    pictures = [Picture(f"{source}, image {row}", picture) for row, picture in enumerate(pixels)]
    return FoundImages(np.arange(len(rows)), {"label": labels[rows]}, pictures)


def image_folder(place: Path) -> FoundImages:
    """Find the images of a folder in the imagefolder layout, or in its parquet files if it has no others.

    `datasets` is not used here, as it takes class folders called train or test for splits.
    """
    files = {file: file.relative_to(place).as_posix() for file in _visible_files(place)}
    images, columns = images_and_columns(files, lambda file: regular(file).read_bytes())
    if not images and any(file.suffix == ".parquet" for file in files):
        return parquet_files(str(place))
    if not images:
        raise UsageError(f"no images in the folder {place}: looked for {', '.join(IMAGE_EXTENSIONS)} and .parquet")
    return FoundImages(
        np.array([files[file] for file in images]), columns, [Picture(str(file), file) for file in images]
    )


def _visible_files(folder: Path) -> Iterator[Path]:
    """List all files that are not hidden. Each folder is searched once, even if several links lead to it.

    Links to folders are followed last, so that files inside the folder itself are listed under their own names. A link
    to a folder that contains it would be a loop, and is left out.
    """
    waiting, seen = [folder], set[str]()
    for place in waiting:
        if os.path.realpath(place) in seen:
            say(f"Left out: {place} is a link to a folder whose images are included already")
            continue
        for parent, folders, files in os.walk(place, onerror=_refuse):
            here = os.path.realpath(parent)
            seen.add(here)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            links = [Path(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]
            for link in links:
                if Path(here).is_relative_to(os.path.realpath(link)):
                    say(f"Left out: {link} is a link to a folder that contains it")
                else:
                    waiting.append(link)
            folders[:] = [name for name in folders if os.path.realpath(os.path.join(parent, name)) not in seen]
            for name in METADATA_FILES:
                if name in folders:
                    raise UsageError(f"{Path(parent, name)} is a folder, but must be a file that describes images")
            yield from (Path(parent, name) for name in files if not name.startswith("."))


def _refuse(error: OSError) -> NoReturn:
    raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error


def celeba(source: str) -> FoundImages:
    """Find the images in img_align_celeba/, with the split of each in list_eval_partition.txt: `000001.jpg 0`."""
    home, split, table = _published(source, "CelebA", "mmlab.ie.cuhk.edu.hk/projects/CelebA.html")
    with file_errors(str(table), UsageError):
        rows = [line.split() for line in table.read_text().splitlines() if line.strip()]
        for number, row in enumerate(rows, 1):
            if len(row) != 2 or row[1] not in CELEBA_SPLITS.values():
                raise ValueError(f"line {number} is {' '.join(row)[:80]!r}, but must be like '000001.jpg 0'")
        names = [name for name, number in rows if number == CELEBA_SPLITS[split]]
        _check_names(names)
    images = [home / "img_align_celeba" / name for name in names]
    return FoundImages(np.array(names), {}, [Picture(str(image), image) for image in images])


def artbench(source: str) -> FoundImages:
    """Find the images in the 256×256 imagefolder, split or not; ArtBench-10.csv gives style and artist of each."""
    home, split, table = _published(source, "ArtBench-10", "github.com/liaopeiyuan/artbench")
    with file_errors(str(table), UsageError), open(table, encoding="utf-8-sig", newline="") as lines:
        rows = table_rows(lines)
        for column in ("name", "artist", "label", "split"):
            if rows and column not in rows[0]:
                raise ValueError(f"it has no column {column!r}, only {', '.join(rows[0])}")
        rows = [row for row in rows if row["split"] == split]
        columns = {name: np.array([row[name] for row in rows]) for name in ("label", "artist")}
        names = [f"{row['label']}/{row['name']}" for row in rows]
        _check_names(names, depth=2)
    places = [home / "artbench-10-imagefolder-split" / split, home / "artbench-10-imagefolder"]
    images = next((place for place in places if place.is_dir()), None)
    if images is None:
        raise UsageError(f"{source}: the images themselves are missing: there is neither {places[0]} nor {places[1]}")
    return FoundImages(np.array(names), columns, [Picture(str(images / name), images / name) for name in names])


def _published(source: str, what: str, where: str) -> tuple[Path, str, Path]:
    """Divide celeba:data/celeba:train into data/celeba and train, and find the list of the data set's images."""
    kind, _, rest = source.partition(":")
    home, _, split = rest.rpartition(":")
    table, splits = LISTS[kind]
    if not home or split not in splits:
        raise UsageError(f"{source!r} does not say which images: give {kind}:folder:split, split {' or '.join(splits)}")
    if not os.path.isfile(Path(home, table)):
        raise UsageError(f"no {what} in {home}: {table} is missing; {what} is published at {where}")
    return Path(home), split, Path(home, table)


def _check_names(names: Sequence[str], depth: int = 1) -> None:
    """Refuse names that are not `depth` levels inside the folder of the images, or that appear twice."""
    for name in names:
        parts = name.split("/")
        if len(parts) != depth or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise ValueError(f"it names {name!r}, which is no file in the folder of its images")
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise ValueError(f"it names {name!r} more than once")


def full_source(source: str) -> str:
    """Return a source of images as a name that is valid in any working folder."""
    kind, _, rest = source.partition(":")
    if kind == "parquet":
        return source if "://" in rest else f"{kind}:{os.path.abspath(rest)}"
    folder, _, split = rest.rpartition(":")
    in_folder = os.path.isdir(folder) and not os.path.exists(source)
    return f"{kind}:{full_name(folder)}:{split}" if in_folder else full_name(source)


# The kinds of sources by what stands before the first colon; a new one is a function and a line here.
KINDS: dict[str, Callable[[str], FoundImages]] = {
    "digits": digits,
    "hf": hugging_face,
    "parquet": parquet_files,
    "celeba": celeba,
    "artbench": artbench,
}
