"""Every source of images and its refusals, through real files."""

import json
import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from dtrak.errors import DtrakError
from dtrak.images.images import load_images
from pictures_on_disk import everything, noise, refused, save_image, save_npz

# digits


def test_digits_are_split_once_and_for_all() -> None:
    from sklearn.datasets import load_digits

    train, validation = load_images("digits:train"), load_images("digits:validation")
    assert (len(train), len(validation)) == (1000, 797)
    assert train.shape == validation.shape == (1, 8, 8)
    assert train.source == "digits:train"
    assert train.ids.tolist() == list(range(1000))
    assert set(train.columns) == {"label"}
    assert set(train.columns["label"].tolist()) == set(range(10))
    assert all(type(label) is int for label in train.columns["label"].tolist())

    values, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(1797)
    both = np.concatenate([everything(train), everything(validation)])
    np.testing.assert_array_equal(both.reshape(1797, 64), np.round(values[order] * 255 / 16))
    np.testing.assert_array_equal(np.concatenate([train.columns["label"], validation.columns["label"]]), labels[order])
    assert train.fingerprint == load_images("digits:train").fingerprint != validation.fingerprint


@pytest.mark.parametrize("source", ["digits:test", "digits:"])
def test_unknown_split_of_digits(source: str) -> None:
    refused(lambda: load_images(source), repr(source), "digits:train", "digits:validation")


# .npz files


