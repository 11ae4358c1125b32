"""Selections: which of a source's images they take, and that with the authors' seed these are the authors' images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrak import load_images
from dtrak.errors import UsageError
from dtrak.images.selection import Selection, chosen_rows
from dtrak.runs.recipes import load_recipe

LABELS = np.array(["cat", "dog", "cat", "owl", "dog", "cat", "owl", "cat", "dog", "cat", "cat", "dog"])  # 6, 4, 2


def chosen(labels: Any = LABELS, **selection: Any) -> list[int]:
    return chosen_rows(labels, len(LABELS), Selection(**selection), "somewhere").tolist()


def test_classes_are_taken_whole_and_in_order() -> None:
    assert chosen() == list(range(12))
    assert chosen(classes=["owl", "dog"]) == [1, 3, 4, 6, 8, 11]
    assert chosen(classes=["owl"], count=2, seed=5) == [3, 6], "all of them are not shuffled"


def test_a_count_takes_the_same_share_of_every_class() -> None:
    for seed in range(5):
        rows = chosen(count=6, seed=seed)
        assert len(set(rows)) == 6
        assert sorted(LABELS[rows]) == ["cat", "cat", "cat", "dog", "dog", "owl"]
        assert rows == chosen(count=6, seed=seed)
    assert len({tuple(chosen(count=6, seed=seed)) for seed in range(5)}) > 1
    rows = chosen(classes=["cat", "dog"], count=5)
    assert sorted(LABELS[rows]) == ["cat", "cat", "cat", "dog", "dog"]


def test_without_labels_a_count_is_taken_of_all() -> None:
    assert len(set(chosen(None, count=7))) == 7
    assert set(chosen(None, count=7)) < set(range(12))


def test_per_class_takes_so_many_of_each() -> None:
    rows = chosen(per_class=2, seed=1)
    assert sorted(LABELS[rows]) == ["cat", "cat", "dog", "dog", "owl", "owl"]
    assert len(set(rows)) == 6
    assert rows == chosen(per_class=2, seed=1) != chosen(per_class=2, seed=2)


def test_how_many_a_selection_takes_is_known_where_it_says_so() -> None:
    assert Selection(count=5).known_count == 5
    assert Selection(per_class=5, classes=["a", "b"]).known_count == 10
    assert Selection(per_class=5).known_count is None
    assert Selection(classes=["a"]).known_count is None


@pytest.mark.parametrize(
    ("labels", "selection", "says"),
    [
        (LABELS, {"classes": ["cow"]}, "somewhere has no class 'cow', only cat, dog, owl"),
        (None, {"classes": ["cat"]}, "somewhere has no labels"),
        (None, {"per_class": 1}, "somewhere has no labels"),
        (LABELS, {"count": 13}, "somewhere has 12 images to select from, but select.count is 13"),
        (LABELS, {"per_class": 3}, "somewhere has 2 images of owl, but select.per_class is 3"),
        (LABELS, {"count": 11}, "select.count 11: no equal share of every class"),
    ],
)
def test_what_is_not_there_cannot_be_selected(labels: Any, selection: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(labels, **selection)
    assert says in str(caught.value)


def test_only_what_is_selected_is_opened(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
    from PIL import Image

    Image.new("RGB", (4, 4)).save(tmp_path / "cat" / "a.png")
    (tmp_path / "dog" / "b.png").write_text("no picture")
    images = load_images(str(tmp_path), select=Selection(classes=["cat"]))
    assert images.ids.tolist() == ["cat/a.png"]
    assert images.columns["label"].tolist() == ["cat"]
    with pytest.raises(UsageError, match=r"b\.png"):
        load_images(str(tmp_path))


# The published notebooks of the paper's authors print the first rows of what they have drawn.


def test_the_faces_of_celeba_are_the_authors() -> None:
    """They are rows 167013, 179842, … of a list whose 19,867 validation images begin at row 162770."""
    selection = load_recipe("celeba").data.select_validation
    assert selection is not None
    rows = chosen_rows(None, 19_867, selection, "CelebA")
    assert (162_770 + rows[:5]).tolist() == [167013, 179842, 176165, 167714, 180120]


@pytest.mark.parametrize(
    ("name", "classes", "of_class", "in_test_set"),
    [
        ("cifar2", 2, [1, 0, 0, 1, 1], [7405, 5226, 1363, 6615, 7612]),
        ("cifar10", 10, [4, 5, 6, 9, 9], [9128, 5468, 62, 2465, 2810]),
    ],
)
def test_the_images_of_cifar_are_the_authors(
    name: str, classes: int, of_class: list[int], in_test_set: list[int]
) -> None:
    """Which of a class is drawn depends on the sizes of the classes alone, 1,000 in CIFAR-10's test set of 10,000.

    The i-th of a class lies near row 10 i of the whole set: a standard deviation is about 150 rows in its middle.
    """
    labels = np.tile(np.arange(classes), 1000)
    selection = load_recipe(name).data.select_validation
    assert selection is not None
    rows = chosen_rows(labels, len(labels), Selection(count=selection.count, seed=selection.seed), "CIFAR")[:5]
    assert labels[rows].tolist() == of_class
    np.testing.assert_allclose(10 * (rows // classes), in_test_set, atol=300)
