"""Kernels that are given rows against their formulas: they differ by at most 1e-5 of the largest number."""

import numpy as np
import pytest

from reference.product_kernels import changes_without, numbers_of
from reference.slow_methods import preconditioned

SHAPES = ((30, 1, 8), (8, 1, 30), (20, 3, 12), (6, 3, 40))  # [N, C, k], with more rows than numbers and with fewer


def assert_equal(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), name


@pytest.mark.parametrize("only_damping", [False, True])
@pytest.mark.parametrize("fraction", [0.03, 1.0, 30.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_numbers_are_the_formulas(shape: tuple[int, int, int], fraction: float, only_damping: bool) -> None:
    random = np.random.default_rng(sum(shape))
    train, queries = (random.normal(size=(n, *shape[1:])).astype(np.float32) for n in (shape[0], 3))
    train[1] = 0  # an image that was left out
    rows = train.reshape(-1, shape[2]).astype(np.float64)
    damping = fraction * (rows**2).sum() / (len(train) - 1)
    found = numbers_of(train, queries, damping, only_damping)
    solved = preconditioned(rows, damping, rows).reshape(train.shape)
    scores = np.einsum("qck,nck->qn", queries, solved)
    assert_equal(found["scores"], scores, "scores")
    assert_equal(found["scores of some"], scores[1:, 2:5], "scores of some")
    assert_equal(found["self-influence"], (train * solved).sum((1, 2)), "self-influence")
    assert_equal(found["norms"], np.sqrt((train.astype(np.float64) ** 2).sum((1, 2))), "norms")
    assert_equal(found["preconditioned norms"], np.sqrt((solved**2).sum((1, 2))), "preconditioned norms")


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_changes_are_those_of_regressions_without_the_image(shape: tuple[int, int, int]) -> None:
    random, damping = np.random.default_rng(0), 0.3
    train, queries = (random.normal(size=(n, *shape[1:])).astype(np.float32) for n in (shape[0], 3))
    rows, targets = train[:, 0].astype(np.float64), random.normal(size=shape[0])

    def weights(kept: np.ndarray) -> np.ndarray:
        return preconditioned(rows[kept], damping, targets[kept] @ rows[kept])

    every = np.arange(len(rows))
    changes = [queries[:, 0] @ (weights(every) - weights(every[every != n])) for n in every]
    residuals = targets - rows @ weights(every)
    assert_equal(changes_without(train, queries, residuals, damping), np.stack(changes, 1), "changes")
