"""The product's kernels, given rows: the only file of these tests that knows how they are made."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.contracts import EVERY, KernelInput
from dtrak.kernels import ArrayRows, Ridge
from dtrak.methods.das import changes_without_image

Rows = NDArray[np.float32]  # [N, C, k]


def numbers_of(train: Rows, queries: Rows, damping: float, only_damping: bool) -> dict[str, NDArray[Any]]:
    """Scores [Q, N] and what formulas ask for, each [N]; the kernel may be made for this λ alone."""
    kernel = Ridge.of(ArrayRows(train), one_damping=only_damping)
    return {
        "scores": kernel.scores(kernel.coordinates(queries), damping),
        "scores of some": kernel.scores(kernel.coordinates(queries[1:]), damping, slice(2, 5)),
        "self-influence": kernel.squares(damping, 1),
        "norms": np.sqrt(kernel.squares(damping, 0)),
        "preconditioned norms": np.sqrt(kernel.squares(damping, 2)),
    }


def changes_without(train: Rows, queries: Rows, residuals: NDArray[Any], damping: float) -> NDArray[Any]:
    """How much less each query's output is without each image, [Q, N]; C is 1."""
    kernel = Ridge.of(ArrayRows(train))
    return changes_without_image(KernelInput(kernel, kernel.coordinates(queries), EVERY, residuals), damping)
