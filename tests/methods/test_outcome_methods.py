"""What retrained models made of the queries: laws and recoveries; tests/reference has the formulas."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dtrak.contracts import RetrainedLosses
from dtrak.errors import UsageError
from dtrak.methods import METHODS

Array = NDArray[np.float64]

OUTCOMES = ("empirical-influence", "datamodel", "datamodel-lasso")
sizes = st.integers(1, 8)
seeds = st.integers(0, 10_000)
law = settings(max_examples=40, deadline=None)


def loops(masks: NDArray[np.bool_], losses: NDArray[Any]) -> Array:
    """Mean loss without n − mean loss with n; nothing to compare where n was always or never in."""
    found = np.zeros((losses.shape[1], masks.shape[1]))
    for query, image in np.ndindex(found.shape):
        with_it = [float(losses[s, query]) for s in range(len(masks)) if masks[s, image]]
        without = [float(losses[s, query]) for s in range(len(masks)) if not masks[s, image]]
        if with_it and without:
            found[query, image] = sum(without) / len(without) - sum(with_it) / len(with_it)
    return found


def score_outcomes(method: str, masks: NDArray[np.bool_], losses: NDArray[Any]) -> NDArray[np.float32]:
    return METHODS[method].formula(RetrainedLosses(masks, losses), 0.0)


def linear_world(
    subsets: int, influence: Array, noise: float = 0.0, seed: int = 0
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Retrained models whose losses are a constant minus the influence of their images, plus noise.

    Images are in or out independently: halves of one size tell influences only up to a constant.
    """
    random = np.random.default_rng(seed)
    masks = random.random((subsets, influence.shape[1])) < 0.5
    losses = 3 - masks @ influence.T + noise * random.normal(size=(subsets, len(influence)))
    return masks, losses.astype(np.float32)


def test_empirical_influence_of_an_image_that_was_always_or_never_in_is_nothing() -> None:
    masks, losses = linear_world(20, np.ones((2, 6)))
    masks[:, 1], masks[:, 4] = True, False
    found = score_outcomes("empirical-influence", masks, losses)
    np.testing.assert_allclose(found, loops(masks, losses), rtol=1e-4, atol=1e-6)
    assert (found[:, [1, 4]] == 0).all()


@pytest.mark.parametrize("method", OUTCOMES)
def test_a_known_linear_datamodel_is_recovered(method: str) -> None:
    """With its sign: what lowers a loss has a positive score."""
    influence = np.random.default_rng(3).normal(size=(3, 20))
    found = score_outcomes(method, *linear_world(2000, influence, noise=0.1))
    # To the mean of an image's absence, all others are noise.
    np.testing.assert_allclose(found, influence, atol=0.4 if method == "empirical-influence" else 0.02)


def test_the_lasso_recovers_a_sparse_datamodel() -> None:
    influence = np.zeros((2, 30))
    influence[0, [3, 11, 20]], influence[1, [0, 29]] = [2, -1, 1.5], [-2, 1]
    found = score_outcomes("datamodel-lasso", *linear_world(150, influence, noise=0.1))
    np.testing.assert_allclose(found, influence, atol=0.1)
    for query, expected in zip(found, influence, strict=True):
        assert np.abs(query[expected == 0]).max() < 0.25 * np.abs(query[expected != 0]).min()


def test_the_lasso_is_at_its_optimum() -> None:
    """Of ‖loss − w·mask − c‖²/2S + α‖w‖₁: an image's slope is α in size where w is not zero, and no more elsewhere."""
    influence = np.random.default_rng(3).normal(size=(2, 15)) * (np.arange(15) < 5)
    masks, losses = linear_world(60, influence, noise=1.0)
    centred, targets = masks - masks.mean(0), losses - losses.mean(0, dtype=np.float64)
    for query, scores in enumerate(score_outcomes("datamodel-lasso", masks, losses).astype(np.float64)):
        slopes = centred.T @ (targets[:, query] + centred @ scores) / len(masks)
        inside, strength = scores != 0, np.abs(slopes).max()
        assert 0 < inside.sum() < 15
        np.testing.assert_allclose(slopes[inside], -strength * np.sign(scores[inside]), rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("method", OUTCOMES)
def test_too_few_retrained_models_are_refused(method: str) -> None:
    with pytest.raises(UsageError, match="3 retrained models are too few"):
        score_outcomes(method, *linear_world(3, np.ones((1, 6))))


@pytest.mark.parametrize("method", OUTCOMES)
def test_an_image_that_halves_the_loss_is_the_top_proponent(method: str) -> None:
    masks, losses = linear_world(400, np.zeros((3, 10)), noise=0.05)
    losses[masks[:, 6]] /= 2
    losses[masks[:, 2]] *= 1.2
    scores = score_outcomes(method, masks, losses)
    assert (scores.argmax(1) == 6).all()
    assert (scores.argmin(1) == 2).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(8, 30), st.integers(2, 10), seeds, st.floats(-10, 10), st.floats(0.1, 10))
@pytest.mark.parametrize("method", ["empirical-influence", "datamodel"])
def test_outcomes_are_compared_not_measured(
    method: str, subsets: int, images: int, seed: int, offset: float, unit: float
) -> None:
    """Antisymmetric in who was in and who was out; blind to a constant; in the unit of the loss."""
    random = np.random.default_rng(seed)
    masks, losses = random.random((subsets, images)) < 0.5, random.normal(size=(subsets, 2))
    found = score_outcomes(method, masks, losses)
    largest = max(1e-3, float(np.abs(found).max()))
    for other, expected in (
        (score_outcomes(method, ~masks, losses), -found),
        (score_outcomes(method, masks, -losses), -found),
        (score_outcomes(method, masks, losses + offset), found),
        (score_outcomes(method, masks, unit * losses), unit * found),
    ):
        np.testing.assert_allclose(other, expected, rtol=1e-2, atol=1e-2 * largest * max(1, unit))


@law
@given(sizes, sizes, sizes, seeds)
def test_empirical_influence_is_its_loops(subsets: int, images: int, queries: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    masks = random.random((subsets + 3, images)) < 0.5
    losses = random.normal(size=(subsets + 3, queries)).astype(np.float32)
    np.testing.assert_allclose(
        score_outcomes("empirical-influence", masks, losses), loops(masks, losses), rtol=1e-4, atol=1e-6
    )
