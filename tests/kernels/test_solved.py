"""The kernel for one λ: the formula by an explicit inverse, and the same numbers as the decomposed kernel."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dtrak
import tiny
from dtrak.errors import DtrakError
from dtrak.images.images import load_images
from dtrak.inputs import gradients
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.gram import Gram, fit_gram
from dtrak.kernels.pooled import fit_pooled
from dtrak.kernels.preconditioner import ArrayRows, effective_dimension, mean_eigenvalue, rank, trace
from dtrak.kernels.solved import SolvedKernel, solve

RANDOM = np.random.default_rng(3)
TRAIN, QUERIES = (RANDOM.normal(size=(count, 4, 12)).astype(np.float32) for count in (30, 5))


def matrix(train: NDArray[np.float32] = TRAIN) -> NDArray[np.float64]:
    return np.einsum("nck,ncl->kl", train, train, dtype=np.float64)


def solved(damping: float, averaged: bool = False) -> SolvedKernel:
    features = CopyFeatures([ArrayRows(TRAIN)], unit=False)
    return solve(fit_gram(features), damping, features.mean() if averaged else features)


@given(st.floats(1e-3, 1e4))
def test_scores_and_self_influence_are_the_formula(damping: float) -> None:
    kernel, inverse = solved(damping), np.linalg.inv(matrix() + damping * np.eye(12))
    coordinates = kernel.coordinates(QUERIES)
    expected = np.einsum("qck,kl,ncl->qn", QUERIES, inverse, TRAIN)
    np.testing.assert_allclose(
        kernel.scores(coordinates, damping), expected, rtol=1e-3, atol=1e-4 * abs(expected).max()
    )
    some = kernel.scores(coordinates[1:3], damping, slice(4, 9))
    np.testing.assert_allclose(some, expected[1:3, 4:9], rtol=1e-3, atol=1e-4 * abs(expected).max())
    own = np.einsum("nck,kl,ncl->n", TRAIN, inverse, TRAIN)
    np.testing.assert_allclose(kernel.self_influence(damping), own, rtol=1e-4)
    np.testing.assert_allclose(kernel.self_influence(damping, slice(2, 5)), own[2:5], rtol=1e-4)
    norms = np.sqrt(np.square(TRAIN @ inverse).sum((1, 2)))
    np.testing.assert_allclose(kernel.preconditioned_norms(damping), norms, rtol=1e-3)
    np.testing.assert_allclose(kernel.norms(slice(3, 7)), np.sqrt(np.square(TRAIN[3:7]).sum((1, 2))), rtol=1e-5)


@pytest.mark.parametrize("averaged", [False, True])
def test_the_decomposed_kernel_has_the_same_numbers(averaged: bool) -> None:
    features = CopyFeatures([ArrayRows(TRAIN)], unit=False)
    one, other = solved(0.7, averaged), fit_pooled(features, features.mean() if averaged else features)
    queries = QUERIES.mean(1, keepdims=True) if averaged else QUERIES
    scores = [kernel.scores(kernel.coordinates(queries), 0.7) for kernel in (one, other)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-3, atol=1e-5)
    of_train = [kernel.scores(kernel.train_coordinates([7, 2]), 0.7) for kernel in (one, other)]
    np.testing.assert_allclose(of_train[0], of_train[1], rtol=1e-3, atol=1e-5)
    assert effective_dimension(one, 0.7) == pytest.approx(effective_dimension(other, 0.7))
    np.testing.assert_allclose(one.eigenvalues, other.eigenvalues, rtol=1e-6)
    for number in (trace, mean_eigenvalue, rank):
        assert number(one) == pytest.approx(number(other)), number


def test_it_is_for_one_damping() -> None:
    kernel = solved(0.7)
    with pytest.raises(ValueError, match=r"for λ = 0\.7, and not for 0\.8"):
        kernel.scores(kernel.coordinates(QUERIES), 0.8)


def test_the_matrix_is_read_in_blocks_and_kept_by_half() -> None:
    class Single(ArrayRows):
        """Rows that are read one image at a time."""

        def blocks(self, wanted: range | None = None):  # type: ignore[no-untyped-def]
            for row in wanted or range(len(self)):
                yield range(row, row + 1), torch.from_numpy(self.array[row : row + 1])

    train = np.concatenate([TRAIN, np.zeros((2, 4, 12), np.float32)])  # two images were left out
    gram = fit_gram(CopyFeatures([Single(train)], unit=False))
    again = Gram.opened(gram.arrays())
    np.testing.assert_allclose(np.tril(again.lower()), np.tril(matrix()), rtol=1e-5, atol=1e-4)
    assert (again.images, again.dim, len(again.packed)) == (30, 12, 78)
    assert again.trace == pytest.approx(np.trace(matrix()), rel=1e-6)
    with pytest.raises(DtrakError, match="every training feature is zero"):
        fit_gram(CopyFeatures([ArrayRows(np.zeros_like(TRAIN))]))


def test_one_damping_decomposes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are those of the decomposed kernel, which is used if λ is below the rounding errors of G."""
    digits = load_images("digits:train").select(range(30))

    def scores(damping: str) -> NDArray[np.float32]:
        found = dtrak.attribute(
            tiny.unet(), digits, digits.first(2), timesteps=2, projection_dim=64, damping=damping, cache=tmp_path
        )
        assert isinstance(found, dtrak.Scores)
        return found.values

    kept = {one: scores(one) for one in ("auto", "0.3", "absolute:1e-13")}
    monkeypatch.setattr(gradients, "_is_quick_to_solve", lambda features: False)
    for damping in ("auto", "0.3"):
        decomposed = scores(damping)
        np.testing.assert_allclose(kept[damping], decomposed, rtol=1e-2, atol=1e-4 * abs(decomposed).max())
    monkeypatch.undo()
    monkeypatch.setattr(gradients, "kept_pooled", lambda *_: pytest.fail("it was decomposed"))
    np.testing.assert_array_equal(scores("auto"), kept["auto"])
    with pytest.raises(pytest.fail.Exception):
        scores("spectrum")


def test_a_few_rows_are_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five images with two copies each have ten rows: their decomposition is quicker than a factor of G [64, 64]."""
    monkeypatch.setattr(gradients, "kept_gram", lambda *_: pytest.fail("G was added up"))
    digits = load_images("digits:train").select(range(30))
    settings = {"timesteps": 2, "projection_dim": 64}
    assert dtrak.attribute(tiny.unet(), digits.first(5), digits.first(2), **settings).values.shape == (2, 5)
    with pytest.raises(pytest.fail.Exception):
        dtrak.attribute(tiny.unet(), digits, digits.first(2), **settings)
