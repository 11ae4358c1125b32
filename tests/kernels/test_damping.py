"""λ by rule, by fraction or as it is: what each comes to, and what is refused."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrak.contracts import Kernel, Rule
from dtrak.errors import UsageError
from dtrak.gradients.projections import make_projection
from dtrak.kernels.damping import (
    GRIDS,
    Damping,
    agreed_dimension,
    automatic,
    compared_images,
    damping_of_dimension,
    for_scaled,
    scores_of_others,
)
from dtrak.kernels.ridge import Ridge
from dtrak.kernels.rows import ArrayRows

TEXTS = ("auto", "spectrum", "0.1", "absolute:5")
RULES: tuple[Rule, ...] = ("agreement", "rows", "trace", "published")


def by_agreement(other: Ridge) -> Callable[[Kernel], float]:
    return partial(automatic, "agreement", other=lambda: other)


def kernel_of(n: int, k: int, seed: int = 0, scale: float = 1.0) -> Ridge:
    """Of features whose variance falls from one direction to the next, as gradients' does."""
    features = np.random.default_rng(seed).normal(size=(n, k)) * np.arange(1, k + 1) ** -1.5
    return Ridge.of(ArrayRows((scale * features).astype(np.float32)))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 40), seed=st.integers(0, 20))
def test_spectrum_keeps_a_tenth_as_many_directions_as_there_are_images(n: int, k: int, seed: int) -> None:
    kernel = kernel_of(n, k, seed)
    found = Damping.parse("spectrum").absolute(kernel)
    expected = min(n / 10, min(n, k) / 2)
    train = kernel.rows.at(range(n))[:, 0].double().numpy()
    hat = found * np.linalg.inv(train @ train.T + found * np.eye(n))  # λ(K + λI)⁻¹ = I − K(K + λI)⁻¹
    assert n - np.trace(hat) == pytest.approx(expected, rel=1e-4)


def test_dimension_falls_as_damping_grows_and_each_has_its_damping() -> None:
    kernel = kernel_of(30, 20)
    dimensions = [kernel.dimension(damping) for damping in (1e-6, 1e-2, 1, 1e4)]
    assert dimensions == sorted(dimensions, reverse=True)
    for dimension in (0.5, 3, 9):
        assert kernel.dimension(damping_of_dimension(kernel, dimension)) == pytest.approx(dimension)


@pytest.mark.parametrize("text", ["spectrum", "0.1"])
def test_scores_do_not_depend_on_the_features_scale(text: str) -> None:
    damping = Damping.parse(text)
    small, large = kernel_of(15, 8), kernel_of(15, 8, scale=100)
    assert damping.absolute(large) == pytest.approx(1e4 * damping.absolute(small), rel=1e-4)


def test_a_fraction_is_one_of_the_mean_eigenvalue() -> None:
    kernel = kernel_of(15, 8)
    mean_eigenvalue = float(kernel.rows.at(range(15)).square().sum() / 15)
    assert kernel.trace / kernel.size == pytest.approx(mean_eigenvalue)
    assert Damping.parse(0.25).absolute(kernel) == pytest.approx(0.25 * mean_eigenvalue)
    assert Damping.parse("absolute:5").absolute(kernel) == 5


def test_the_papers_dampings_of_unscaled_features_give_the_scores_of_scaled_ones() -> None:
    """The paper's matrix is N(0, 1), ours is divided by √k; scores by an explicit inverse, as the authors have it."""
    k, shapes = 24, {"weight": (5, 8), "bias": (5,)}
    random = np.random.default_rng(0)
    gradients = random.normal(size=(20, 45)).astype(np.float32) * np.arange(1, 46, dtype=np.float32) ** -1
    matrix = torch.zeros(45, k)
    dense = make_projection("dense", k, shapes, 0)
    for name, part in {"weight": slice(0, 40), "bias": slice(40, 45)}.items():
        dense.add(matrix[part], name, torch.eye(45)[part, part])
    assert float(matrix.mul(k**0.5).std()) == pytest.approx(1, abs=0.05), "ours is not divided by √k"
    unscaled = gradients @ (k**0.5 * matrix.numpy()).astype(np.float64)
    train, queries = unscaled[:15], unscaled[15:]
    features = (gradients @ matrix.numpy()).astype(np.float32)
    kernel = Ridge.of(ArrayRows(features[:15]))
    coordinates = kernel.coordinates(features[15:, None])
    for paper, ours in zip(GRIDS["paper"], for_scaled(GRIDS["paper"], k), strict=True):
        inverse = np.linalg.inv(train.T @ train + paper.value * np.eye(k))
        expected = queries @ inverse @ train.T
        found = kernel.scores(coordinates, ours.absolute(kernel))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_rules_and_fractions_do_not_depend_on_the_scale() -> None:
    assert for_scaled(GRIDS["log"], 4096) == GRIDS["log"]
    assert for_scaled([Damping("auto")], 4096) == (Damping("auto"),)


def test_the_papers_grid() -> None:
    values = [damping.value for damping in GRIDS["paper"]]
    assert len(values) == 27
    assert values[:4] == [0.01, 0.02, 0.05, 0.1]
    assert values[-1] == 5e6


