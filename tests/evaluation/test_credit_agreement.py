"""Credit against effects: perfect, opposite and useless credit, and the ceiling of noisy effects."""

import numpy as np
import pytest

from dtrak.errors import UsageError
from dtrak.evaluation.left_out import LeftOut, agreement, compare_credit, groups_of, seeds_agreement, true_shares
from dtrak.images.images import load_images

EFFECTS = np.array([[4.0, 2, 1, -1], [0, 5, 3, 2]])


def test_credit_equal_to_the_effects_agrees_in_everything() -> None:
    found = agreement("m", true_shares(EFFECTS), EFFECTS, EFFECTS)
    assert found.rank[0] > 94  # the negative effect and the zero share tie in no query
    assert found.first == (100, 100, 100)
    assert found.off[0] == pytest.approx(0)


def test_opposite_credit_and_how_much_of_it_would_have_to_move() -> None:
    credit = np.array([[0, 0, 0, 1.0], [1, 0, 0, 0]])
    found = agreement("m", credit, EFFECTS)
    assert found.rank[0] < 0
    assert found.first[0] == 0
    assert found.off[0] == pytest.approx(100)
    assert found.picture is None


def test_a_query_without_any_effect_has_equal_shares() -> None:
    assert true_shares(np.array([[-1.0, -2]])) == pytest.approx(np.array([[0.5, 0.5]]))


def test_the_ceiling_is_the_agreement_of_seeds() -> None:
    assert seeds_agreement(EFFECTS[None]) is None
    assert seeds_agreement(np.stack([EFFECTS, EFFECTS])) == pytest.approx(100)
    assert seeds_agreement(np.stack([EFFECTS, -EFFECTS])) == pytest.approx(-100)


def test_effects_are_losses_without_a_group_less_losses_with_all() -> None:
    losses = np.array([[[3.0, 1]], [[1, 1]], [[1, 0]]])  # [G + 1, S, Q]: two groups, one seed, two queries
    pictures = np.zeros((3, 1, 2, 1, 1, 2), dtype=np.float32)
    pictures[0, 0, 1] = 3
    left_out = LeftOut(np.array(["a", "b"]), {"generated": losses}, pictures)
    assert left_out.effects("generated").tolist() == [[[2, 0], [1, 1]]]
    assert left_out.distances()[0] == pytest.approx(np.array([[0, 0], [np.sqrt(18), 0]]))
    comparison = compare_credit({"m": np.array([[1.0, 0], [1, 0]])}, left_out, "generated")
    assert comparison.results[0].first[0] == 100
    assert "picture" in comparison.table().heads[-1]


def test_groups_are_neither_one_nor_hundreds() -> None:
    digits = load_images("digits:train")
    assert len(groups_of(digits, "label")[0]) == 10
    with pytest.raises(UsageError, match="no column 'artist': there is label"):
        groups_of(digits, "artist")
    with pytest.raises(UsageError, match="has 1 different values"):
        groups_of(digits.select(np.flatnonzero(digits.columns["label"] == 3)), "label")
