"""The kernel against an explicit inverse in numpy: of one copy or several, with more numbers than rows or fewer, for
every λ or for one after the other, with what it knows of the training images kept in memory or read in blocks."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import DtrakError
from dtrak.kernels import ArrayRows, CopyRows, Ridge, ridge
from dtrak.kernels.ridge import Gram
from dtrak.kernels.rows import OneRow

Array = NDArray[np.float64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Few(ArrayRows):
    """Rows that are read a few images at a time."""

    step: int = 3

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        wanted = range(len(self)) if wanted is None else wanted
        for start in range(wanted.start - wanted.start % self.step, wanted.stop, self.step):
            images = range(max(start, wanted.start), min(start + self.step, wanted.stop))
            yield images, torch.from_numpy(self.array[images.start : images.stop]).reshape(len(images), *self.shape)


def random_rows(images: int, copies: int, dim: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(images, copies, dim)).astype(np.float32)


class Truth:
    """G and the formulas with its inverse, written out in float64."""

    def __init__(self, train: Floats, damping: float) -> None:
        self.train, self.damping = train.astype(np.float64), damping
        self.gram = np.einsum("nck,ncl->kl", self.train, self.train)
        self.inverse = np.linalg.inv(self.gram + damping * np.eye(len(self.gram)))

    def scores(self, queries: Floats, scored: Floats | None = None) -> Array:
        return np.einsum("qck,kl,ncl->qn", queries, self.inverse, self.train if scored is None else scored)

    def squares(self, power: int) -> Array:
        matrix = np.linalg.matrix_power(self.inverse, power)
        return np.einsum("nck,kl,ncl->n", self.train, matrix, self.train)

    def dimension(self) -> float:
        return float(np.trace(self.gram @ self.inverse))


def tolerance(kernel: Ridge) -> float:
    """float32 for several copies; with λI alone in most directions, a Cholesky factor multiplies its errors."""
    copies, dim = kernel.rows.shape
    return 1e-5 if copies == 1 or dim < 40 * copies else 2e-4


def assert_close(found: NDArray[np.floating], expected: Array, within: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=within, atol=within * np.abs(expected).max())


CASES = {
    f"{copies} copies, k {'<' if dim < 40 else '>'} NC, {ways}, {place}": (copies, dim, ways, place)
    for copies, dim, ways, place in product((1, 3), (12, 130), ("one λ", "every λ"), ("kept", "read"))
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ridge:
    """The kernel of 40 images, of which the second was left out; for one λ, even if rows are few."""
    copies, dim, ways, place = request.param
    train = random_rows(40, copies, dim)
    train[1] = 0
    if place == "read":
        monkeypatch.setattr(ridge, "KEPT_BYTES", 0)
        monkeypatch.setattr(ridge, "KEPT_OF_COPIES", 0)
    monkeypatch.setattr(ridge, "FEW_ROWS", 0)
    return Ridge.of(Few(train), one_damping=ways == "one λ")


@pytest.mark.parametrize("damping", [0.1, 1.0, 100.0])
def test_scores_and_squares_are_the_formulas(kernel: Ridge, damping: float) -> None:
    train = kernel.rows.at(range(40)).numpy()
    truth, queries = Truth(train, damping), random_rows(5, *kernel.rows.shape, seed=1)
    coordinates, within = kernel.coordinates(queries), tolerance(kernel)
    assert_close(kernel.scores(coordinates, damping), truth.scores(queries), within)
    assert_close(kernel.scores(coordinates[1:3], damping, slice(4, 19)), truth.scores(queries)[1:3, 4:19], within)
    assert_close(kernel.scores(kernel.train_coordinates([7, 2]), damping), truth.scores(train[[7, 2]]), within)
    for power in (0, 1, 2):
        assert_close(kernel.squares(damping, power), truth.squares(power), within)
        assert_close(kernel.squares(damping, power, slice(4, 19)), truth.squares(power)[4:19], within)
        assert kernel.squares(damping, power)[1] == 0
    assert kernel.dimension(damping) == pytest.approx(truth.dimension(), rel=1e-5)


def test_other_facts_and_factors(kernel: Ridge) -> None:
    train, damping, within = kernel.rows.at(range(40)).numpy(), 0.7, tolerance(kernel)
    truth, queries = Truth(train, damping), random_rows(5, *kernel.rows.shape, seed=1)
    copies, dim = kernel.rows.shape
    assert (len(kernel), kernel.images, kernel.size, kernel.rank) == (40, 39, 39, min(dim, 39 * copies))
    assert kernel.trace == pytest.approx(np.trace(truth.gram), rel=1e-6)
    assert_close(kernel.eigenvalues, np.linalg.eigvalsh(truth.gram)[-kernel.rank :])
    whitened = kernel.whitened(train, damping)
    products = np.einsum("qcr,ncr->qn", kernel.whitened(queries, damping), whitened)
    assert_close(products, truth.scores(queries), within)
    assert_close(np.einsum("qck,nck->qn", queries, kernel.lifted(whitened, damping)), truth.scores(queries), within)


def test_it_scores_other_features_of_the_same_images(kernel: Ridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The means of copies, say: the kernel of all copies scores them as the inverse does."""
    train, queries = kernel.rows.at(range(40)).numpy(), random_rows(5, 1, kernel.rows.shape[1], seed=1)
    of_means = Ridge.of(kernel.rows, scored=OneRow(kernel.rows))
    expected = Truth(train, 0.7).scores(queries, train.mean(1, keepdims=True))
    assert_close(of_means.scores(of_means.coordinates(queries), 0.7), expected)


