"""The kernel that leaves images out, against regressions that are computed again without them."""

import numpy as np
import pytest

from dtrak.kernels.leave_one_out import fit_leave_one_out
from dtrak.kernels.preconditioner import ArrayRows


@pytest.mark.parametrize(("images", "numbers"), [(12, 5), (5, 12)])
def test_scores_are_what_changes_without_an_image(images: int, numbers: int) -> None:
    random, damping = np.random.default_rng(0), 0.3
    features, queries = random.normal(size=(images, numbers)), random.normal(size=(3, numbers))
    targets = random.normal(size=images)

    def fitted(rows: list[int]) -> np.ndarray:
        x = features[rows]
        return np.linalg.solve(x.T @ x + damping * np.eye(numbers), x.T @ targets[rows])

    everything = list(range(images))
    whole = fitted(everything)
    kernel = fit_leave_one_out(ArrayRows(features.astype(np.float32)), targets - features @ whole)
    found = kernel.scores(kernel.coordinates(queries.astype(np.float32)), damping)
    for n in everything:
        change = queries @ (whole - fitted([one for one in everything if one != n]))
        np.testing.assert_allclose(found[:, n], change, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        kernel.scores(kernel.coordinates(queries.astype(np.float32)), damping, slice(2, 4)), found[:, 2:4]
    )


def test_an_image_that_the_kernel_copies_exactly_has_a_finite_score() -> None:
    """With next to no damping, every leverage is 1."""
    features = np.eye(4, dtype=np.float32)
    kernel = fit_leave_one_out(ArrayRows(features), np.ones(4))
    assert np.isfinite(kernel.scores(kernel.coordinates(features), 1e-30)).all()
