"""The laws that the formulas of the methods obey, whatever the features."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dtrak.contracts import EVERY, KernelInput, Vectors
from dtrak.kernels import ArrayRows, Ridge
from dtrak.methods import METHODS

Array = NDArray[np.float64]
SIMILARITY = ("gradient-dot", "gradient-cosine")
KERNEL = ("trak", "d-trak", "relative-if", "renormalized-if")


sizes = st.integers(1, 8)
seeds = st.integers(0, 10_000)
factors = st.floats(1e-6, 1e6)
law = settings(max_examples=40, deadline=None)


def random_vectors(train: int, dim: int, queries: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return random.normal(size=(train, dim)).astype(np.float32), random.normal(size=(queries, dim)).astype(np.float32)


def score_vectors(
    method: str, train: NDArray[np.floating[Any]], queries: NDArray[np.floating[Any]], damping: float = 1.0
) -> Array:
    rows, asked = ArrayRows(train.astype(np.float32)), queries.astype(np.float32)[:, None]
    kernel = Ridge.of(rows)
    vectors = (
        Vectors(rows, asked)
        if METHODS[method].kernel is None
        else KernelInput(kernel, kernel.coordinates(asked), EVERY)
    )
    found: Array = METHODS[method].formula(vectors, damping).astype(np.float64)
    return found


def assert_same(found: Array, expected: Array, scale: float | None = None) -> None:
    largest = np.abs(expected).max() if scale is None else scale
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * largest)


@law
@given(sizes, sizes, sizes, seeds, st.lists(factors, min_size=16, max_size=16))
def test_cosines_do_not_see_how_large_an_image_is(n: int, k: int, q: int, seed: int, scales: Sequence[float]) -> None:
    train, queries = random_vectors(n, k, q, seed)
    found = score_vectors("gradient-cosine", train, queries)
    assert (np.abs(found) <= 1 + 1e-6).all()
    scaled = score_vectors("gradient-cosine", train * np.c_[scales[:n]], queries * np.c_[scales[8 : 8 + q]])
    assert_same(scaled, found, 1)
    assert_same(score_vectors("gradient-cosine", -train, queries), -found, 1)


@law
@given(sizes, sizes, seeds, st.floats(1e-3, 1e3), st.integers(-5, 5), st.integers(-5, 5))
@pytest.mark.parametrize("method", ["gradient-dot", "trak", "relative-if", "renormalized-if"])
def test_scores_are_linear_in_the_query(method: str, n: int, k: int, seed: int, damping: float, a: int, b: int) -> None:
    train, queries = random_vectors(n, k, 2, seed)
    x, y = score_vectors(method, train, queries, damping)
    mixed = score_vectors(method, train, (a * queries[0] + b * queries[1])[None], damping)[0]
    assert_same(mixed, a * x + b * y, max(np.abs(a * x).max(), np.abs(b * y).max()))


@law
@given(sizes, sizes, sizes, seeds, st.floats(1e-2, 1e2), st.floats(1e-2, 1e2))
@pytest.mark.parametrize(("method", "power"), [("trak", 0), ("relative-if", 1), ("renormalized-if", -1)])
def test_kernels_change_with_the_unit_of_the_features_as_their_formulas_do(
    method: str, power: int, n: int, k: int, q: int, seed: int, damping: float, unit: float
) -> None:
    """φ → cφ with λ → c²λ leaves trak as it is, and its quotients by c and by 1/c."""
    train, queries = random_vectors(n, k, q, seed)
    found = score_vectors(method, train, queries, damping)
    scaled = score_vectors(method, unit * train, unit * queries, unit**2 * damping)
    assert_same(scaled, unit**power * found)


@law
@given(sizes, sizes, sizes, seeds, st.floats(1e-2, 1e2))
def test_relative_and_renormalized_influence_are_trak_in_other_units(
    n: int, k: int, q: int, seed: int, damping: float
) -> None:
    """Of one sign with trak, over a norm that is the same for every query; relative-if is at most ‖φ(x)‖."""
    train, queries = random_vectors(n, k, q, seed)
    trak, relative_if, renormalized_if = (
        score_vectors(method, train, queries, damping) for method in ("trak", "relative-if", "renormalized-if")
    )
    inverse = np.linalg.inv(train.T.astype(np.float64) @ train + damping * np.eye(k))
    assert_same(relative_if * np.linalg.norm(inverse @ train.T, axis=0), trak)
    assert_same(renormalized_if * np.linalg.norm(train.astype(np.float64), axis=1), trak)
    assert (np.abs(relative_if) <= np.linalg.norm(queries, axis=1)[:, None] * (1 + 1e-5)).all()


@law
@given(sizes, sizes, seeds)
def test_images_without_a_feature_score_nothing(n: int, k: int, seed: int) -> None:
    train, queries = random_vectors(n + 1, k, 2, seed)
    train[0] = 0
    for method in ("gradient-dot", "gradient-cosine", "trak", "relative-if", "renormalized-if"):
        found = score_vectors(method, train, queries)
        assert (found[:, 0] == 0).all()
        assert_same(found[:, 1:], score_vectors(method, train[1:], queries))
