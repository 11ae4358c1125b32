"""Images that are far away, or in the files of a data set: object stores, parquet, Hugging Face.

Nothing is downloaded or copied first, but for hf:name:split, which `datasets` keeps. Each image is read by an object
that any process with the same access can call. A parquet file has groups of rows: a process opens only the files it
needs, and reads a group of images at a time, so images should be read in their order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.files import full_name
from dtrak.images.image_files import IMAGE_EXTENSIONS, FoundImages, Picture, file_errors, regular
from dtrak.images.metadata import column_of, images_and_columns

OPEN_FILES = 4  # that a process keeps open
GROUPS = 2  # that it keeps in memory: threads read on both sides of a border

_reading = RLock()  # a parquet file is read by one thread at a time


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address that fsspec opens."""

    url: str

    def __call__(self) -> bytes:
        import fsspec

        with fsspec.open(self.url, "rb") as file:
            content: bytes = file.read()
        return content


def remote_folder(source: str) -> FoundImages:
    """Find the images of a folder with an address such as s3://bucket/images."""
    import fsspec

    with file_errors(source, UsageError):
        system, root = fsspec.core.url_to_fs(source)
        infos = {PurePosixPath(path): info for path, info in system.find(root, detail=True).items()}
        above = PurePosixPath(root)
        if list(infos) == [above]:
            above = above.parent  # the address is that of an image
        names = {path: path.relative_to(above) for path in infos}
    visible = {path: str(name) for path, name in names.items() if not any(part[0] == "." for part in name.parts)}
    url = {path: system.unstrip_protocol(str(path)) for path in visible}
    images, columns = images_and_columns(visible, lambda path: RemoteFile(url[path])())
    if not images and any(path.suffix == ".parquet" for path in visible):
        return parquet_files(source)
    if not images:
        raise UsageError(f"no images in {source}: looked for {', '.join(IMAGE_EXTENSIONS)} and .parquet")
    places = [RemoteFile(url[path]) for path in images]
    pictures = [Picture(one.url, one, one, _version(infos[path])) for path, one in zip(images, places, strict=True)]
    return FoundImages(np.array([visible[path] for path in images]), columns, pictures)


def _version(info: Mapping[str, Any]) -> str | None:
    """Return a text that changes with an object of a store: its etag or its times; None if the store has none."""
    told = {key: info[key] for key in sorted(info) if key not in ("name", "type")}
    return str(told) if told.keys() - {"size"} else None


@dataclass(frozen=True)
class ParquetRow:
    """The image in a row of a group of a parquet file."""

    url: str
    column: str
    group: int
    row: int

    def __call__(self) -> bytes:
        with _reading:
            return _encoded_image(_group(self.url, self.column, self.group)[self.row].as_py())


@lru_cache(OPEN_FILES)
def _opened(url: str) -> Any:
    import fsspec
    from pyarrow.parquet import ParquetFile

    return ParquetFile(fsspec.open(url, "rb").open())


@lru_cache(GROUPS)
def _group(url: str, column: str, group: int) -> Any:
    """Read the encoded images of a group of rows."""
    return _opened(url).read_row_group(group, columns=[column], use_threads=False).column(column)


