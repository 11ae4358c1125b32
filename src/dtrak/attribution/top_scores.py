"""Hold only the strongest scores of each query, with the sums over all training images that credit is computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.credit import Groups

MOST_GROUPS = 10_000  # sums are kept for columns with at most so many different values


@dataclass(frozen=True, eq=False)
class Held:
    """Which scores of N training images are held: the `each` highest and the `each` lowest ones of every query."""

    each: int
    images: int  # N
    positions: NDArray[np.int64]  # [Q, H], H = 2 · each: the index in the training set of each held image
    groups: Mapping[str, Groups]  # by column
    has_lowest: bool = True  # False for the highest ones alone, H = each

    def of_queries(self, chosen: list[int]) -> "Held":
        """Return the same for some queries alone."""
        groups = {
            name: replace(one, sums=one.sums[chosen], squares=one.squares[chosen]) for name, one in self.groups.items()
        }
        return replace(self, positions=self.positions[chosen], groups=groups)


class TopScores:
    """Reduces scores to the strongest, some queries after the others."""

    def __init__(self, each: int, columns: Mapping[str, NDArray[Any]]) -> None:
        self.each = each
        found = {name: np.unique(column, return_inverse=True) for name, column in columns.items()}
        self._members = {name: one for name, one in found.items() if len(one[0]) <= MOST_GROUPS}
        self._rows: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = []
        self._groups: dict[str, list[Groups]] = {name: [] for name in self._members}
        self._images = 0

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the scores of some more queries for all training images, [Q, N]."""
        self._images = values.shape[1]
        for row in values:
            positions = _ends(row, self.each)
            self._rows.append((row[positions], positions))
            for name, (names, members) in self._members.items():
                self._groups[name].append(Groups.of(row[None], names, members))

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
        values, positions = (np.stack(one) for one in zip(*self._rows, strict=True))
        return values, Held(min(self.each, self._images), self._images, positions, groups)


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


PARTS = ("names", "sizes", "sums", "squares")


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
        found[f"credit.names.{name}"] = groups.names
        found[f"credit.sizes.{name}"] = groups.sizes
        found[f"credit.sums.{name}"] = joined([one.groups[name].sums for one in several])
        found[f"credit.squares.{name}"] = joined([one.groups[name].squares for one in several])
    return found


def held_of(arrays: Mapping[str, NDArray[Any]], methods: int, queries: int, held: int) -> list[Held]:
    """Return what `held_arrays` wrote for each method; raise a ValueError that names an array which does not fit."""
    positions, images, each = (np.asarray(arrays[name]) for name in ("positions", "images", "each"))
    check_array("positions", positions, "i", (methods, queries, held))
    if images.dtype.kind != "i" or images.shape or each.dtype.kind != "i" or each.shape or not 0 < each <= images:
        raise ValueError("images and each do not say how many images there are")
    if positions.min() < 0 or positions.max() >= images:
        raise ValueError(f"positions are not those of {images} images")
    groups: list[dict[str, Groups]] = [{} for _ in range(methods)]
    for name in (name.removeprefix("credit.names.") for name in arrays if name.startswith("credit.names.")):
        names, sizes, sums, squares = (np.asarray(arrays[f"credit.{part}.{name}"]) for part in PARTS)
        check_array(f"credit.names.{name}", names, "biufcSUmM", (names.size,))
        check_array(f"credit.sizes.{name}", sizes, "i", (names.size,))
        shape = methods, queries, names.size
        for part, array in (("sums", sums), ("squares", squares)):
            check_array(f"credit.{part}.{name}", array, "f", shape)
            if not np.isfinite(array).all():
                raise ValueError(f"credit.{part}.{name} is not finite")
        for of_method, *its in zip(groups, sums.reshape(shape), squares.reshape(shape), strict=True):
            of_method[name] = Groups(names, sizes, *its)
    rows = positions.reshape(methods, queries, held)
    return [Held(int(each), int(images), one, of) for one, of in zip(rows, groups, strict=True)]


def check_array(name: str, array: NDArray[Any], kinds: str, shape: tuple[int, ...]) -> None:
    """Raise a ValueError if an array is empty, of another kind or of another shape.

    The first axis may be missing if it has the length one: files of one method have no axis of methods.
    """
    fits = array.shape == shape or (len(shape) > 1 and shape[0] == 1 and array.shape == shape[1:])
    if array.dtype.kind not in kinds or not fits or array.size == 0:
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, which does not fit the other arrays")
