"""Images in .npz files: one at a time where they are not compressed, with the same bytes as all at once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrak.errors import DtrakError
from dtrak.images.images import load_images
from memory import megabytes
from pictures_on_disk import everything, noise, refused, save_npz

READ_ALL = """
images = dtrak.images.images.load_images(sys.argv[1])
images.fingerprint
for row in range(len(images)):
    images.pixels([row])
"""


@pytest.mark.parametrize("shape", [(5, 6, 4), (5, 6, 4, 1), (5, 6, 4, 3)])
@pytest.mark.parametrize("options", [{}, {"channels": 3}, {"size": 3}, {"crop": 2}])
def test_a_file_has_the_same_images_compressed_or_not(
    shape: tuple[int, ...], options: dict[str, int], tmp_path: Path
) -> None:
    arrays: dict[str, Any] = {"labels": np.arange(5), "images": noise(*shape), "artist": np.array(list("abcde"))}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    by_columns = {**arrays, "images": np.asfortranarray(arrays["images"])}
    np.savez(tmp_path / "columns.npz", **by_columns)
    plain, *others = (load_images(tmp_path / f"{name}.npz", **options) for name in ("plain", "small", "columns"))  # type: ignore[arg-type]
    for other in others:
        assert other.fingerprint == plain.fingerprint
        assert other.shape == plain.shape
        assert {key: one.tolist() for key, one in other.columns.items()} == {
            key: one.tolist() for key, one in plain.columns.items()
        }
        np.testing.assert_array_equal(everything(other), everything(plain))
    assert [one.by_name() is None for one in (plain, *others)] == [False, True, True]
    if not options:
        np.testing.assert_array_equal(everything(plain), arrays["images"].reshape(5, 6, 4, -1))
        np.testing.assert_array_equal(plain.pixels([3, 0]), arrays["images"][[3, 0]].reshape(2, 6, 4, -1))


@pytest.mark.parametrize(("save", "least", "most"), [(np.savez, 0, 50), (np.savez_compressed, 190, 500)])
def test_images_that_are_not_compressed_are_never_all_in_memory(
    save: Callable[..., None], least: int, most: int, tmp_path: Path
) -> None:
    """They take 197 MB, and all of them are read, one after the other."""
    save(tmp_path / "large.npz", images=np.full((1000, 256, 256, 3), 7, dtype=np.uint8))
    assert least <= megabytes(READ_ALL, tmp_path / "large.npz") < most


def test_one_wrong_bit_is_found_before_anything_starts(tmp_path: Path) -> None:
    path = Path(save_npz(tmp_path / "set.npz", images=noise(20, 8, 8)))
    content = bytearray(path.read_bytes())
    content[content.index(noise(20, 8, 8).tobytes()) + 700] ^= 1
    path.write_bytes(content)
    refused(lambda: load_images(path), f"cannot read {path}: Bad CRC-32 for file 'images.npy'")


def test_a_file_that_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    path = Path(save_npz(tmp_path / "set.npz", images=noise(20, 8, 8)))
    images = load_images(path)
    os.truncate(path, 700)
    np.testing.assert_array_equal(images.pixels([0]), noise(20, 8, 8)[:1, ..., None])
    refused(lambda: images.pixels([19]), f"cannot read {path}, image 19: the file ends before it", kind=DtrakError)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_in_place_of_another_is_never_taken_for_it(save: Callable[..., None], tmp_path: Path) -> None:
    """What is not compressed is refused, and what is was read already."""
    path = tmp_path / "set.npz"
    save(path, images=noise(3, 4, 4))
    images = load_images(path)
    before = images.facts
    os.utime(path)
    assert images.facts == before
    save(tmp_path / "new.npz", images=noise(3, 4, 4, seed=1), labels=[0, 1, 2])
    (tmp_path / "new.npz").rename(path)
    np.testing.assert_array_equal(everything(load_images(path))[..., 0], noise(3, 4, 4, seed=1))
    if save is np.savez:
        refused(lambda: images.pixels([0]), f"{path}, image 0 has changed since it was first read", kind=DtrakError)
        refused(lambda: images.facts, f"{path}, image 0: it has changed since its source was opened", kind=DtrakError)
    else:
        assert images.facts == before
        np.testing.assert_array_equal(everything(images)[..., 0], noise(3, 4, 4))
