"""LDS against scipy one query at a time, and against models whose answer is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr

from dtrak.evaluation.lds import (
    bootstrap,
    ceiling,
    draw_subsets,
    evaluate_lds,
    lds,
    mean_lds,
    mean_losses,
    predicted_losses,
    resampled_spearman,
    spearman,
)

SUBSETS, QUERIES, IMAGES = 64, 7, 40


def scipys(a: np.ndarray, b: np.ndarray) -> float:
    return float(spearmanr(a, b).statistic) if np.ptp(a) and np.ptp(b) else 0.0


@st.composite
def tied(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A grid [L, Q, M] and a reference [Q, M] of few different numbers."""
    grid, queries, subsets = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(2, 12))
    numbers = st.integers(-2, 2).map(float)
    return (
        draw(arrays(np.float64, (grid, queries, subsets), elements=numbers)),
        draw(arrays(np.float64, (queries, subsets), elements=numbers)),
    )


@settings(max_examples=50, deadline=None)
@given(tied())
def test_spearman_equals_scipys_ties_included(case: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = case
    found = spearman(a, b)
    for level, query in np.ndindex(found.shape):
        np.testing.assert_allclose(found[level, query], scipys(a[level, query], b[query]), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(tied())
def test_resampled_spearman_equals_scipys_on_the_same_resamples(case: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = case
    picks = draw_subsets(a.shape[-1], 5)
    found = resampled_spearman(a, b, picks)
    for level, resample in np.ndindex(found.shape):
        pick = picks[resample]
        expected = np.mean([scipys(one[pick], other[pick]) for one, other in zip(a[level], b, strict=True)])
        np.testing.assert_allclose(found[level, resample], expected, atol=1e-12)


def test_resampled_spearman_of_more_queries_than_a_block_holds() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 300, 50)), random.normal(size=(300, 50))
    picks = draw_subsets(50, 100)
    expected = np.stack([spearman(a[..., pick], b[:, pick]).mean(-1) for pick in picks], axis=-1)
    np.testing.assert_allclose(resampled_spearman(a, b, picks), expected, atol=1e-12)


def test_a_diverged_model_ranks_last_and_a_missing_loss_is_not_hidden() -> None:
    a, b = np.arange(8.0)[None], np.arange(8.0)[None]
    picks = draw_subsets(8, 5)
    b[0, -2:] = np.inf
    assert spearman(a, b) == pytest.approx(spearman(a, np.minimum(b, 99)))
    np.testing.assert_allclose(resampled_spearman(a, b, picks), resampled_spearman(a, np.minimum(b, 99), picks))
    b[0, 3] = np.nan
    assert np.isnan(spearman(a, b)).all()
    assert np.isnan(resampled_spearman(a, b, picks)).all()


def draw_masks(random: np.random.Generator, subsets: int, images: int = IMAGES) -> np.ndarray:
    """Random halves of the images."""
    return np.argsort(random.random((subsets, images)), axis=1) < images // 2


def linear_world(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Models whose loss is exactly a constant minus the sum of their images' influences."""
    random = np.random.default_rng(seed)
    influence = random.normal(size=(QUERIES, IMAGES)).astype(np.float32)
    masks = draw_masks(random, SUBSETS)
    losses = (5 - masks @ influence.T)[:, None].astype(np.float32)
    return influence, masks, losses


def random_scores(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(QUERIES, IMAGES)).astype(np.float32)


def test_predicted_losses_of_a_grid_are_sums_over_the_subsets_images() -> None:
    masks = draw_masks(np.random.default_rng(0), SUBSETS)
    grid = np.stack([random_scores(seed) for seed in range(50)])  # more rows than are summed at one time
    found = predicted_losses(grid, masks)
    assert found.shape == (50, QUERIES, SUBSETS)
    for level, query, subset in [(0, 0, 0), (3, 2, 1), (49, QUERIES - 1, SUBSETS - 1)]:
        assert found[level, query, subset] == pytest.approx(-grid[level, query, masks[subset]].sum(dtype=np.float64))


def test_true_influence_scores_a_hundred_and_its_negative_minus_a_hundred() -> None:
    influence, masks, losses = linear_world()
    np.testing.assert_allclose(lds(influence, masks, losses), 100)
    np.testing.assert_allclose(lds(-3 * influence, masks, losses), -100)
    result = evaluate_lds(influence, masks, losses)
    assert (result.mean, result.bootstrap_mean, result.low, result.high) == pytest.approx((100, 100, 100, 100))
    assert result.bootstrap_std == pytest.approx(0, abs=1e-9)


def test_random_scores_are_within_their_error_of_zero() -> None:
    _, masks, losses = linear_world()
    result = evaluate_lds(random_scores(), masks, losses)
    assert 0 < abs(result.mean) < 3 * result.bootstrap_std < 30


def test_the_mean_over_seeds_is_what_counts() -> None:
    influence, masks, losses = linear_world()
    noise = np.random.default_rng(2).normal(size=losses.shape).astype(np.float32)
    np.testing.assert_allclose(lds(influence, masks, np.concatenate([losses + noise, losses - noise], 1)), 100)


def test_a_grid_gives_what_its_members_give_one_by_one() -> None:
    influence, masks, losses = linear_world()
    grid = np.stack([influence, random_scores(), influence + random_scores()])
    means, spread = lds(grid, masks, losses).mean(-1), bootstrap(grid, masks, losses, 50)
    for values, mean, resampled in zip(grid, means, spread, strict=True):
        result = evaluate_lds(values, masks, losses, 50)
        assert result.mean == mean_lds(values, masks, losses) == pytest.approx(mean)
        assert (result.bootstrap_mean, result.bootstrap_std) == pytest.approx((resampled.mean(), resampled.std()))
        assert (result.low, result.high) == pytest.approx(tuple(np.percentile(resampled, [2.5, 97.5])))


def test_the_interval_covers_the_value_of_very_many_subsets() -> None:
    """Queries are alike and share their noise: an interval that took them for independent would miss too often."""
    random = np.random.default_rng(3)
    influence = random.normal(size=IMAGES) + 0.3 * random.normal(size=(QUERIES, IMAGES))
    scores = (influence + random.normal(size=IMAGES)).astype(np.float32)

    def benchmark(subsets: int) -> tuple[np.ndarray, np.ndarray]:
        masks = draw_masks(random, subsets)
        noise = 2 * random.normal(size=(subsets, 1)) + random.normal(size=(subsets, QUERIES))
        return masks, (noise - masks @ influence.T)[:, None].astype(np.float32)

    truth = mean_lds(scores, *benchmark(100_000))
    results = [evaluate_lds(scores, *benchmark(SUBSETS), resamples=300) for _ in range(100)]
    assert sum(result.low <= truth <= result.high for result in results) >= 85
    assert np.mean([result.bootstrap_std for result in results]) == pytest.approx(
        np.std([result.mean for result in results]), rel=0.25
    )


def test_the_ceiling_of_seeds_without_noise_is_a_hundred_and_of_noise_alone_about_zero() -> None:
    _, _, losses = linear_world()
    noise = np.random.default_rng(4).normal(size=(SUBSETS, 3, 200)).astype(np.float32)
    assert ceiling(losses.repeat(3, axis=1)) == pytest.approx(100)
    assert abs(ceiling(noise) or 100) < 3  # 200 queries of 12 % each
    assert ceiling(losses) is None


def test_the_ceiling_compares_each_seed_with_the_mean_of_the_others() -> None:
    random = np.random.default_rng(5)
    losses = (random.normal(size=(12, 1, 3)) + random.normal(size=(12, 4, 3))).astype(np.float32)
    expected = [
        scipys(losses[:, seed, query], np.mean([losses[:, s, query] for s in range(4) if s != seed], axis=0))
        for seed in range(4)
        for query in range(3)
    ]
    assert ceiling(losses) == pytest.approx(100 * np.mean(expected))
    assert mean_losses(losses)[1, 2] == pytest.approx(losses[2, :, 1].mean())
