"""Draw the random subsets of the training images that models are retrained on, with the same share of every class."""

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.noise import stream


def random_subsets(
    count: int, total: int, fraction: float = 0.5, labels: NDArray[np.generic] | None = None, seed: int = 0
) -> NDArray[np.bool_]:
    """Return masks [count, total] of subsets that hold round(fraction · total) images each.

    With `labels` [total], a subset holds fraction · n of a class's n images, rounded up or down. A subset depends on
    the seed and on its index, not on how many subsets there are.
    """
    if count < 1:
        raise UsageError(f"{count} subsets: there must be at least 1")
    if not 0 < fraction < 1 or round(fraction * total) in (0, total):
        raise UsageError(f"fraction {fraction}: a subset of {total} images must hold at least one of them, but not all")
    classes = np.zeros(total, int) if labels is None else np.unique(labels.astype(str), return_inverse=True)[1]
    members = [np.flatnonzero(classes == one) for one in range(classes.max() + 1)]
    masks = np.zeros((count, total), dtype=np.bool_)
    for index, mask in enumerate(masks):
        random = stream(seed, "subset", index)
        sizes = _sizes(np.array([len(rows) for rows in members]), fraction, random)
        for rows, size in zip(members, sizes, strict=True):
            mask[random.permutation(rows)[:size]] = True
    return masks


def _sizes(counts: NDArray[np.int64], fraction: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Return how many images of each class are in a subset, [L], for classes of `counts` [L] images.

    Each share is rounded down; then random classes get one more, until the subset has its size.
    """
    shares = np.round(fraction * counts, 9)  # 0.29 · 100 is 28.999999999999996
    sizes = np.floor(shares).astype(np.int64)
    rests = shares - sizes
    left = round(fraction * int(counts.sum())) - int(sizes.sum())
    if left:
        sizes[random.choice(len(counts), size=left, replace=False, p=rests / rests.sum())] += 1
    return sizes
