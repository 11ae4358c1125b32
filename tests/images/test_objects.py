"""Images that Python code already has: the pixels are the same, however they are given."""

from typing import Any

import datasets
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from dtrak.errors import UsageError
from dtrak.images.objects import images_from
from pictures_on_disk import noise

PIXELS: NDArray[np.uint8] = noise(5, 8, 6, 3)
LABELS = [0, 1, 0, 2, 1]


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, row: int) -> Any:
        return Image.fromarray(PIXELS[row]), LABELS[row]


class Rows(Pairs):
    def __getitem__(self, row: int) -> Any:
        return {"image": torch.from_numpy(PIXELS[row]).permute(2, 0, 1) / 255, "label": torch.tensor(LABELS[row])}


def first(pixels: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


GIVEN: dict[str, Any] = {
    "array": lambda: PIXELS,
    "array with channels first": lambda: PIXELS.transpose(0, 3, 1, 2),
    "tensor": lambda: first(PIXELS),
    "floats in [0, 1]": lambda: first(PIXELS).float() / 255,
    "floats in [-1, 1]": lambda: first(PIXELS).double() / 127.5 - 1,
    "PIL images": lambda: [Image.fromarray(one) for one in PIXELS],
    "list of tensors": lambda: list(first(PIXELS)),
    "tensors in a data set": lambda: TensorDataset(first(PIXELS), torch.tensor(LABELS)),
    "pairs": Pairs,
    "dictionaries": Rows,
    "mapping": lambda: {"images": PIXELS, "labels": np.array(LABELS)},
    "Hugging Face": lambda: datasets.Dataset.from_dict(
        {"image": [Image.fromarray(one) for one in PIXELS], "label": LABELS},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}),
    ),
}
WITH_LABELS = ("tensors in a data set", "pairs", "dictionaries", "mapping", "Hugging Face")


@pytest.mark.parametrize("kind", GIVEN)
def test_the_same_pixels(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    images = images_from(GIVEN[kind](), name="mine")
    assert np.array_equal(images.pixels(range(5)), PIXELS)
    assert images.shape == (3, 8, 6)
    if kind in WITH_LABELS:
        expected = [["a", "b", "c"][one] for one in LABELS] if kind == "Hugging Face" else LABELS
        assert images.columns["label"].tolist() == expected
    said = capsys.readouterr().err
    assert ("mine: floats in [0, 1]" in said) == (kind in ("floats in [0, 1]", "dictionaries"))
    assert ("mine: floats in [-1, 1]" in said) == (kind == "floats in [-1, 1]")


def test_columns_and_grey_images() -> None:
    grey = images_from(PIXELS[..., 0], artist=["x", "y", "x", "y", "x"], vector=torch.ones(5, 2))
    assert grey.shape == (1, 8, 6)
    assert grey.columns["artist"].tolist() == ["x", "y", "x", "y", "x"]
    assert grey.select([1, 2]).columns["vector"].shape == (2, 2)


def test_floats_between_the_levels_are_said_to_be_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    images_from(np.random.default_rng(0).random((2, 4, 4, 1)), name="mine")
    assert "floats in [0, 1], rounded to 8 bits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (3, "mine is a int: give a folder"),
        ([], "mine holds no images"),
        ([1, 2], "mine, row 0 is a int, not an image"),
        (np.zeros((2, 4)), r"mine is \[2, 4\]: images are"),
        (np.zeros((2, 4, 4, 1), dtype=np.int64), "mine holds int64: give uint8, or floats"),
        (np.full((2, 4, 4, 1), 200.0), r"from 0 to 200: they must be in \[-1, 1\] or \[0, 1\]"),
        (np.full((2, 4, 4, 1), np.nan), "they must be in"),
        ({"pictures": 1}, "a mapping needs images"),
        ([np.zeros((4, 4, 1)), np.zeros((5, 4, 1))], "differ in shape"),
    ],
)
def test_wrong_types_are_one_line(data: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        images_from(data, name="mine")
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="mine: label has 2 values, but there are 5 images"):
        images_from(PIXELS, name="mine", label=[1, 2])
    with pytest.raises(UsageError, match="mine: label is a str"):
        images_from(PIXELS, name="mine", label="cats")
