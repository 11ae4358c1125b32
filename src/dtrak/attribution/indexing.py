"""Make an index, add images to it, and remove some. What is written is complete or missing."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.compressing import Part, compressed, compressing_matrices
from dtrak.attribution.index import FILE, Description, Index, Origin, Segment
from dtrak.attribution.short_lists import VECTORS, code
from dtrak.contracts import Rows
from dtrak.errors import DtrakError, UsageError
from dtrak.files import as_npy, as_npz, make_folder, whole_folder, write_bytes, write_errors, write_json
from dtrak.images.images import Images, load_images
from dtrak.images.metadata import plain_column
from dtrak.images.sources import full_source
from dtrak.inputs.arrays import KernelVectors
from dtrak.inputs.gradients import GradientSource, train_stores, without_queries
from dtrak.inputs.needs import objectives_of
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping
from dtrak.methods import Gradients, Method
from dtrak.methods.method import kernel_scores
from dtrak.progress import progress_bar, say

NUMBERS = 512  # m, how many numbers an image's vector has
OLD = 0.1  # if a larger share of the images was added or removed, the fit is old
PICTURES = "asked"  # the folder of pictures that users of the explorer have added; a new index keeps them
FIRST = "images"  # the folder of the images that an index was made of


def build_index(
    task: Task,
    method: Method,
    damping: Damping,
    out: Path,
    model: tuple[str, str | None, str | None],
    numbers: int = NUMBERS,
) -> Index:
    """Make an index of the task's training images. `model` is what `load_model` takes to open the task's model."""
    needs = method.needs
    if not isinstance(needs, Gradients) or needs.models != "final" or method.formula is not kernel_scores:
        raise UsageError(f"an index cannot have scores of {method.name}: give trak, d-trak, mixed-trak or step-trak")
    source = GradientSource(method, needs)
    check_free(out)
    stores = train_stores(task, source.kind, 0)
    inputs: list[KernelVectors] = list(source.inputs(without_queries(task, source)))
    parts = [Part.of(one, method.name, damping) for one in inputs]
    say(f"index of {len(task.train):,} images: {4 * numbers * len(task.train) / 1e6:,.0f} MB of vectors")
    used = objectives_of(needs, task.settings.objective)
    digests = {stores[one].folder.name: stores[one].digest for one in used}
    with whole_folder(out) as new:
        matrices = compressing_matrices(parts, numbers)
        for number, matrix in enumerate(matrices):
            write_bytes(new / f"matrix-{number}.npy", as_npy(matrix))
        _write_segment(new / FIRST, task.train, [one.train for one in inputs], matrices)
        segment = Segment(FIRST, str(task.folder.resolve()), digests, len(task.train), origin_of(task.train))
        description = Description(
            method=method.name,
            dampings=[part.damping for part in parts],
            numbers=matrices[0].shape[1],
            model=model[0],
            lora=model[1],
            prompt=model[2],
            fingerprint=task.model.fingerprint,
            settings=task.settings.plain(),
            segments=[segment],
        )
        write_json(new / FILE, asdict(description))
        if (out / PICTURES).is_dir():
            shutil.copytree(out / PICTURES, new / PICTURES, ignore=shutil.ignore_patterns("features"))
    return Index.open(out)


def origin_of(images: Images) -> Origin:
    """Return where images come from."""
    crop, size = images.transformation
    return Origin(full_source(images.source), images.shape, crop, size)


def check_free(out: Path) -> None:
    """Refuse to replace a folder that is not an index."""
    if out.exists() and not (out / FILE).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not an index, and would be replaced: give another --out")


def add_images(index: Index, images: Images | str | Path) -> Index:
    """Add images to an index, with the kernels that it was made with. Their features are kept in the index."""
    more = images if isinstance(images, Images) else load_images(str(images))
    if known := np.intersect1d(index.ids.astype(str), more.ids.astype(str)).tolist():
        raise UsageError(f"{more.source}: the image {known[0]} is in {index.folder} already")
    name = f"added-{len(index.description.segments)}"
    folder, source = index.folder / name, index.source
    task = replace(index.task(more, folder), train=more, folder=folder / "features", _of_training={})
    stores = train_stores(task, source.kind, 0)
    inputs: list[KernelVectors] = list(source.inputs(without_queries(task, source)))
    _write_segment(folder, more, [one.train for one in inputs], index.matrices)
    digests = {store.folder.name: store.digest for store in stores.values()}
    segment = Segment(name, f"{name}/features", digests, len(more), origin_of(more))
    return _changed(index, segments=[*index.description.segments, segment])


def remove_images(index: Index, ids: Sequence[Any]) -> Index:
    """Remove images from an index: they are not found any more."""
    place_of = {str(one): place for place, one in enumerate(index.ids.tolist())}
    for one in ids:
        if str(one) not in place_of:
            raise UsageError(f"{index.folder} has no image {one}")
    return _changed(index, removed=sorted({*index.description.removed, *(place_of[str(one)] for one in ids)}))


def _changed(index: Index, **changes: Any) -> Index:
    """Write a changed description, and say so if the kernels are old."""
    description = replace(index.description, **changes)
    write_json(index.folder / FILE, asdict(description))
    first = description.segments[0].rows
    changed = sum(one.rows for one in description.segments[1:]) + len(description.removed)
    if changed > OLD * first:
        say(
            f"{index.folder}: its kernels were fitted on {first:,} images, and {changed:,} were added or removed "
            "since: make the index again for scores that know them"
        )
    return Index.open(index.folder)


def _write_segment(folder: Path, images: Images, rows: Sequence[Rows], matrices: Sequence[NDArray[np.float32]]) -> None:
    """Write ids, columns and vectors of some images."""
    count, numbers = len(images), matrices[0].shape[1]
    needed, free = 5 * count * numbers, shutil.disk_usage(make_folder(folder)).free
    if needed > free:
        raise DtrakError(f"{folder} needs {needed / 1e6:,.0f} MB, but its disk has {free / 1e6:,.0f} MB")
    write_bytes(folder / "ids.npy", as_npy(images.ids))
    write_bytes(folder / "columns.npz", as_npz({name: plain_column(one) for name, one in images.columns.items()}))
    with progress_bar("index", count, "images") as advance:
        advance(0)
        write_vectors(folder / VECTORS, count, numbers, compressed(rows, matrices), advance)
    code(folder)


def write_vectors(
    path: Path, count: int, numbers: int, blocks: Any, advance: Callable[[int], None] = lambda count: None
) -> None:
    """Write blocks of vectors as one array [count, numbers]; a mapped file would end the process on a full disk."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, numbers)}
    with write_errors(path), open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype="<f4").tobytes())
            advance(len(block))
