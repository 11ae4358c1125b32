"""LDS against scipy one query at a time, and against models whose answer is known."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from dtrak.evaluation.lds import bootstrap, lds, predicted_losses, spearman


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 999), subsets=st.integers(3, 20), queries=st.integers(1, 5), levels=st.integers(2, 50))
def test_spearman_equals_scipys_ties_included(seed: int, subsets: int, queries: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(levels, size=(2, subsets, queries)).astype(np.float64)
    for query, found in enumerate(spearman(a, b)):
        expected = spearmanr(a[:, query], b[:, query]).statistic if np.ptp(a[:, query]) and np.ptp(b[:, query]) else 0
        np.testing.assert_allclose(found, expected, atol=1e-12)


def linear_world(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Models whose loss is exactly a constant minus the sum of their images' influences."""
    random = np.random.default_rng(seed)
    influence = random.normal(size=(7, 40)).astype(np.float32)
    masks = np.argsort(random.random((64, 40)), axis=1) < 20
    losses = (5 + predicted_losses(influence, masks))[:, None].astype(np.float32)
    return influence, masks, losses


def test_true_influence_scores_a_hundred_and_its_negative_minus_a_hundred() -> None:
    influence, masks, losses = linear_world()
    np.testing.assert_allclose(lds(influence, masks, losses), 100)
    np.testing.assert_allclose(lds(-3 * influence, masks, losses), -100)


def test_random_scores_are_within_their_error_of_zero() -> None:
    _, masks, losses = linear_world()
    random = np.random.default_rng(1).normal(size=(7, 40)).astype(np.float32)
    spread = bootstrap(random, masks, losses)
    assert abs(lds(random, masks, losses).mean()) < 4 * spread.std()


def test_the_mean_over_seeds_is_what_counts() -> None:
    influence, masks, losses = linear_world()
    noise = np.random.default_rng(2).normal(size=(64, 1, 7)).astype(np.float32)
    np.testing.assert_allclose(lds(influence, masks, np.concatenate([losses + noise, losses - noise], 1)), 100)
