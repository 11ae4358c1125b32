"""The content of images is read once before features begin: for their sizes and for their fingerprint."""

from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from PIL import Image

from dtrak.images.images import load_images
from dtrak.images.selection import Selection
from pictures_on_disk import everything, noise, save_npz


def megabytes_read(source: str) -> float:
    """What this process reads from files to find images and to know their fingerprint."""

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    load_images(source)  # so that all that has to be imported is there
    before = read()
    _ = load_images(source).fingerprint
    return (read() - before) / 1e6


class Counted(LocalFileSystem):  # type: ignore[misc]
    """The files of this machine; it counts how often each is opened."""

    protocol = "counted"
    opened: list[str]

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        Counted.opened.append(Path(path).name)
        return super()._open(path, *arguments, **options)


@pytest.fixture(autouse=True)
def counted() -> None:
    Counted.opened = []
    fsspec.register_implementation("counted", Counted, clobber=True)


def test_an_npz_file_is_read_once(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "set.npz", images=np.full((1000, 100, 100), 7, dtype=np.uint8))
    assert 10 <= megabytes_read(path) < 11


def test_each_file_of_an_object_store_is_read_once(tmp_path: Path) -> None:
    for row, pixels in enumerate(noise(5, 4, 4)):
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
    images = load_images(f"counted://{tmp_path}")
    assert images.fingerprint == load_images(tmp_path).fingerprint
    assert sorted(Counted.opened) == [f"{row}.png" for row in range(5)]
    np.testing.assert_array_equal(everything(images)[..., 0], noise(5, 4, 4))


def test_a_part_has_the_fingerprint_of_the_same_images_alone(tmp_path: Path) -> None:
    pixels = noise(6, 4, 4)
    whole = load_images(save_npz(tmp_path / "set.npz", images=pixels, labels=[0, 1, 0, 1, 1, 0]))
    rows = [1, 3, 4]
    alone = load_images(save_npz(tmp_path / "part.npz", images=pixels[rows], ids=rows)).fingerprint
    assert whole.select(rows).fingerprint == alone
    assert load_images(tmp_path / "set.npz", select=Selection(classes=["1"])).fingerprint == alone
    assert whole.select(rows).in_memory().fingerprint == alone


def test_what_is_read_of_parquet_files(tmp_path: Path) -> None:
    """Each group of rows once, so no more than the file and its columns."""
    names = [tmp_path / f"{row}.png" for row in range(40)]
    for name, pixels in zip(names, noise(40, 100, 100, 3), strict=True):
        Image.fromarray(pixels).save(name)
    rows = {"image": [{"bytes": name.read_bytes(), "path": None} for name in names]}
    features = datasets.Features({"image": datasets.Image()})
    path = tmp_path / "set.parquet"
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path, batch_size=10)
    size = path.stat().st_size / 1e6
    assert size / 2 <= megabytes_read(f"parquet:{path}") < 1.5 * size