@pytest.mark.parametrize("damping", ["-1", "0", "nan", "much", "absolute:", "absolute:-2", "absolute:auto"])
def test_damping_that_makes_no_sense_is_named(damping: str) -> None:
    with pytest.raises(UsageError) as caught:
        Damping.parse(damping)
    assert repr(damping) in str(caught.value)


def noisy_views(dimension: int, noise: float, n: int = 120, k: int = 200) -> tuple[Ridge, Ridge]:
    """Two objectives' features: the same `dimension` directions of the images, each with noise of its own."""
    random = np.random.default_rng(0)
    signal = random.normal(size=(n, dimension))
    views = [
        signal @ random.normal(size=(dimension, k)) / dimension**0.5 + noise * random.normal(size=(n, k))
        for _ in range(2)
    ]
    first, second = (Ridge.of(ArrayRows(view.astype(np.float32))) for view in views)
    return first, second


def test_auto_keeps_what_two_objectives_share_and_forgets_the_noise_of_each() -> None:
    few, many = (agreed_dimension(*noisy_views(dimension, 0.3)) for dimension in (5, 30))
    assert 3 < few < 10
    assert 15 < many < 45
    assert agreed_dimension(*noisy_views(30, 3.0)) < many


@pytest.mark.parametrize(("dimension", "kept"), [(1, 6), (60, 30)])
def test_auto_keeps_a_twentieth_of_the_images_at_least_and_a_quarter_at_most(dimension: int, kept: float) -> None:
    first, second = noisy_views(dimension, 0.1)
    agreed, compare = agreed_dimension(first, second), by_agreement(second)
    assert agreed < kept if kept == 6 else agreed > kept
    assert first.dimension(Damping.parse("auto").absolute(first, compare)) == pytest.approx(kept)


def test_auto_is_symmetric_and_needs_two_objectives() -> None:
    first, second = noisy_views(10, 0.5)
    found = Damping.parse("auto").absolute(first, by_agreement(second))
    assert first.dimension(found) == pytest.approx(agreed_dimension(first, second))
    assert agreed_dimension(second, first) == pytest.approx(agreed_dimension(first, second), rel=0.5)
    with pytest.raises(UsageError, match="two objectives"):
        Damping.parse("auto").absolute(first)


def test_rules_of_noised_copies() -> None:
    """One keeps a share of the rows, or two thirds of the rank; the other takes λ from the sum of the eigenvalues."""
    kernel, _ = noisy_views(10, 0.5)
    assert kernel.dimension(automatic("rows", kernel, 1)) == pytest.approx(0.15 * kernel.images)
    assert kernel.dimension(automatic("rows", kernel, 99)) == pytest.approx(2 / 3 * len(kernel.eigenvalues))
    assert automatic("trace", kernel, 4) == pytest.approx(1.1e-3 * kernel.eigenvalues.sum())
    assert automatic("trace", kernel, 1, "square") == pytest.approx(2.2e-4 * kernel.eigenvalues.sum())
    assert automatic("published", kernel) == pytest.approx(0.1 * kernel.trace / kernel.images)


def test_only_some_rules_need_eigenvalues() -> None:
    needed = {(text, rule): Damping.parse(text).needs_eigenvalues(rule) for text in TEXTS for rule in RULES}
    of_auto = {("auto", "agreement"), ("auto", "rows")}
    assert {one for one, needs in needed.items() if needs} == of_auto | {("spectrum", rule) for rule in RULES}


def test_scores_of_others_are_those_of_a_kernel_without_the_image_itself() -> None:
    """Leave-one-out by brute force, standardised, for one image at one dimension."""
    features = np.random.default_rng(0).normal(size=(12, 20)).astype(np.float32)
    kernel, row = Ridge.of(ArrayRows(features)), 4
    found = scores_of_others(kernel, np.array([row]), np.array([3.0]))[0, 0]
    rest, damping = np.delete(features, row, 0).astype(np.float64), damping_of_dimension(kernel, 3)
    expected = features[row] @ np.linalg.inv(rest.T @ rest + damping * np.eye(20)) @ rest.T
    expected = (expected - expected.mean()) / np.linalg.norm(expected - expected.mean())
    np.testing.assert_allclose(np.delete(found, row), expected, rtol=1e-4, atol=1e-6)
    assert found[row] == 0


def test_auto_compares_a_sample_of_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    views = noisy_views(10, 0.5, n=1500, k=60)
    exact = agreed_dimension(*views)
    assert compared_images(1500) == [slice(0, 1500)]
    monkeypatch.setattr("dtrak.kernels.damping.STRETCHES", 12)
    monkeypatch.setattr("dtrak.kernels.damping.STRETCH", 25)
    sample = compared_images(1500)
    assert len(sample) == 12
    assert (sample[0].start, sample[-1].stop) == (0, 1500)
    assert scores_of_others(views[0], np.array([3, 700]), np.array([4.0])).shape == (1, 2, 300)
    assert agreed_dimension(*views) == pytest.approx(exact, rel=0.2)
