"""Random subsets: the right number of images, the right share of every class, the same ones every time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.evaluation.training_jobs import random_subsets

label_lists = st.lists(st.integers(0, 6), min_size=4, max_size=150)
fractions = st.floats(0.15, 0.85)


@given(label_lists, fractions, st.integers(0, 2**40))
def test_every_class_gives_its_share_and_the_total_is_exact(labels: list[int], fraction: float, seed: int) -> None:
    masks = random_subsets(3, len(labels), fraction, np.array(labels), seed)
    assert masks.shape == (3, len(labels))
    assert masks.dtype == np.bool_
    assert (masks.sum(1) == round(fraction * len(labels))).all()
    for label in set(labels):
        members = np.array(labels) == label
        assert (np.abs(masks[:, members].sum(1) - fraction * members.sum()) < 1 + 1e-6).all()


@given(st.integers(4, 200), fractions, st.integers(1, 5), st.integers(0, 9))
def test_the_first_subsets_do_not_depend_on_how_many_there_are(
    total: int, fraction: float, few: int, seed: int
) -> None:
    many = random_subsets(8, total, fraction, seed=seed)
    assert np.array_equal(many[:few], random_subsets(few, total, fraction, seed=seed))


@given(st.integers(30, 200))
def test_subsets_differ_from_each_other_and_with_the_seed(total: int) -> None:
    masks = np.concatenate([random_subsets(4, total, seed=seed) for seed in (0, 1)])
    assert len(np.unique(masks, axis=0)) == 8


@pytest.mark.parametrize("labels", [np.arange(45) % 9, np.repeat([0, 1, 2], [5, 15, 25])])
def test_every_image_is_in_as_many_subsets_as_any_other(labels: NDArray[np.int64]) -> None:
    """Half of 2,000, but for chance (a standard deviation of 22) and the rounding of 45 / 2 and of each class."""
    counts = random_subsets(2000, 45, 0.5, labels).sum(0)
    assert abs(counts - 1000).max() < 150
    assert counts.sum() == 2000 * 22


def test_classes_are_any_labels() -> None:
    names = np.array(["cat", None, "dog", "cat", None, "dog", "cat", "dog"], dtype=object)
    masks = random_subsets(5, 8, 0.5, names)
    assert np.array_equal(masks, random_subsets(5, 8, 0.5, np.array([1, 0, 2, 1, 0, 2, 1, 2])))


def test_rounding_of_floats_takes_no_image_away() -> None:
    """0.29 · 100 is a little less than 29."""
    assert random_subsets(1, 300, 0.29, np.arange(300) % 3).reshape(100, 3).sum(0).tolist() == [29, 29, 29]


@pytest.mark.parametrize(
    ("count", "total", "fraction", "says"),
    [
        (0, 10, 0.5, "0 subsets: there must be at least 1"),
        (2, 10, 0.0, "fraction 0.0: a subset of 10 images must hold at least one of them, but not all"),
        (2, 10, 1.5, "fraction 1.5"),
        (2, 10, 0.01, "fraction 0.01"),
        (2, 10, 0.99, "fraction 0.99"),
    ],
)
def test_what_cannot_be_is_refused(count: int, total: int, fraction: float, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        random_subsets(count, total, fraction)
