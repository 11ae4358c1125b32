"""Make an index, add images to it, and remove some. What is written is complete or missing."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.compressing import Part, compressed, compressing_matrices
from dtrak.attribution.depends import what_changed
from dtrak.attribution.formula_inputs import inputs_of
from dtrak.attribution.index import FILE, Description, Index, Segment, read_description
from dtrak.attribution.opened import Opened
from dtrak.attribution.question import images_given
from dtrak.attribution.required_gradients import objectives_of, spec_of
from dtrak.attribution.short_lists import VECTORS, code
from dtrak.contracts import Rows
from dtrak.errors import DtrakError, UsageError
from dtrak.files import alone_in, as_npy, as_npz, make_folder, whole_folder, write_bytes, write_errors, write_json
from dtrak.images.images import Images, ImageSource
from dtrak.images.metadata import plain_column
from dtrak.kernels.damping import Damping
from dtrak.methods.method import Gradients, kernel_scores
from dtrak.progress import progress_bar, say

NUMBERS = 512  # m, how many numbers an image's vector has
OLD = 0.1  # if a larger share of the images was added or removed, the fit is old
PICTURES = "asked"  # the folder of pictures that users of the explorer have added; a new index keeps them
FIRST = "images"  # the folder of the images that an index was made of


def build_index(opened: Opened, out: Path, numbers: int = NUMBERS) -> Index:
    """Make an index of a question's training images, for its only method. Features that are missing are computed."""
    (method,), settings = opened.question.methods, opened.question.settings
    needs = method.needs
    if not isinstance(needs, Gradients) or needs.models != "final" or method.formula is not kernel_scores:
        raise UsageError(f"an index cannot have scores of {method.name}: give trak, d-trak, mixed-trak or step-trak")
    check_free(out)
    damping, train = Damping.parse(settings.damping), opened.images("train")
    fitted = [one.fitted for one in inputs_of(opened, method, slice(0, 0))]
    parts = [Part.of(one, method.name, damping) for one in fitted]
    say(f"index of {len(train):,} images: {4 * numbers * len(train) / 1e6:,.0f} MB of vectors")
    with whole_folder(out) as new:
        matrices = compressing_matrices(parts, numbers)
        for number, matrix in enumerate(matrices):
            write_bytes(new / f"matrix-{number}.npy", as_npy(matrix))
        _write_segment(new / FIRST, train, [part.rows for part in parts], matrices)
        question = replace(opened.question, queries=None)
        description = Description(
            question=question.asked({**opened.facts, "queries": None}),
            dampings=[part.damping for part in parts],
            numbers=matrices[0].shape[1],
            segments=[_segment(opened, FIRST, str(opened.folder.resolve()))],
        )
        write_json(new / FILE, asdict(description))
        if (out / PICTURES).is_dir():
            shutil.copytree(out / PICTURES, new / PICTURES, ignore=shutil.ignore_patterns("features"))
    return Index.open(out)


def check_free(out: Path) -> None:
    """Refuse to replace a folder that is not an index, or an index with images that were added to it."""
    if (out / FILE).is_file():
        if len(read_description(out).segments) > 1:
            raise UsageError(f"{out} has images that were added to it, which would be lost: give another --out")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not an index, and would be replaced: give another --out")


def add_images(index: Index, images: ImageSource, device: str | None = None) -> Index:
    """Add images to an index, with the kernels that it was made with. Their features are kept in the index."""
    with alone_in(index.folder):
        index = Index.open(index.folder)
        name = f"added-{len(index.description.segments)}"
        source = images.fitting(index.opened.model())
        more, there = source.open(), np.ones(len(index.ids), dtype=np.bool_)
        there[index.description.removed] = False
        if known := np.intersect1d(index.ids[there].astype(str), more.ids.astype(str)).tolist():
            raise UsageError(f"{more.source}: the image {known[0]} is in {index.folder} already")
        opened = Opened(replace(index.question, train=source), index.folder / name / "features", device=device)
        then = index.description.question["facts"]
        if changed := what_changed({"model": then["model"]}, {"model": opened.facts["model"]}):
            raise UsageError(f"{index.folder} was made with another model: {changed}")
        stores = opened.stores(spec_of(index.method, index.settings), "train")
        _write_segment(index.folder / name, more, index._rows_of(stores), index.matrices)
        segment = _segment(opened, name, f"{name}/features")
        return _changed(index, segments=[*index.description.segments, segment])


def remove_images(index: Index, ids: Sequence[Any]) -> Index:
    """Remove images from an index: they are not found any more."""
    with alone_in(index.folder):
        index = Index.open(index.folder)
        place_of = {str(one): place for place, one in enumerate(index.ids.tolist())}
        for one in ids:
            if str(one) not in place_of:
                raise UsageError(f"{index.folder} has no image {one}")
        removed = {*index.description.removed, *(place_of[str(one)] for one in ids)}
        return _changed(index, removed=sorted(removed))


def _segment(opened: Opened, folder: str, features: str) -> Segment:
    """Describe the training images of an open question."""
    (method,), train = opened.question.methods, opened.images("train")
    stores = opened.stores(spec_of(method, opened.question.settings), "train")
    used = {one: stores[one] for one in objectives_of(method, opened.question.settings)}
    return Segment(
        folder,
        features,
        {one: store.folder.name for one, store in used.items()},
        {one: store.digest for one, store in used.items()},
        len(train),
        images_given(opened.question.train),
        train.shape,
    )


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
    path: Path,
    count: int,
    numbers: int,
    blocks: Iterable[NDArray[np.float32]],
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Write blocks of vectors as one array [count, numbers]; a mapped file would end the process on a full disk."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, numbers)}
    with write_errors(path), open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype="<f4").tobytes())
            advance(len(block))
