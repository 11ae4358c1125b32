"""What can be done with a set of images: select, read, tell apart, find by id."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrak.images.images import load_images, read_ids
from pictures_on_disk import everything, noise, refused, save_image, save_npz

# What can be done with a set


def test_tensor() -> None:
    images = load_images("digits:train")
    tensor = images.tensor([3, 1])
    assert (tensor.dtype, tensor.shape, tensor.is_contiguous()) == (torch.float32, (2, 1, 8, 8), True)
    expected = images.pixels([3, 1]).transpose(0, 3, 1, 2) / 127.5 - 1
    np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)
    assert tensor.min() == -1
    assert tensor.max() <= 1


def test_select_reads_nothing(tmp_path: Path) -> None:
    for k in range(4):
        save_image(tmp_path / f"{k}.png", noise(4, 4, seed=k))
    images = load_images(str(tmp_path))
    for k in (0, 1, 2):
        (tmp_path / f"{k}.png").unlink()
    chosen = images.select([3, 0]).select([0])
    assert (chosen.source, chosen.ids.tolist()) == (str(tmp_path), ["3.png"])
    np.testing.assert_array_equal(everything(chosen)[0, ..., 0], noise(4, 4, seed=3))


def test_pictures_are_read_when_asked_for(tmp_path: Path) -> None:
    path = save_image(tmp_path / "a.png", noise(4, 4))
    images = load_images(str(path))
    save_image(path, noise(4, 4, seed=1))
    np.testing.assert_array_equal(everything(images)[0, ..., 0], noise(4, 4, seed=1))


def test_positions_refuse_unknown_and_repeated_ids(tmp_path: Path) -> None:
    images = load_images("digits:train")
    assert refused(lambda: images.positions([3, 5000], "--queries")) == (
        "--queries: id 5000 is not in digits:train (1000 images, ids 0 … 999)"
    )
    assert refused(lambda: images.positions([7, 5, 7], "--queries")) == "--queries: id 7 is given twice"
    assert images.positions(["7", np.int64(5)], "ids").tolist() == [7, 5]
    assert images.positions([], "ids").dtype == np.int64
    refused(lambda: images.select([]).positions([1], "ids"), "id 1", "(0 images)")
    save_image(tmp_path / "a" / "1.png", noise(4, 4))
    refused(lambda: load_images(str(tmp_path)).positions(["b"], "ids"), "id b", tmp_path, "ids a/1.png … a/1.png")


DIGITS = load_images("digits:validation").select(range(40, 0, -2))
some_indices = st.lists(st.integers(0, len(DIGITS) - 1), min_size=0, max_size=8)
distinct_indices = st.lists(st.integers(0, len(DIGITS) - 1), unique=True)


@settings(max_examples=50, deadline=None)
@given(first=some_indices.filter(bool), data=st.data())
def test_selecting_twice_is_selecting_once(first: list[int], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(0, len(first) - 1), max_size=8))
    composed = np.array(first)[second]
    chosen, direct = DIGITS.select(first), DIGITS.select(composed)
    np.testing.assert_array_equal(chosen.pixels(second), DIGITS.pixels(composed))
    np.testing.assert_array_equal(everything(chosen.select(second)), everything(direct))
    np.testing.assert_array_equal(chosen.select(second).columns["label"], DIGITS.columns["label"][composed])
    assert chosen.select(second).ids.tolist() == direct.ids.tolist() == DIGITS.ids[composed].tolist()
    assert chosen.select(second).fingerprint == direct.fingerprint


@settings(max_examples=50, deadline=None)
@given(indices=distinct_indices)
def test_positions_undo_ids(indices: list[int]) -> None:
    assert DIGITS.positions(DIGITS.ids[indices], "ids").tolist() == indices
    chosen = DIGITS.select(indices)
    assert chosen.positions(chosen.ids, "ids").tolist() == list(range(len(indices)))


@settings(max_examples=50, deadline=None)
@given(one=some_indices, other=some_indices)
def test_fingerprints_tell_selections_apart(one: list[int], other: list[int]) -> None:
    assert (DIGITS.select(one).fingerprint == DIGITS.select(other).fingerprint) == (one == other)


@settings(max_examples=20, deadline=None)
@given(mask=st.lists(st.booleans(), min_size=len(DIGITS), max_size=len(DIGITS)))
def test_a_mask_selects_what_it_marks(mask: list[bool]) -> None:
    marked = np.flatnonzero(mask)
    assert DIGITS.select(np.array(mask)).fingerprint == DIGITS.select(marked).fingerprint
    np.testing.assert_array_equal(DIGITS.pixels(np.array(mask)), DIGITS.pixels(marked))


def test_fingerprint_is_of_the_content_not_the_place(tmp_path: Path) -> None:
    pixels = noise(3, 4, 4, 3)
    for k, picture in enumerate(pixels):
        save_image(tmp_path / "one" / f"{k}.png", picture)
    shutil.copytree(tmp_path / "one", tmp_path / "two" / "deeper")
    one, two = load_images(str(tmp_path / "one")), load_images(str(tmp_path / "two" / "deeper"))
    assert one.fingerprint == two.fingerprint
    assert len(one.fingerprint) == 16
    int(one.fingerprint, 16)

    for kept in ({"size": 4}, {"crop": 4}):
        assert load_images(str(tmp_path / "one"), **kept).fingerprint == one.fingerprint, "the same pixels"
    different = {one.fingerprint}
    different.add(load_images(str(tmp_path / "one"), crop=3).fingerprint)
    different.add(load_images(str(tmp_path / "one"), size=3).fingerprint)
    pixels[1, 2, 2, 0] ^= 1
    save_image(tmp_path / "one" / "1.png", pixels[1])
    different.add(load_images(str(tmp_path / "one")).fingerprint)
    (tmp_path / "two" / "deeper" / "2.png").rename(tmp_path / "two" / "deeper" / "3.png")
    different.add(load_images(str(tmp_path / "two" / "deeper")).fingerprint)
    assert len(different) == 5


def test_fingerprint_of_arrays(tmp_path: Path) -> None:
    pixels = noise(3, 4, 4)
    one = load_images(save_npz(tmp_path / "one.npz", images=pixels)).fingerprint
    assert one == load_images(save_npz(tmp_path / "two.npz", images=pixels)).fingerprint
    assert one != load_images(save_npz(tmp_path / "two.npz", images=pixels), channels=3).fingerprint
    pixels[0, 0, 0] ^= 1
    assert one != load_images(save_npz(tmp_path / "two.npz", images=pixels)).fingerprint


# Ids from files, images to files


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("3\n1\n\n 2 \n", [3, 1, 2]),
        ("\ufeff-4\r\n0\r\n", [-4, 0]),
        ("a/1.png\n2\n", ["a/1.png", "2"]),
        ("007\n8\n", ["007", "8"]),
        ("99999999999999999999\n", ["99999999999999999999"]),
    ],
)
def test_ids_from_text(tmp_path: Path, text: str, ids: list[Any]) -> None:
    path = tmp_path / "ids.txt"
    path.write_bytes(text.encode())
    assert read_ids(str(path)).tolist() == ids


def test_ids_from_npy(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.array([3, 1], dtype=np.int16))
    assert read_ids(str(path)).dtype == np.int64
    assert read_ids(str(path)).tolist() == [3, 1]
    np.save(path, np.array(["b", "a"]))
    assert read_ids(str(path)).tolist() == ["b", "a"]


def test_wrong_ids(tmp_path: Path) -> None:
    npy, txt = tmp_path / "ids.npy", tmp_path / "ids.txt"
    refused(lambda: read_ids(str(npy)), npy, "No such file")
    refused(lambda: read_ids(str(txt)), txt, "No such file")
    refused(lambda: read_ids("ids.csv"), "ids.csv", ".npy", ".txt")
    for wrong in (np.zeros((2, 2), dtype=int), np.array([0.5]), np.array([True, False]), np.array([], dtype=int)):
        np.save(npy, wrong)
        refused(lambda wrong=wrong: read_ids(str(npy)), npy, wrong.dtype, list(wrong.shape))  # type: ignore[misc]
    np.save(npy, np.array(["a"], dtype=object))
    refused(lambda: read_ids(str(npy)), npy, "pickle")
    npy.write_text("not an array")
    refused(lambda: read_ids(str(npy)), npy)
    txt.write_text("\n")
    refused(lambda: read_ids(str(txt)), txt, "at least one")
    txt.write_bytes(b"\xff\xfe\xfa")
    refused(lambda: read_ids(str(txt)), txt)


def test_importing_is_light() -> None:
    heavy = "import sys, dtrak.images.images; print(sorted({'torch', 'datasets', 'sklearn'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
