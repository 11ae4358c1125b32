"""Images in parquet files are read where they are, a group of rows at a time."""

import io
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dtrak.errors import DtrakError
from dtrak.images.images import Images, load_images
from dtrak.images.sources import full_source
from memory import megabytes
from pictures_on_disk import everything, noise, refused, save_image

FEATURES = datasets.Features(
    {"label": datasets.ClassLabel(names=["cat", "horse"]), "image": datasets.Image(), "title": datasets.Value("string")}
)
CELL = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def save(path: Path, pixels: Any, group: int = 2, **columns: Any) -> None:
    """Write pixels [N, H, W, C] as a data set of Hugging Face has them, in groups of rows."""
    cells = []
    for one in pixels:
        file = io.BytesIO()
        Image.fromarray(one).save(file, "BMP")
        cells.append({"bytes": file.getvalue(), "path": None})
    count = len(cells)
    values = {"label": [0] * count, "image": pa.array(cells, CELL), "title": [None] * count, **columns}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(values, schema=FEATURES.arrow_schema), path, row_group_size=group)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of five images each, in groups of two."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pixels = noise(15, 6, 5, 3)
    for number, labels in enumerate(([0, 1, 1, 0, 0], [1, 1, -1, 0, None], [0, 0, 0, 1, 1])):
        titles = [f"{number}{letter}" for letter in "abcde"]
        save(
            tmp_path / "set" / f"train-{number}.parquet",
            pixels[5 * number : 5 * number + 5],
            label=pa.array(labels, pa.int64()),
            title=titles,
        )
    (tmp_path / "set" / "README.md").touch()
    return tmp_path / "set"


def test_the_same_images_and_columns_as_by_way_of_datasets(folder: Path) -> None:
    expected = load_images(f"hf:{folder}:train")
    np.testing.assert_array_equal(everything(expected), noise(15, 6, 5, 3))
    for place in (folder, folder / "train-*.parquet", folder.as_uri()):
        images = load_images(f"parquet:{place}")
        assert images.fingerprint == expected.fingerprint
        assert images.shape == expected.shape
        assert {key: one.tolist() for key, one in images.columns.items()} == {
            key: one.tolist() for key, one in expected.columns.items()
        }
        np.testing.assert_array_equal(images.pixels([11, 2, 7]), noise(15, 6, 5, 3)[[11, 2, 7]])
    one = load_images(f"parquet:{folder}/train-1.parquet")
    np.testing.assert_array_equal(everything(one), noise(15, 6, 5, 3)[5:10])