def test_npz_with_names_ids_and_more_columns(tmp_path: Path) -> None:
    pixels = noise(4, 6, 5, 3)
    path = save_npz(
        tmp_path / "set.npz",
        images=pixels,
        labels=np.array([1, 0, 0, 1], dtype=np.uint8),
        ids=np.array([30, 10, 40, 20], dtype=np.int32),
        label_names=np.array(["cat", "horse"]),
        artist=np.array(["a", "b", "c", "d"]),
        score=np.array([0.5, 1, 2, 3]),
        mean_image=noise(6, 5, 3),
        version=np.array(7),
    )
    images = load_images(path)
    assert images.source == path
    assert images.shape == (3, 6, 5)
    assert images.ids.dtype == np.int64
    assert images.ids.tolist() == [30, 10, 40, 20]
    assert {name: column.tolist() for name, column in images.columns.items()} == {
        "label": ["horse", "cat", "cat", "horse"],
        "artist": ["a", "b", "c", "d"],
        "score": [0.5, 1, 2, 3],
    }
    np.testing.assert_array_equal(everything(images), pixels)


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 5, 4, 1)])
def test_grey_npz(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = noise(*shape)
    images = load_images(save_npz(tmp_path / "grey.npz", images=pixels, labels=[2, 0, 1]))
    assert images.shape == (1, 5, 4)
    assert images.ids.tolist() == [0, 1, 2]
    assert images.columns["label"].tolist() == [2, 0, 1]
    np.testing.assert_array_equal(everything(images), pixels.reshape(3, 5, 4, 1))


def test_npz_with_text_for_ids_and_labels(tmp_path: Path) -> None:
    images = load_images(save_npz(tmp_path / "text.npz", images=noise(2, 4, 4), ids=["b", "a"], labels=["x", "y"]))
    assert images.ids.tolist() == ["b", "a"]
    assert images.columns["label"].tolist() == ["x", "y"]


def test_pickled_keys_are_never_unpickled(tmp_path: Path) -> None:
    pickled = np.array(["cat", "horse"], dtype=object)
    path = tmp_path / "set.npz"
    images = load_images(save_npz(path, images=noise(2, 4, 4), labels=[1, 0], label_names=pickled, artist=pickled))
    assert images.columns["label"].tolist() == [1, 0]
    assert set(images.columns) == {"label"}
    save_npz(path, images=noise(2, 4, 4), labels=pickled)
    refused(lambda: load_images(str(path)), path, "'labels'", "pickle")
    save_npz(path, images=noise(2, 4, 4), ids=pickled)
    refused(lambda: load_images(str(path)), path, "'ids'", "pickle")
    save_npz(path, images=np.array([noise(4, 4), noise(5, 5)], dtype=object))
    refused(lambda: load_images(str(path)), path, "'images'", "pickle")


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({"pictures": noise(2, 4, 4)}, ["'images'", "missing", "pictures", "uint8 [N, H, W"]),
        ({"images": noise(2, 4, 4).astype(np.float32)}, ["'images'", "float32 [2, 4, 4]", "uint8 [N, H, W"]),
        ({"images": noise(2, 3, 4, 4)}, ["'images'", "uint8 [2, 3, 4, 4]", "C 1 or 3"]),
        ({"images": noise(4, 4)}, ["'images'", "uint8 [4, 4]"]),
        ({"images": noise()}, ["'images'", "uint8 []"]),
        ({"images": noise(2, 4, 4, 3, 1)}, ["'images'", "uint8 [2, 4, 4, 3, 1]"]),
        ({"images": noise(0, 4, 4)}, ["no images"]),
        ({"images": noise(2, 4, 4), "labels": [1, 2, 3]}, ["'labels'", "int64 [3]", "[2]"]),
        ({"images": noise(2, 4, 4), "labels": [[1], [2]]}, ["'labels'", "int64 [2, 1]"]),
        ({"images": noise(2, 4, 4), "labels": [1.5, 2]}, ["'labels'", "float64 [2]", "integers or strings"]),
        ({"images": noise(2, 4, 4), "ids": [True, False]}, ["'ids'", "bool [2]", "integers or strings"]),
        ({"images": noise(3, 4, 4), "ids": [5, 7, 5]}, ["'ids'", "5 more than once"]),
        ({"images": noise(3, 4, 4), "ids": ["a", "b", "b"]}, ["'ids'", "b more than once"]),
        ({"images": noise(2, 4, 4), "labels": [0, 2], "label_names": ["a", "b"]}, ["'labels'", "from 0 to 1"]),
        ({"images": noise(2, 4, 4), "labels": [0, -1], "label_names": ["a", "b"]}, ["'labels'", "from 0 to 1"]),
        ({"images": noise(2, 4, 4), "labels": ["0", "1"], "label_names": ["a", "b"]}, ["'labels'", "from 0 to 1"]),
        ({"images": noise(2, 4, 4), "labels": [0, 1], "label_names": [3, 4]}, ["'label_names'", "strings [L]"]),
    ],
)
def test_wrong_npz(tmp_path: Path, arrays: dict[str, Any], parts: list[str]) -> None:
    path = save_npz(tmp_path / "wrong.npz", **arrays)
    refused(lambda: load_images(path), path, *parts)


def test_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    save_npz(path, images=noise(20, 8, 8, 3))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(lambda: load_images(str(path)), path, "damaged")
    path.write_bytes(whole[:1000] + bytes(100) + whole[1100:])
    refused(lambda: load_images(str(path)), path)
    np.save(tmp_path / "bare.npy", noise(2, 4, 4))
    (tmp_path / "bare.npy").rename(path)
    refused(lambda: load_images(str(path)), path, "not an .npz file")


def test_npz_with_a_member_that_is_no_array(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "set.npz"
    save_npz(path, images=noise(2, 4, 4))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "ab")
    assert load_images(str(path)).columns == {}


# Folders


def test_class_folders_even_when_called_train_and_test(tmp_path: Path) -> None:
    # Also a folder whose name is a glob pattern.
    folder = tmp_path / "set [1]"
    pixels = {f"{label}/{k}.png": noise(4, 4, 3, seed=k) for label in ("test", "cat", "train") for k in (10, 9)}
    for name, picture in pixels.items():
        save_image(folder / name, picture)
    images = load_images(str(folder))
    assert images.ids.tolist() == sorted(pixels)
    assert images.columns["label"].tolist() == [name.split("/")[0] for name in sorted(pixels)]
    np.testing.assert_array_equal(everything(images), [pixels[name] for name in sorted(pixels)])