@settings(max_examples=60, deadline=None)
@given(
    images=st.integers(1, 12),
    copies=st.integers(1, 3),
    dim=st.integers(1, 30),
    step=st.integers(1, 14),
    damping=st.floats(1e-2, 1e3),
    seed=st.integers(0, 9),
    one=st.booleans(),
)
def test_any_size_in_any_blocks(
    images: int, copies: int, dim: int, step: int, damping: float, seed: int, one: bool
) -> None:
    train, queries = random_rows(images, copies, dim, seed), random_rows(3, copies, dim, seed + 10)
    kernel, truth = Ridge.of(Few(train, step), one), Truth(train, damping)
    assert_close(kernel.scores(kernel.coordinates(queries), damping), truth.scores(queries), 1e-4)
    assert_close(kernel.squares(damping, 1), truth.squares(1), 1e-4)


@pytest.mark.parametrize("one_damping", [False, True])
@pytest.mark.parametrize("count", [12, 24])
def test_features_of_low_rank_score_as_the_inverse_does(count: int, one_damping: bool) -> None:
    """Twins and zeros, so that most eigenvalues are nothing but rounding, in both forms."""
    train = random_rows(3, 1, 20)
    repeated = np.concatenate([train] * 3 + [np.zeros_like(train)] * 5)[:count]
    kernel, queries = Ridge.of(Few(repeated), one_damping), random_rows(4, 1, 20, seed=1)
    assert_close(kernel.scores(kernel.coordinates(queries), 0.1), Truth(repeated, 0.1).scores(queries))
    assert (kernel.images, len(kernel.eigenvalues)) == (9, 3)
    assert (kernel.squares(0.1, 0)[9:] == 0).all()


@pytest.mark.parametrize("images", [4, 2])
def test_features_that_are_all_zero_are_refused(images: int) -> None:
    with pytest.raises(DtrakError, match="every training feature is zero"):
        _ = Ridge.of(ArrayRows(np.zeros((images, 1, 3), dtype=np.float32))).images


def test_below_rounding_errors_the_eigenvectors_score() -> None:
    """Then G + λI has no Cholesky factor."""
    train = np.repeat(random_rows(10, 2, 6), 2, axis=2)
    one, every = (Ridge.of(ArrayRows(train), one_damping) for one_damping in (True, False))
    queries = random_rows(3, 2, 12, seed=1)
    scores = [kernel.scores(kernel.coordinates(queries), 1e-14) for kernel in (one, every)]
    assert_close(scores[0], scores[1].astype(np.float64))


