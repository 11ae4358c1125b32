"""Scores by eigendecomposition against an explicit inverse, in both forms, for any damping."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import DtrakError
from dtrak.kernels.preconditioner import ArrayRows, mean_eigenvalue
from dtrak.kernels.ridge import RidgeKernel, decompose


@dataclass(frozen=True)
class Rows:
    """Features in memory, read a few rows at a time."""

    array: NDArray[np.float32]
    step: int = 3

    @property
    def dim(self) -> int:
        return int(self.array.shape[1])

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self) -> Iterator[tuple[range, Tensor]]:
        for start in range(0, len(self), self.step):
            rows = range(start, min(start + self.step, len(self)))
            yield rows, torch.from_numpy(self.array[rows.start : rows.stop])


def scores(kernel: RidgeKernel, queries: NDArray[np.float32], damping: float) -> NDArray[np.float32]:
    return kernel.scores(kernel.coordinates(queries), damping)


def random_features(n: int, k: int, q: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return random.normal(size=(n, k)).astype(np.float32), random.normal(size=(q, k)).astype(np.float32)


def inverse_scores(train: NDArray[np.float32], queries: NDArray[np.float32], damping: float) -> NDArray[np.float64]:
    wide, asked = train.astype(np.float64), queries.astype(np.float64)
    return np.asarray(asked @ np.linalg.inv(wide.T @ wide + damping * np.eye(wide.shape[1])) @ wide.T)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 30),
    k=st.integers(1, 30),
    q=st.integers(1, 4),
    step=st.integers(1, 40),
    damping=st.floats(1e-3, 1e3),
    seed=st.integers(0, 9),
)
def test_scores_equal_an_explicit_inverse(n: int, k: int, q: int, step: int, damping: float, seed: int) -> None:
    train, queries = random_features(n, k, q, seed)
    expected = inverse_scores(train, queries, damping)
    found = scores(decompose(Rows(train, step)), queries, damping)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * max(1, np.abs(expected).max()))


def test_primal_and_dual_agree() -> None:
    """The same features, once with zeros appended so that N < k: the scores may not change."""
    train, queries = random_features(20, 12, 5)
    wider, wider_queries = (np.pad(array, ((0, 0), (0, 15))) for array in (train, queries))
    primal, dual = decompose(Rows(train)), decompose(Rows(wider))
    assert primal.directions is not None
    assert dual.directions is None
    for damping in (1e-2, 1, 100):
        a, b = scores(primal, queries, damping), scores(dual, wider_queries, damping)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(primal.self_influence(damping), dual.self_influence(damping), rtol=1e-6)
        np.testing.assert_allclose(primal.preconditioned_norms(damping), dual.preconditioned_norms(damping), rtol=1e-6)
    np.testing.assert_allclose(primal.norms(), dual.norms(), rtol=1e-6)
    assert mean_eigenvalue(primal) == pytest.approx(mean_eigenvalue(dual))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 20), k=st.integers(1, 20), damping=st.floats(1e-2, 1e2), seed=st.integers(0, 9))
def test_norms_and_self_influence_come_from_the_same_decomposition(n: int, k: int, damping: float, seed: int) -> None:
    train, _ = random_features(n, k, 1, seed)
    kernel, wide = decompose(Rows(train)), train.astype(np.float64)
    preconditioned = np.linalg.inv(wide.T @ wide + damping * np.eye(k)) @ wide.T  # [k, N]
    np.testing.assert_allclose(kernel.norms(), np.linalg.norm(wide, axis=1), rtol=1e-6)
    np.testing.assert_allclose(
        kernel.preconditioned_norms(damping), np.linalg.norm(preconditioned, axis=0), rtol=1e-5, atol=1e-9
    )
    np.testing.assert_allclose(
        kernel.self_influence(damping), np.einsum("nk,kn->n", wide, preconditioned), rtol=1e-6, atol=1e-9
    )


def test_features_of_low_rank_score_as_the_inverse_does() -> None:
    """Twins and zeros, so that most eigenvalues are nothing but rounding, in both forms."""
    train, queries = random_features(3, 20, 4)
    repeated = np.concatenate([train] * 3 + [np.zeros_like(train)] * 5)
    for count in (12, 24):
        kernel = decompose(Rows(repeated[:count]))
        assert (kernel.directions is None) == (count == 12)
        assert len(kernel.eigenvalues) == 3
        np.testing.assert_allclose(
            scores(kernel, queries, 0.1), inverse_scores(repeated[:count], queries, 0.1), rtol=1e-5, atol=1e-7
        )
        assert kernel.images == 9
        assert (kernel.norms()[9:] == 0).all()
    with pytest.raises(DtrakError, match="every training feature is zero"):
        decompose(Rows(np.zeros((4, 3), dtype=np.float32)))


def test_trak_is_the_influence_function_of_a_linear_model() -> None:
    """Ridge regression at its optimum, output F(x) = w·x, per-image gradient r_n x_n of the loss.

    By the closed form, leaving out the infinitesimal weight of image n moves the output by xᵀH⁻¹ r_n x_n with
    H = XᵀX + λI; the kernel over φ = x gives xᵀH⁻¹x_n, the same up to the residual that TRAK keeps in Q.
    """
    random = np.random.default_rng(0)
    x, y, damping = random.normal(size=(40, 6)), random.normal(size=40), 0.7
    hessian = x.T @ x + damping * np.eye(6)
    residuals = x @ np.linalg.solve(hessian, x.T @ y) - y
    query = random.normal(size=(1, 6))

    def output(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        weighted = x.T * weights
        return np.asarray(query @ np.linalg.solve(weighted @ x + damping * np.eye(6), weighted @ y))

    step = 1e-5
    up = np.array([output(np.ones(40) + step * np.eye(40)[n])[0] for n in range(40)])
    down = np.array([output(np.ones(40) - step * np.eye(40)[n])[0] for n in range(40)])
    slopes = (up - down) / (2 * step)
    found = scores(decompose(Rows(x.astype(np.float32))), query.astype(np.float32), damping)[0]
    np.testing.assert_allclose(-residuals * found, slopes, rtol=1e-3, atol=1e-6)


def test_for_many_images_the_features_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    train, queries = random_features(60, 12, 5)
    train[7] = 0
    kept, read = decompose(ArrayRows(train)), decompose(ArrayRows(train))
    monkeypatch.setattr("dtrak.kernels.ridge.KEPT_BYTES", 0)
    assert read.train is None
    monkeypatch.undo()
    assert kept.train is not None
    assert kept.images == read.images == 59
    some = slice(5, 40)
    for damping in (1e-2, 1, 100):
        expected = scores(kept, queries, damping)
        np.testing.assert_allclose(scores(read, queries, damping), expected, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(
            read.scores(read.coordinates(queries), damping, some), expected[:, some], rtol=1e-3, atol=1e-6
        )
        for of in ("self_influence", "preconditioned_norms"):
            np.testing.assert_allclose(getattr(read, of)(damping), getattr(kept, of)(damping), rtol=1e-5)
    np.testing.assert_allclose(read.norms(some), kept.norms(some), rtol=1e-5)
    np.testing.assert_allclose(read.train_coordinates([3, 50]), kept.train_coordinates([3, 50]), rtol=1e-6, atol=1e-9)
