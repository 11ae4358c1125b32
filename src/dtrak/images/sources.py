"""The sources of images: built-in digits, .npz files, folders, single files, folders on other machines, parquet files,
Hugging Face data sets, and the published CelebA and ArtBench-10.

To add one, write a function that returns `FoundImages`, and add a line to `_find`.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError, check_known
from dtrak.files import full_name
from dtrak.images.found import IMAGE_EXTENSIONS, FoundImages
from dtrak.images.metadata import METADATA_FILES, metadata_columns, table_rows
from dtrak.images.npz import npz_file
from dtrak.images.parquet import PARQUET, named_columns, parquet_files
from dtrak.images.pictures import Picture, file_errors, regular
from dtrak.images.remote import remote_folder
from dtrak.images.rows import HubRow, encoded_rows, image_columns
from dtrak.images.selection import Selection, chosen_rows
from dtrak.progress import say

CELEBA_SPLITS = {"train": "0", "validation": "1", "test": "2"}  # the numbers in list_eval_partition.txt
ARTBENCH_SPLITS = ["train", "test"]


def find_source(source: str, select: Selection | None = None) -> FoundImages:
    """Find the images of a source, or those that are selected from it, without opening them."""
    found = _find(source)
    if select is None:
        return found
    rows = chosen_rows(found.columns.get("label"), len(found.pictures), select, source)
    columns = {name: column[rows] for name, column in found.columns.items()}
    digests = None if found.digests is None else found.digests[rows]
    return FoundImages(found.ids[rows], columns, [found.pictures[row] for row in rows], digests)


def _find(source: str) -> FoundImages:
    if source.startswith("digits:"):
        return _digits(source)
    if source.startswith("hf:"):
        return _hugging_face(source)
    if source.startswith("celeba:"):
        return _celeba(source)
    if source.startswith("artbench:"):
        return _artbench(source)
    if source.startswith(PARQUET):
        return parquet_files(source)
    if "://" in source:
        return remote_folder(source)
    if source and os.path.isdir(source):
        return _folder(Path(source))
    if os.path.isfile(source) and source.lower().endswith(".npz"):
        return npz_file(source)
    if os.path.isfile(source):
        return FoundImages(np.array([Path(source).name]), {}, [Picture(source, Path(source))])
    raise UsageError(
        f"no images at {source!r}: give digits:train, digits:validation, a folder, an .npz file, hf:name:split, "
        "parquet:files, celeba:folder:split or artbench:folder:split"
    )


def _digits(source: str) -> FoundImages:
    from sklearn.datasets import load_digits

    check_known("source", source, ["digits:train", "digits:validation"])
    values, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(values))
    rows = order[:1000] if source == "digits:train" else order[1000:]
    pixels = np.round(values[rows] * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    pictures = [Picture(f"{source}, image {row}", picture) for row, picture in enumerate(pixels)]
    return FoundImages(np.arange(len(rows)), {"label": labels[rows]}, pictures)


def _folder(folder: Path) -> FoundImages:
    """Find the images of a folder in the imagefolder layout.

    `datasets` is not used here, as it takes class folders called train or test for splits.
    """
    files = {file: file.relative_to(folder).as_posix() for file in _visible_files(folder)}
    images = sorted((file for file in files if file.suffix.lower() in IMAGE_EXTENSIONS), key=files.__getitem__)
    if not images:
        raise UsageError(f"no images in the folder {folder}: looked for {', '.join(IMAGE_EXTENSIONS)}")
    metadata = sorted(file for file in files if file.name in METADATA_FILES)
    columns: dict[str, NDArray[Any]] = {}
    if metadata:
        columns = metadata_columns(images, metadata, lambda file: regular(file).read_bytes())
    elif all(file.parent != folder for file in images):
        columns["label"] = np.array([file.parent.name for file in images])
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


def _hugging_face(source: str) -> FoundImages:
    import datasets

    name, _, split = source.removeprefix("hf:").rpartition(":")
    if not name or not split:
        raise UsageError(f"{source!r} does not say which images: give hf:name:split")
    with file_errors(source, UsageError):
        dataset = datasets.load_dataset(name, split=split)
    found = found_in_dataset(dataset, source)
    typed = f"hf:{full_name(name)}:{split}"
    pictures = [replace(picture, elsewhere=HubRow(typed, row)) for row, picture in enumerate(found.pictures)]
    return found._replace(pictures=pictures)


def found_in_dataset(dataset: Any, source: str) -> FoundImages:
    """Find the images of a data set of Hugging Face, with its other columns."""
    images = image_columns(dataset.features, source)
    read, columns = encoded_rows(dataset, images[0]), named_columns(dataset.remove_columns(images)[:], dataset.features)
    pictures = [Picture(f"{source}, row {row}", partial(read, row)) for row in range(len(dataset))]
    return FoundImages(np.arange(len(dataset)), columns, pictures)


def _celeba(source: str) -> FoundImages:
    """Find the images in img_align_celeba/, with the split of each in list_eval_partition.txt: `000001.jpg 0`."""
    folder, split = _folder_and_split(source, list(CELEBA_SPLITS))
    table = _published_list(folder / "list_eval_partition.txt", "CelebA", "mmlab.ie.cuhk.edu.hk/projects/CelebA.html")
    with file_errors(str(table), UsageError):
        rows = [line.split() for line in table.read_text().splitlines() if line.strip()]
        for number, row in enumerate(rows, 1):
            if len(row) != 2 or row[1] not in CELEBA_SPLITS.values():
                raise ValueError(f"line {number} is {' '.join(row)[:80]!r}, but must be like '000001.jpg 0'")
        names = [name for name, number in rows if number == CELEBA_SPLITS[split]]
        _check_names(names)
    images = [folder / "img_align_celeba" / name for name in names]
    return FoundImages(np.array(names), {}, [Picture(str(image), image) for image in images])


def _artbench(source: str) -> FoundImages:
    """Find the images in the 256×256 imagefolder, split or not; ArtBench-10.csv gives style and artist of each."""
    folder, split = _folder_and_split(source, ARTBENCH_SPLITS)
    table = _published_list(folder / "ArtBench-10.csv", "ArtBench-10", "github.com/liaopeiyuan/artbench")
    with file_errors(str(table), UsageError), open(table, encoding="utf-8-sig", newline="") as lines:
        rows = [row for row in table_rows(lines) if _cell(row, "split") == split]
        columns = {name: np.array([_cell(row, name) for row in rows]) for name in ("label", "artist")}
        names = [f"{row['label']}/{_cell(row, 'name')}" for row in rows]
        _check_names(names, depth=2)
    places = [folder / "artbench-10-imagefolder-split" / split, folder / "artbench-10-imagefolder"]
    home = next((place for place in places if place.is_dir()), None)
    if home is None:
        raise UsageError(f"{source}: the images themselves are missing: there is neither {places[0]} nor {places[1]}")
    return FoundImages(np.array(names), columns, [Picture(str(home / name), home / name) for name in names])


def _folder_and_split(source: str, splits: list[str]) -> tuple[Path, str]:
    """Divide celeba:data/celeba:train into data/celeba and train."""
    kind, _, rest = source.partition(":")
    folder, _, split = rest.rpartition(":")
    if not folder or split not in splits:
        raise UsageError(f"{source!r} does not say which images: give {kind}:folder:split, split {' or '.join(splits)}")
    return Path(folder), split


def _published_list(table: Path, what: str, where: str) -> Path:
    """Return the list of a published data set's images; if it is missing, say where the data set is published."""
    if not os.path.isfile(table):
        raise UsageError(f"no {what} in {table.parent}: {table.name} is missing; {what} is published at {where}")
    return table


def _cell(row: Mapping[str, str], name: str) -> str:
    """Return a cell of a table's row; refuse a table without the column."""
    if name not in row:
        raise ValueError(f"it has no column {name!r}, only {', '.join(row)}")
    return row[name]


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
    if source.startswith(PARQUET):
        return source if "://" in rest else f"{kind}:{os.path.abspath(rest)}"
    folder, _, split = rest.rpartition(":")
    in_folder = os.path.isdir(folder) and not os.path.exists(source)
    return f"{kind}:{full_name(folder)}:{split}" if in_folder else full_name(source)