def test_flat_and_mixed_folders_have_no_label(tmp_path: Path) -> None:
    save_image(tmp_path / "b.PNG", noise(4, 4))
    save_image(tmp_path / "a.bmp", noise(4, 4))
    assert load_images(str(tmp_path)).ids.tolist() == ["a.bmp", "b.PNG"]
    save_image(tmp_path / "sub" / "c.png", noise(4, 4))
    images = load_images(str(tmp_path))
    assert images.ids.tolist() == ["a.bmp", "b.PNG", "sub/c.png"]
    assert images.columns == {}


def test_current_folder_linked_folders_and_deep_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_image(tmp_path / "set" / "train" / "dog" / "1.png", noise(4, 4))
    save_image(tmp_path / "elsewhere" / "2.png", noise(4, 4))
    (tmp_path / "set" / "cat").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "set")
    images = load_images(".")
    assert images.ids.tolist() == ["cat/2.png", "train/dog/1.png"]
    assert images.columns["label"].tolist() == ["cat", "dog"]


def test_hidden_and_other_files_are_ignored(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", noise(4, 4))
    save_image(tmp_path / ".cache" / "b.png", noise(9, 9))
    save_image(tmp_path / ".c.png", noise(9, 9))
    (tmp_path / "readme.txt").write_text("not an image")
    assert load_images(str(tmp_path)).ids.tolist() == ["a.png"]


def test_metadata_jsonl(tmp_path: Path) -> None:
    for name in ("images/b.png", "images/a.png"):
        save_image(tmp_path / name, noise(4, 4))
    rows: list[dict[str, Any]] = [
        {"file_name": "images/b.png", "caption": "zwei, “drei”", "year": 1990, "box": [1, 2]},
        {"file_name": "./images/a.png", "caption": "eins", "year": 1991, "box": [3, 4], "score": 0.5},
    ]
    (tmp_path / "metadata.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    columns = load_images(str(tmp_path)).columns
    assert list(columns) == ["caption", "year", "box", "score"]
    assert columns["caption"].tolist() == ["eins", "zwei, “drei”"]
    assert columns["year"].dtype == np.int64
    assert columns["year"].tolist() == [1991, 1990]
    assert columns["box"].tolist() == [[3, 4], [1, 2]]
    assert columns["score"].tolist() == [0.5, None]


def test_metadata_csv_in_subfolders(tmp_path: Path) -> None:
    for name in ("x/1.png", "y/1.png"):
        save_image(tmp_path / name, noise(4, 4))
    (tmp_path / "x" / "metadata.csv").write_text('\ufefffile_name,caption\n1.png,"one, two"\n', encoding="utf-8")
    (tmp_path / "y" / "metadata.csv").write_text("file_name,caption\r\n1.png,three\r\n")
    images = load_images(str(tmp_path))
    assert images.ids.tolist() == ["x/1.png", "y/1.png"]
    assert {name: column.tolist() for name, column in images.columns.items()} == {"caption": ["one, two", "three"]}


@pytest.mark.parametrize(
    ("metadata", "content", "parts"),
    [
        ("metadata.jsonl", '{"file_name": "a.png"}\n{"file_name": "b.png"}\n', ["b.png", "no such image"]),
        ("metadata.jsonl", '{"file_name": "a.png"}\n{"file_name": "a.png"}\n', ["a.png", "two rows"]),
        ("metadata.jsonl", '{"file_name": "a.png"}\n{"file_name": \n', ["line 2"]),
        ("metadata.jsonl", "3\n", []),
        ("metadata.jsonl", "", ["a.png", "no row"]),
        ("metadata.csv", "name,caption\na.png,x\n", ["no file_name"]),
        ("metadata.csv", "file_name,caption\na.png,x,y\n", ["a.png", "more cells"]),
        ("metadata.csv", "file_name,caption\n", ["a.png", "no row"]),
    ],
)
def test_wrong_metadata(tmp_path: Path, metadata: str, content: str, parts: list[str]) -> None:
    save_image(tmp_path / "a.png", noise(4, 4))
    (tmp_path / metadata).write_text(content)
    refused(lambda: load_images(str(tmp_path)), tmp_path / metadata, *parts)


def test_empty_folder(tmp_path: Path) -> None:
    refused(lambda: load_images(str(tmp_path)), tmp_path, "no images", ".png")


def test_unreadable_subfolder_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_image(tmp_path / "a" / "1.png", noise(4, 4))
    (tmp_path / "b").mkdir()
    scandir = os.scandir

    def locked(path: Any) -> Any:
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    refused(lambda: load_images(str(tmp_path)), tmp_path / "b", "Permission denied")


def test_file_that_only_looks_like_an_image(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", noise(4, 4))
    (tmp_path / "b.jpg").write_text("<html>not found</html>")
    refused(lambda: load_images(str(tmp_path)), tmp_path / "b.jpg", "not an image")


@pytest.mark.parametrize("extension", ["png", "jpg"])
def test_truncated_image_fails_when_it_is_read(tmp_path: Path, extension: str) -> None:
    save_image(tmp_path / f"a.{extension}", noise(64, 64, 3))
    path = save_image(tmp_path / f"b.{extension}", noise(64, 64, 3))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    images = load_images(str(tmp_path))
    assert images.pixels([0]).shape == (1, 64, 64, 3)
    refused(lambda: images.pixels([0, 1]), path, kind=DtrakError)


def test_file_that_changes_or_vanishes_after_loading(tmp_path: Path) -> None:
    path = save_image(tmp_path / "a.png", noise(4, 4))
    images = load_images(str(tmp_path))
    save_image(path, noise(1, 1))
    refused(lambda: images.pixels([0]), path, "size", kind=DtrakError)
    path.unlink()
    refused(lambda: images.pixels([0]), path, "No such file", kind=DtrakError)
    refused(lambda: images.fingerprint, path, "No such file", kind=DtrakError)


def test_single_image(tmp_path: Path) -> None:
    path = save_image(tmp_path / "photo.png", noise(5, 7, 3))
    images = load_images(str(path))
    assert (len(images), images.ids.tolist(), images.shape) == (1, ["photo.png"], (3, 5, 7))
    np.testing.assert_array_equal(everything(images)[0], noise(5, 7, 3))


def test_anything_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    refused(lambda: load_images(str(tmp_path / "notes.txt")), tmp_path / "notes.txt", "not an image")
    for source in ("digits", "nowhere/at-all", str(tmp_path / "none.npz"), "", "x" * 5000):
        message = refused(lambda source=source: load_images(source))  # type: ignore[misc]
        places = "a folder, an .npz file, hf:name:split, parquet:files, celeba:folder:split or artbench:folder:split"
        wanted = f"give digits:train, digits:validation, {places}"
        assert message == f"no images at {source!r}: {wanted}"


# Hugging Face datasets


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def parquet(tmp_path: Path, no_hub: None) -> str:
    features = datasets.Features(
        {
            "fine_label": datasets.ClassLabel(names=["cat", "horse"]),
            "picture": datasets.Image(),
            "title": datasets.Value("string"),
            "preview": datasets.Image(),
        }
    )
    pictures = [Image.fromarray(picture) for picture in noise(3, 6, 5, 3)]
    rows = {"fine_label": [1, 0, -1], "picture": pictures, "title": ["a", "b", None], "preview": pictures}
    folder = tmp_path / "parquet"
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "train-00000-of-00001.parquet")
    return str(folder)


def test_hugging_face_parquet(parquet: str) -> None:
    images = load_images(f"hf:{parquet}:train")
    assert images.source == f"hf:{parquet}:train"
    assert images.ids.tolist() == [0, 1, 2]
    assert images.shape == (3, 6, 5)
    assert {name: column.tolist() for name, column in images.columns.items()} == {
        "fine_label": ["horse", "cat", None],
        "title": ["a", "b", None],
    }
    np.testing.assert_array_equal(everything(images), noise(3, 6, 5, 3))
    np.testing.assert_array_equal(images.select([2, 0]).pixels([1]), noise(3, 6, 5, 3)[:1])
    assert images.fingerprint == load_images(f"hf:{parquet}:train").fingerprint
    assert load_images(f"hf:{parquet}:train", size=4).shape == (3, 4, 4)
    refused(lambda: load_images(f"hf:{parquet}:test"), f"hf:{parquet}:test", "['train']")


def test_hugging_face_images_in_files(tmp_path: Path, no_hub: None) -> None:
    for k in range(2):
        save_image(tmp_path / "set" / f"{k}.png", noise(4, 4, seed=k))
    images = load_images(f"hf:{tmp_path / 'set'}:train")
    assert images.columns == {}
    np.testing.assert_array_equal(everything(images)[..., 0], [noise(4, 4, seed=k) for k in range(2)])


def test_hugging_face_refusals(tmp_path: Path, no_hub: None) -> None:
    refused(lambda: load_images("hf:no-such/dataset:train"), "hf:no-such/dataset:train")
    refused(lambda: load_images(f"hf:{tmp_path / 'nowhere'}:train"), f"hf:{tmp_path / 'nowhere'}:train")
    refused(lambda: load_images("hf:cifar10"), "'hf:cifar10'", "hf:name:split")
    datasets.Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "text" / "train.parquet")
    refused(lambda: load_images(f"hf:{tmp_path / 'text'}:train"), f"hf:{tmp_path / 'text'}:train", "text")
    rows = {"image": [Image.fromarray(noise(4, 4)), None]}
    holes = datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()}))
    holes.to_parquet(tmp_path / "holes" / "train.parquet")
    refused(
        lambda: load_images(f"hf:{tmp_path / 'holes'}:train"), f"hf:{tmp_path / 'holes'}:train, row 1: it has no image"
    )