def parquet_files(source: str) -> FoundImages:
    """Find the images of parquet files: in a folder, or by a pattern such as parquet:s3://bucket/set/train-*.parquet.

    Their ids are their paths, if all have one of their own, else the numbers of their rows.
    """
    import fsspec
    import pyarrow
    from datasets import Features

    place = source.removeprefix("parquet:")
    with _reading, file_errors(source, UsageError):
        _opened.cache_clear()  # files may have changed since they were opened
        _group.cache_clear()
        system, root = fsspec.core.url_to_fs(place)
        infos = system.find(root, detail=True) if system.isdir(root) else system.glob(root, detail=True)
        found = sorted(path for path in infos if path.endswith(".parquet")) if place else []
        versions = {system.unstrip_protocol(path): _version(infos[path]) for path in found}
    if not versions:
        raise UsageError(f"no parquet files at {source!r}: give a folder, or a pattern such as set/train-*.parquet")
    places: list[ParquetRow] = []
    paths: list[str | None] = []
    tables = []
    for url in versions:
        with _reading, file_errors(url, UsageError):
            file = _opened(url)
            features = Features.from_arrow_schema(file.schema_arrow)
            images = image_columns(features, source)
            tables.append(file.read(columns=[name for name in features if name not in images]))
            for group in range(file.num_row_groups):
                rows = range(file.metadata.row_group(group).num_rows)
                places += [ParquetRow(url, images[0], group, row) for row in rows]
            of_paths = file.read(columns=[f"{images[0]}.path"])  # without the bytes of the images
            cells = of_paths.column(0).to_pylist() if of_paths.num_columns else []
            paths += [cell and cell["path"] for cell in cells]
    with file_errors(source, UsageError):
        columns = named_columns(pyarrow.concat_tables(tables).to_pydict(), features)
    pictures = [
        Picture(f"{source}, row {row}", one, one, versions[one.url] and f"{versions[one.url]} {one.group} {one.row}")
        for row, one in enumerate(places)
    ]
    have_ids = all(paths) and len(set(paths)) == len(places)
    return FoundImages(np.array(paths) if have_ids else np.arange(len(places)), columns, pictures)


@dataclass(frozen=True)
class HubRow:
    """The image in a row of hf:name:split."""

    source: str
    row: int

    def __call__(self) -> bytes:
        return _hub_rows(self.source)(self.row)


@lru_cache(OPEN_FILES)
def _hub_rows(source: str) -> Callable[[int], bytes]:
    import datasets

    name, _, split = source.removeprefix("hf:").rpartition(":")
    dataset = datasets.load_dataset(name, split=split)
    return _encoded_rows(dataset, image_columns(dataset.features, source)[0])


def hugging_face(source: str) -> FoundImages:
    """Find the images of hf:name:split."""
    import datasets

    name, _, split = source.removeprefix("hf:").rpartition(":")
    if not name or not split:
        raise UsageError(f"{source!r} does not say which images: give hf:name:split")
    with file_errors(source, UsageError):
        dataset = datasets.load_dataset(name, split=split)
    found = found_in_dataset(dataset, source)
    for row, picture in enumerate(found.pictures):
        picture.elsewhere = HubRow(f"hf:{full_name(name)}:{split}", row)
    return found


def found_in_dataset(dataset: Any, source: str) -> FoundImages:
    """Find the images of a data set of Hugging Face, with its other columns."""
    images = image_columns(dataset.features, source)
    read, columns = (
        _encoded_rows(dataset, images[0]),
        named_columns(dataset.remove_columns(images)[:], dataset.features),
    )
    pictures = [
        Picture(f"{source}, row {row}", partial(read, row), version=f"{dataset._fingerprint} {row}")
        for row in range(len(dataset))
    ]
    return FoundImages(np.arange(len(dataset)), columns, pictures)


def image_columns(features: Mapping[str, Any], source: str) -> list[str]:
    """Return the columns of a data set that hold images: as Hugging Face's, or as {bytes, path}."""
    import datasets

    found = [
        column
        for column, feature in features.items()
        if isinstance(feature, datasets.Image) or (isinstance(feature, dict) and set(feature) == {"bytes", "path"})
    ]
    if not found:
        raise UsageError(f"{source!r} has no image column, only {', '.join(features)}")
    return found


def _encoded_rows(dataset: Any, column: str) -> Callable[[int], bytes]:
    """Return a function that reads the encoded image of a row."""
    import datasets

    encoded = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    return lambda row: _encoded_image(encoded[row][column])


def _encoded_image(cell: Mapping[str, Any] | None) -> bytes:
    """Return the encoded image of a cell, which has its bytes or the path of its file."""
    if cell is None:
        raise ValueError("it has no image")
    content: bytes | None = cell["bytes"]
    return regular(Path(cell["path"])).read_bytes() if content is None else content


def named_columns(values: Mapping[str, Sequence[Any]], features: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the columns of a data set as arrays [N]; classes have their names."""
    from datasets import ClassLabel

    columns = {}
    for column, found in values.items():
        feature = features[column]
        if isinstance(feature, ClassLabel):
            # Test splits without labels have -1 or None.
            found = [None if value is None or value < 0 else feature.names[value] for value in found]
        columns[column] = column_of(found)
    return columns
