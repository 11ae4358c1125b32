"""Hold only the strongest scores of each query, with the sums over all training images that credit is computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_GROUPS = 10_000  # sums are kept for columns with at most so many different values
CREDIT = "credit."  # begins the names of the arrays of sums in a file


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of a column, with sums over all training images n of a group and not only over held ones."""

    names: NDArray[Any]  # [G]
    sizes: NDArray[np.int64]  # [G], how many training images each has
    sums: NDArray[np.float64]  # [Q, G], of max(τ_n, 0)
    squares: NDArray[np.float64]  # [Q, G], of max(τ_n, 0)²


def grouped(values: NDArray[np.float32], names: NDArray[Any], members: NDArray[np.int64]) -> Groups:
    """Return the groups of scores [Q, N]; `members` [N] says in which of the groups `names` each image is."""
    count = len(names)
    positive = values.clip(min=0).astype(np.float64)
    sums, squares = (
        np.stack([np.bincount(members, row, count) for row in rows]).astype(np.float64)
        for rows in (positive, positive**2)
    )
    return Groups(names, np.bincount(members, minlength=count), sums, squares)


@dataclass(frozen=True, eq=False)
class Held:
    """Which scores of N training images are held: the `each` highest and the `each` lowest ones of every query."""

    each: int
    images: int  # N
    positions: NDArray[np.int64]  # [Q, H], H = 2 · each: the index in the training set of each held image
    groups: Mapping[str, Groups]
    has_lowest: bool = True  # False for the highest ones alone, H = each

    def of_queries(self, chosen: list[int]) -> "Held":
        """Return the same for some queries alone."""
        groups = {
            name: replace(one, sums=one.sums[chosen], squares=one.squares[chosen]) for name, one in self.groups.items()
        }
        return replace(self, positions=self.positions[chosen], groups=groups)


class Holder:
    """Reduces scores to those that are held, some queries after the others."""

    def __init__(self, each: int, columns: Mapping[str, NDArray[Any]]) -> None:
        self.each = each
        self._of_column: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
        for name, column in columns.items():
            groups, members = np.unique(column, return_inverse=True)
            if len(groups) <= MOST_GROUPS:
                self._of_column[name] = groups, members
        self._values: list[NDArray[np.float32]] = []
        self._positions: list[NDArray[np.int64]] = []
        self._groups: dict[str, list[Groups]] = {name: [] for name in self._of_column}
        self._images = 0

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the scores of some more queries for all training images, [Q, N]."""
        self._images = values.shape[1]
        for row in values:
            positions = _ends(row, self.each)
            self._positions.append(positions)
            self._values.append(row[positions])
            for name, (names, members) in self._of_column.items():
                self._groups[name].append(grouped(row[None], names, members))

    def held(self) -> tuple[NDArray[np.float32], Held]:
        """Return the values [Q, H], the highest first, and what they are."""
        groups = {
            name: replace(
                parts[0],
                sums=np.concatenate([one.sums for one in parts]),
                squares=np.concatenate([one.squares for one in parts]),
            )
            for name, parts in self._groups.items()
        }
        each = min(self.each, self._images)
        return np.stack(self._values), Held(each, self._images, np.stack(self._positions), groups)


def _ends(row: NDArray[np.float32], each: int) -> NDArray[np.int64]:
    """Return the positions of the highest scores, then those of the lowest ones, each in falling order.

    Of equal scores, those of the first images are taken, and the strongest of both ends are in the images' order.
    """
    count, each = len(row), min(each, len(row))
    highest = np.partition(row, count - each)[count - each]
    lowest = np.partition(row, each - 1)[each - 1]
    some = np.flatnonzero((row >= highest) | (row <= lowest))
    rising = some[np.argsort(row[some], kind="stable")]
    falling = some[np.argsort(-row[some], kind="stable")]
    return np.concatenate([falling[:each], rising[:each][::-1]])


def held_arrays(several: Sequence[Held]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, for one method or for several of the same images."""

    def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        return arrays[0] if len(arrays) == 1 else np.stack(arrays)

    first = several[0]
    found = {
        "positions": joined([one.positions for one in several]),
        "images": np.array(first.images),
        "each": np.array(first.each),
    }
    for name, groups in first.groups.items():
        found[f"{CREDIT}names.{name}"] = groups.names
        found[f"{CREDIT}sizes.{name}"] = groups.sizes
        found[f"{CREDIT}sums.{name}"] = joined([one.groups[name].sums for one in several])
        found[f"{CREDIT}squares.{name}"] = joined([one.groups[name].squares for one in several])
    return found


def held_of(arrays: Mapping[str, NDArray[Any]], methods: int, shape: tuple[int, int]) -> list[Held]:
    """Return what `held_arrays` wrote for each method; raise a ValueError that names an array which does not fit."""
    queries, held = shape
    positions, images, each = (np.asarray(arrays[name]) for name in ("positions", "images", "each"))
    _check("positions", positions, "i", (methods, queries, held))
    if images.dtype.kind != "i" or images.shape or each.dtype.kind != "i" or each.shape or not 0 < each <= images:
        raise ValueError("images and each do not say how many images there are")
    if positions.min() < 0 or positions.max() >= images:
        raise ValueError(f"positions are not those of {images} images")
    groups: list[dict[str, Groups]] = [{} for _ in range(methods)]
    for name in (name.removeprefix(f"{CREDIT}names.") for name in arrays if name.startswith(f"{CREDIT}names.")):
        parts = ("names", "sizes", "sums", "squares")
        names, sizes, sums, squares = (np.asarray(arrays[f"{CREDIT}{part}.{name}"]) for part in parts)
        _check(f"{CREDIT}names.{name}", names, "biufcSUmM", (1, 1, names.size))
        _check(f"{CREDIT}sizes.{name}", sizes, "i", (1, 1, names.size))
        shape_of_sums = methods, queries, names.size
        for part, array in (("sums", sums), ("squares", squares)):
            _check(f"{CREDIT}{part}.{name}", array, "f", shape_of_sums)
            if not np.isfinite(array).all():
                raise ValueError(f"{CREDIT}{part}.{name} is not finite")
        for of_method, *its in zip(groups, sums.reshape(shape_of_sums), squares.reshape(shape_of_sums), strict=True):
            of_method[name] = Groups(names, sizes, *its)
    each_positions = positions.reshape(methods, queries, held)
    return [Held(int(each), int(images), one, of) for one, of in zip(each_positions, groups, strict=True)]


def _check(name: str, array: NDArray[Any], kinds: str, shape: tuple[int, ...]) -> None:
    """Refuse an array of another kind or shape; axes of length one may be missing in front."""
    shapes = [shape[first:] for first in range(len(shape)) if all(length == 1 for length in shape[:first])]
    check_array(name, array, kinds, shapes)


def check_array(name: str, array: NDArray[Any], kinds: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise a ValueError if an array is empty, or has none of these kinds or none of these shapes."""
    if array.dtype.kind not in kinds or array.shape not in shapes or array.size == 0:
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, which does not fit the other arrays")
