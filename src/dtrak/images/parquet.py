"""Images in the parquet files of a data set, which stay where they are: in a folder, in an object store or on a hub.

A file has groups of rows. A process reads one group of images at a time, and opens only the files that it needs. So
nothing is downloaded or copied first, but images should be read in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.images.found import FoundImages
from dtrak.images.metadata import column_of
from dtrak.images.pictures import Picture, file_errors
from dtrak.images.rows import encoded_image, image_columns

PARQUET = "parquet:"
OPEN_FILES = 4  # that a process keeps open

_reading = RLock()  # a file is read by one thread at a time


@dataclass(frozen=True)
class ParquetRow:
    """The image in a row of a group of a parquet file, which any process with the same access can read."""

    url: str
    column: str
    group: int
    row: int

    def __call__(self) -> bytes:
        with _reading:
            return encoded_image(_group(self.url, self.column, self.group)[self.row].as_py())


@lru_cache(OPEN_FILES)
def _opened(url: str) -> Any:
    import fsspec
    from pyarrow.parquet import ParquetFile

    return ParquetFile(fsspec.open(url, "rb").open())


@lru_cache(1)
def _group(url: str, column: str, group: int) -> Any:
    """Read the encoded images of a group of rows."""
    return _opened(url).read_row_group(group, columns=[column], use_threads=False).column(column)


def parquet_files(source: str) -> FoundImages:
    """Find the images of parquet:FILES: a folder, or a pattern such as s3://bucket/set/train-*.parquet."""
    import pyarrow
    from datasets import Features

    with _reading, file_errors(source, UsageError):
        _opened.cache_clear()  # files may have changed since they were opened
        _group.cache_clear()
        urls = _urls(source.removeprefix(PARQUET))
    if not urls:
        raise UsageError(f"no parquet files at {source!r}: give a folder, or a pattern such as set/train-*.parquet")
    places: list[ParquetRow] = []
    tables = []
    for url in urls:
        with _reading, file_errors(url, UsageError):
            file = _opened(url)
            features = Features.from_arrow_schema(file.schema_arrow)
            images = image_columns(features, source)
            tables.append(file.read(columns=[column for column in features if column not in images]))
            for group in range(file.num_row_groups):
                rows = range(file.metadata.row_group(group).num_rows)
                places += [ParquetRow(url, images[0], group, row) for row in rows]
    with file_errors(source, UsageError):
        columns = named_columns(pyarrow.concat_tables(tables).to_pydict(), features)
    pictures = [Picture(f"{source}, row {row}", place, place) for row, place in enumerate(places)]
    return FoundImages(np.arange(len(places)), columns, pictures)


def _urls(place: str) -> list[str]:
    """Return the addresses of the parquet files at a place, in the order of their names."""
    import fsspec

    if not place:
        return []  # and not all files below the working folder
    system, root = fsspec.core.url_to_fs(place)
    found = system.find(root) if system.isdir(root) else system.glob(root)
    return [system.unstrip_protocol(path) for path in sorted(found) if path.endswith(".parquet")]


def named_columns(values: Mapping[str, Sequence[Any]], features: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the columns of a data set of Hugging Face as arrays [N]; classes have their names."""
    from datasets import ClassLabel

    columns = {}
    for column, found in values.items():
        feature = features[column]
        if isinstance(feature, ClassLabel):
            # Test splits without labels have -1 or None.
            found = [None if value is None or value < 0 else feature.names[value] for value in found]
        columns[column] = column_of(found)
    return columns