# folders on other machines


def test_a_remote_folder_is_as_the_same_folder_here(tmp_path: Path) -> None:
    """fsspec opens file:// as it does s3://; there are labels from class folders, or columns from a table."""
    for name in ("b/2.png", "a/1.png", "a/.hidden.png"):
        save_image(tmp_path / "classes" / name, noise(4, 4))
    (tmp_path / "classes" / "b" / "notes.txt").touch()
    for name in ("1.png", "2.png"):
        save_image(tmp_path / "table" / name, noise(4, 4, seed=int(name[0])))
    (tmp_path / "table" / "metadata.jsonl").write_text(
        '{"file_name": "2.png", "artist": "Monet"}\n{"file_name": "1.png", "artist": "Hokusai"}\n'
    )
    for name in ("classes", "table"):
        here, there = load_images(str(tmp_path / name)), load_images((tmp_path / name).as_uri())
        assert there.fingerprint == here.fingerprint
        assert there.ids.tolist() == here.ids.tolist()
        assert {key: one.tolist() for key, one in there.columns.items()} == {
            key: one.tolist() for key, one in here.columns.items()
        }
        np.testing.assert_array_equal(everything(there), everything(here))
    assert load_images((tmp_path / "table" / "1.png").as_uri()).ids.tolist() == ["1.png"]


def test_a_remote_folder_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(lambda: load_images((tmp_path / "empty").as_uri()), "no images in file://", ".png")
    refused(lambda: load_images("nosuch://bucket/images"), "cannot read nosuch://bucket/images", "Protocol not known")
