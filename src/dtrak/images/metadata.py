"""The columns of images: from metadata.jsonl or metadata.csv beside them, as `datasets` reads it, or class folders."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.images.image_files import IMAGE_EXTENSIONS, file_errors

AnyPath = TypeVar("AnyPath", bound=PurePath)
METADATA_FILES = ("metadata.csv", "metadata.jsonl")
LONGEST_TEXT = 1000  # characters; numpy gives every text of an array as much memory as the longest
LARGEST_INT64 = 2**63 - 1


def images_and_columns(
    files: Mapping[AnyPath, str], read: Callable[[AnyPath], bytes]
) -> tuple[list[AnyPath], dict[str, NDArray[Any]]]:
    """Return the images [N] among the files of a folder, in the order of their names in it, and their columns [N]."""
    images = sorted((file for file in files if file.suffix.lower() in IMAGE_EXTENSIONS), key=files.__getitem__)
    if metadata := sorted(file for file in files if file.name in METADATA_FILES):
        return images, _columns(images, metadata, read) if images else {}
    has_classes = images and all("/" in files[image] for image in images)
    return images, {"label": np.array([image.parent.name for image in images])} if has_classes else {}


def _columns(
    images: Sequence[AnyPath], metadata: Sequence[AnyPath], read: Callable[[AnyPath], bytes]
) -> dict[str, NDArray[Any]]:
    """Read the columns [N] of `images` from the `metadata` files; None where an image's row lacks the key."""
    known, row_of = set(images), dict[PurePath, dict[str, Any]]()
    for file in metadata:
        with file_errors(str(file), UsageError):
            lines = io.StringIO(read(file).decode("utf-8-sig"), newline="")
            rows = table_rows(lines) if file.suffix == ".csv" else json_rows(lines)
        for row in rows:
            name = row.pop("file_name", None)
            if name is None:
                raise UsageError(f"{file}: a row has no file_name")
            image = file.parent / str(name)
            if image not in known:
                raise UsageError(f"{file}: it names {name!r}, but there is no such image")
            if image in row_of:
                raise UsageError(f"{file}: {image} has two rows")
            row_of[image] = row
    if len(row_of) < len(images):
        missing = next(image for image in images if image not in row_of)
        raise UsageError(f"{missing} has no row in {metadata[0]}: add one, or remove the image")
    names = dict.fromkeys(name for row in row_of.values() for name in row)
    return {name: column_of([row_of[image].get(name) for image in images]) for name in names}


def json_rows(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Read an object from each line; refuse what JSON readers would understand in different ways."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key appears twice")
        return dict(pairs)

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON: write null")

    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line, object_pairs_hook=unique, parse_constant=refuse)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error.msg}") from error
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f'line {number} is not a JSON object, like {{"file_name": "a.png"}}')
            rows.append(row)
    return rows


def table_rows(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Read the rows of a .csv file; refuse a row that does not have one cell for every column."""
    reader = csv.DictReader(lines, strict=True)
    names = list(reader.fieldnames or [])
    if len(set(names)) < len(names):
        raise ValueError("a column appears twice")
    rows = []
    for row in reader:
        if None in row or None in row.values():
            where = f"line {reader.line_num}, {row[names[0]]!r},"
            raise ValueError(f"{where} has {'more' if None in row else 'fewer'} cells than columns")
        rows.append(row)
    return rows


def column_of(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array [N]: of numbers or of text if all values are such and fit, else of objects."""
    kinds = set(map(type, values))
    uniform = kinds <= {int, float} or kinds in ({str}, {bool})
    fits = all(
        len(value) <= LONGEST_TEXT if isinstance(value, str) else abs(value) <= LARGEST_INT64
        for value in values
        if type(value) in (str, int)
    )
    return np.array(values) if uniform and fits else np.fromiter(values, dtype=np.object_)


def plain_column(column: NDArray[Any]) -> NDArray[Any]:
    """Turn a column with gaps into text: an array of objects cannot be sorted, or stored without pickle."""
    if column.dtype.kind != "O":
        return column
    return np.array(["" if value is None else str(value) for value in column])