def test_few_rows_are_decomposed_even_for_one_damping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller matrix of ten rows is decomposed sooner than a factor of G [64, 64] is found."""
    sides = list[int]()
    monkeypatch.setattr(ridge.Eigen, "of", lambda gram, rows: pytest.fail(f"decomposed {gram.side}"))
    with pytest.raises(pytest.fail.Exception, match="decomposed 10"):
        Ridge.of(ArrayRows(random_rows(5, 2, 64)), one_damping=True).dimension(1.0)
    assert Ridge.of(ArrayRows(random_rows(30, 2, 64)), one_damping=True).dimension(1.0) > 0
    assert sides == []


def test_threads_get_the_scores_that_they_ask_for(kernel: Ridge) -> None:
    """Each asks for other queries or another λ, so that what one has solved is no answer for another."""
    asked = [(random_rows(2, *kernel.rows.shape, seed=seed), 0.1 * (1 + seed % 3)) for seed in range(6)]
    coordinates = [(kernel.coordinates(queries), damping) for queries, damping in asked]
    expected = [kernel.scores(*one) for one in coordinates]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(30):
            for found, right in zip(pool.map(lambda one: kernel.scores(*one), coordinates), expected, strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-5)


def test_half_of_the_matrix_is_kept() -> None:
    train = np.concatenate([random_rows(30, 4, 12), np.zeros((2, 4, 12), np.float32)])  # two images were left out
    gram = Gram.of(Few(train, 1))
    assert (gram.images, gram.side, len(gram.packed), gram.is_outer) == (30, 12, 78, False)
    assert_close(np.tril(gram.lower()), np.tril(Truth(train, 1).gram))
    assert_close(gram.diagonal, np.diag(Truth(train, 1).gram))


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

    def output(weights: Array) -> Array:
        weighted = x.T * weights
        return np.asarray(query @ np.linalg.solve(weighted @ x + damping * np.eye(6), weighted @ y))

    step = 1e-5
    up = np.array([output(np.ones(40) + step * np.eye(40)[n])[0] for n in range(40)])
    down = np.array([output(np.ones(40) - step * np.eye(40)[n])[0] for n in range(40)])
    slopes = (up - down) / (2 * step)
    kernel = Ridge.of(ArrayRows(x.astype(np.float32)))
    found = kernel.scores(kernel.coordinates(query.astype(np.float32)[:, None]), damping)[0]
    np.testing.assert_allclose(-residuals * found, slopes, rtol=1e-3, atol=1e-6)


# rows


def test_copies_of_objectives_stand_side_by_side() -> None:
    one, other = random_rows(7, 2, 5), random_rows(7, 1, 5, seed=1)[:, 0]
    rows = CopyRows([Few(one), Few(other)])
    joined = np.concatenate([one, other[:, None]], 1)
    assert rows.shape == (3, 5)
    np.testing.assert_array_equal(rows[:], joined)
    np.testing.assert_array_equal(rows[2:4], joined[2:4])
    np.testing.assert_array_equal(rows.at([6, 0]), joined[[6, 0]])
    unit = CopyRows([Few(one)], unit=True)
    np.testing.assert_allclose(unit[:], one / np.linalg.norm(one, axis=2, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("kept", [2 << 30, 0])
@pytest.mark.parametrize(("copy", "expected"), [(None, slice(None)), (1, [1])])
def test_one_row_for_each_image(
    kept: int, copy: int | None, expected: slice | list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtrak.kernels.rows.KEPT_BYTES", kept)
    train = random_rows(10, 3, 4)
    rows = OneRow(CopyRows([Few(train, 4)]), copy)
    assert (rows.shape, len(rows)) == ((1, 4), 10)
    blocks = list(rows.blocks(range(3, 9)))
    assert [images for images, _ in blocks] == [range(3, 4), range(4, 8), range(8, 9)]
    wanted = train[:, expected].mean(1, keepdims=True)
    np.testing.assert_allclose(torch.cat([block for _, block in blocks]), wanted[3:9], rtol=1e-5)
    np.testing.assert_allclose(rows.at([9, 2]), wanted[[9, 2]], rtol=1e-5)
