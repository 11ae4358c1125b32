"""The product's kernels, given rows: the only file of these tests that knows how they are made."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.kernels import ArrayRows, decompose
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.gram import fit_gram
from dtrak.kernels.leave_one_out import fit_leave_one_out
from dtrak.kernels.pooled import fit_pooled
from dtrak.kernels.solved import solve

Rows = NDArray[np.float32]  # [N, C, k]


def numbers_of(train: Rows, queries: Rows, damping: float, only_damping: bool) -> dict[str, NDArray[Any]]:
    """Scores [Q, N] and what formulas ask for, each [N]; the kernel may be made for this λ alone."""
    if train.shape[1] == 1 and not only_damping:
        kernel: Any = decompose(ArrayRows(train[:, 0]))
        queries = queries[:, 0]
    else:
        rows = CopyFeatures([ArrayRows(train)], unit=False)
        kernel = solve(fit_gram(rows), damping, rows) if only_damping else fit_pooled(rows)
    return {
        "scores": kernel.scores(kernel.coordinates(queries), damping),
        "scores of some": kernel.scores(kernel.coordinates(queries[1:]), damping, slice(2, 5)),
        "self-influence": kernel.self_influence(damping),
        "norms": kernel.norms(),
        "preconditioned norms": kernel.preconditioned_norms(damping),
    }


def changes_without(train: Rows, queries: Rows, residuals: NDArray[Any], damping: float) -> NDArray[Any]:
    """How much less each query's output is without each image, [Q, N]; C is 1."""
    kernel = fit_leave_one_out(ArrayRows(train[:, 0]), residuals)
    return kernel.scores(kernel.coordinates(queries[:, 0]), damping)