def test_nothing_is_copied(folder: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert load_images(f"parquet:{folder}").fingerprint
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_were_replaced_are_opened_again(folder: Path) -> None:
    assert load_images(f"parquet:{folder}").fingerprint
    save(folder / "train-0.parquet", noise(7, 6, 5, 3, seed=1), group=3)
    expected = np.concatenate([noise(7, 6, 5, 3, seed=1), noise(15, 6, 5, 3)[5:]])
    np.testing.assert_array_equal(everything(load_images(f"parquet:{folder}")), expected)


def test_few_images_of_large_files_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take 197 MB, and all of them are read, one after the other. `datasets` maps its own copy into memory."""
    save(tmp_path / "set" / "0.parquet", noise(250, 256, 256, 3), group=10)
    for number in range(1, 4):
        shutil.copyfile(tmp_path / "set" / "0.parquet", tmp_path / "set" / f"{number}.parquet")
    lines = "images = dtrak.images.images.load_images(sys.argv[1])\nimages.fingerprint"
    assert megabytes(lines, f"parquet:{tmp_path / 'set'}") < 80
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.load_dataset(str(tmp_path / "set"), split="train")  # makes the copy
    assert megabytes(lines, f"hf:{tmp_path / 'set'}:train", kind="RssAnon") < 80


def test_what_is_wrong_is_said_in_one_line(folder: Path, tmp_path: Path) -> None:
    refused(lambda: load_images(f"parquet:{tmp_path / 'nowhere'}"), "no parquet files at", "nowhere", "give a folder")
    refused(lambda: load_images("parquet:"), "no parquet files at 'parquet:'")
    refused(lambda: load_images("parquet:nosuch://bucket/set"), "cannot read parquet:nosuch://bucket/set")
    images = load_images(f"parquet:{folder}")
    path = folder / "train-1.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    refused(lambda: load_images(f"parquet:{folder}"), f"cannot read {path.as_uri()}: Parquet magic bytes not found")
    path.unlink()
    message = refused(lambda: images.pixels([5]), kind=DtrakError)
    assert message == f"cannot read parquet:{folder}, row 5: No such file or directory"
    pq.write_table(pa.table({"text": ["a"]}), path)
    refused(lambda: load_images(f"parquet:{path}"), "has no image column, only text")
    save(path, noise(2, 6, 5, 3), image=pa.array([{"bytes": b"no image", "path": None}, None], CELL))
    refused(lambda: load_images(f"parquet:{path}"), f"cannot read parquet:{path}, row 0: it is not an image")
    save(path, noise(1, 6, 5, 3), image=pa.array([None], CELL))
    refused(lambda: load_images(f"parquet:{path}"), f"cannot read parquet:{path}, row 0: it has no image")


def test_one_wrong_byte_is_found(folder: Path) -> None:
    images, path = load_images(f"parquet:{folder}"), folder / "train-2.parquet"
    before = images.digests
    content = bytearray(path.read_bytes())
    content[content.index(noise(15, 6, 5, 3)[12][-1, :, ::-1].tobytes())] ^= 1
    path.write_bytes(content)
    assert (load_images(f"parquet:{folder}").digests == before).tolist() == [row != 12 for row in range(15)]
    with pytest.raises(DtrakError, match=r"row 12 has changed since it was first read"):
        images.pixels([12])


def test_a_folder_of_parquet_files_is_their_images(folder: Path) -> None:
    expected = load_images(f"parquet:{folder}")
    for place in (folder, folder.as_uri()):
        images = load_images(str(place))
        assert (images.source, images.facts) == (str(place), expected.facts)
    save_image(folder / "one.png", noise(4, 4))
    assert load_images(folder).ids.tolist() == ["one.png"]


def test_a_struct_with_paths_is_images_with_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tables of images are written without Hugging Face's own description of their columns."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pixels, path = noise(3, 6, 5, 3), tmp_path / "set" / "train.parquet"
    for name, one in zip("cab", pixels, strict=True):
        save_image(tmp_path / f"{name}.png", one)

    def write(paths: list[str | None]) -> Images:
        contents = [(tmp_path / f"{name}.png").read_bytes() for name in "cab"]
        cells = [{"bytes": one, "path": path} for one, path in zip(contents, paths, strict=True)]
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"image": pa.array(cells, CELL), "year": [1, 2, 3]}), path, row_group_size=2)
        return load_images(path.parent)

    images = write(["x/c.png", "x/a.png", "b.png"])
    assert images.ids.tolist() == ["x/c.png", "x/a.png", "b.png"]
    assert {name: column.tolist() for name, column in images.columns.items()} == {"year": [1, 2, 3]}
    np.testing.assert_array_equal(everything(images), pixels)
    hub = load_images(f"hf:{path.parent}:train")
    np.testing.assert_array_equal(everything(hub), pixels)
    assert write(["c.png", "c.png", "b.png"]).ids.tolist() == write(["c.png", None, "b.png"]).ids.tolist() == [0, 1, 2]


def test_a_name_is_valid_in_any_working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert full_source("parquet:set") == f"parquet:{folder}"
    assert full_source("parquet:set/train-*.parquet") == f"parquet:{folder}/train-*.parquet"
    assert full_source("parquet:s3://bucket/set") == "parquet:s3://bucket/set"
