"""What is taken of a source, how it is made to fit a model, and the facts that depend on its images as they are now."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from dtrak.errors import DtrakError
from dtrak.images.image_files import Memory, Picture
from dtrak.images.images import Images, ImageSource, load_images
from dtrak.images.objects import images_from
from dtrak.images.selection import Selection
from pictures_on_disk import everything, noise, refused, save_image, save_npz


@dataclass(frozen=True)
class Model:
    """A model as images know it; one of latents takes every size that 4 divides."""

    image_shape: tuple[int, int, int] = (3, 8, 8)
    of_latents: bool = False
    source: str = "my-model"

    def fitted_to(self, shape: tuple[int, int, int]) -> "Model":
        divisible = self.of_latents and shape[0] == 3 and not any(side % 4 for side in shape[1:])
        return replace(self, image_shape=shape) if divisible else self


def folder(home: Path, *shapes: tuple[int, ...]) -> str:
    for number, shape in enumerate(shapes):
        save_image(home / f"{number}.png", noise(*shape, seed=number))
    return str(home)


@pytest.mark.parametrize(
    ("shapes", "model", "fitted"),
    [
        ([(8, 8, 3)], Model(), {}),
        ([(8, 8)], Model(), {"channels": 3}),
        ([(8, 8), (8, 8, 3)], Model(), {}),
        ([(9, 12)], Model(), {"size": 8, "channels": 3}),
        ([(9, 12, 3)], Model(), {"size": 8}),
        ([(9, 12, 3), (8, 8)], Model(), {"size": 8, "channels": 3}),
        ([(9, 12)], Model((1, 8, 8)), {"size": 8}),
        ([(12, 16)], Model(of_latents=True), {"channels": 3}),
        ([(12, 16, 3)], Model(of_latents=True), {}),
        ([(13, 16, 3)], Model(of_latents=True), {"size": 8}),
        ([(9, 12)], Model((3, 8, 6)), {"channels": 3}),
    ],
)
def test_images_are_made_to_fit_a_model(
    shapes: list[Any], model: Model, fitted: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ImageSource(folder(tmp_path, *shapes))
    found = source.fitting(model)
    assert found == replace(source, **fitted)
    np.testing.assert_array_equal(everything(found.open()), everything(load_images(str(tmp_path), **fitted)))
    said = f"{tmp_path}: images are resized to 8×8 pixels, for which my-model was made"
    assert (said in capsys.readouterr().err.replace("\n", " ")) == ("size" in fitted)
    assert found.fitting(model) == found


def test_what_cannot_fit_is_refused_or_left_to_the_model(tmp_path: Path) -> None:
    source = ImageSource(folder(tmp_path, (8, 8, 3), (4, 4, 3)))
    refused(lambda: source.fitting(Model((1, 8, 8))), "0.png is in colour, but the images must be grey")
    refused(lambda: source.fitting(Model((3, 8, 6))), "give a size to make them equal")
    refused(lambda: ImageSource(str(tmp_path / "none")).fitting(Model()), "no images at")
    given = replace(source, size=5)
    assert given.fitting(Model()) == given
    mine = ImageSource(images_from(noise(2, 5, 5)))
    assert mine.fitting(Model()) is mine


def test_a_source_is_a_value_that_says_what_is_taken(tmp_path: Path) -> None:
    arrays = {"images": noise(6, 9, 12, 3), "labels": [0, 1, 0, 1, 1, 0], "ids": list("abcdef")}
    path = save_npz(tmp_path / "set.npz", **arrays)
    (tmp_path / "ids.txt").write_text("e\nb\n")
    source = ImageSource(path, Selection(classes=["1"]), str(tmp_path / "ids.txt"), crop=8, size=4, channels=3)
    assert source == ImageSource(path, Selection(classes=["1"]), str(tmp_path / "ids.txt"), 8, 4, 3, memory={})
    images = source.open()
    assert (images.ids.tolist(), images.shape, images.transformation) == (["e", "b"], (3, 4, 4), (8, 4))
    assert images is source.open()
    assert source.facts == images.facts
    expected = load_images(path, crop=8, size=4)
    np.testing.assert_array_equal(everything(images), expected.pixels([4, 1]))
    mine = images_from(arrays["images"])
    assert ImageSource(mine).open() is mine
    (tmp_path / "ids.txt").write_text("a\n")
    refused(lambda: replace(source, size=5).open(), "ids.txt: id a is not in")


# facts


def png_folder(home: Path) -> str:
    for label in ("cat", "horse"):
        for number in range(3):
            save_image(home / "set" / label / f"{number}.png", noise(6, 6, 3, seed=10 * len(label) + number))
    return str(home / "set")


def npz(home: Path) -> str:
    return save_npz(home / "set.npz", images=noise(6, 6, 6, 3), labels=list("xyzxyz"))


def compressed(home: Path) -> str:
    np.savez_compressed(home / "set.npz", images=noise(6, 6, 6, 3), labels=list("xyzxyz"))
    return str(home / "set.npz")


def store(home: Path) -> str:
    return Path(png_folder(home)).as_uri()


def parquet(home: Path) -> str:
    rows = {"image": [Image.fromarray(one) for one in noise(6, 6, 6, 3)], "label": list("xyzxyz")}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(home / "set" / "train.parquet", batch_size=2)
    return str(home / "set")


def hub(home: Path) -> str:
    return f"hf:{parquet(home)}:train"


KINDS = [png_folder, npz, compressed, store, parquet, hub]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of pictures that are opened."""
    names: list[str] = []
    content = Picture._content

    def counted(picture: Picture) -> Any:
        names.append(picture.name)
        return content(picture)

    monkeypatch.setattr(Picture, "_content", counted)
    return names


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_plain_values_and_each_image_has_its_own_hash(kind: Callable[[Path], str], tmp_path: Path) -> None:
    images = load_images(kind(tmp_path))
    facts = images.facts
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["count"], facts["shape"], list(facts["columns"])) == (6, [3, 6, 6], ["label"])
    assert len(set(images.digests.tolist())) == len(images.digests) == 6
    alone = images_from(everything(images), label=images.columns["label"].tolist())
    assert (alone.digests == images.digests).all(), "neither files nor formats count"
    assert {**alone.facts, "ids": facts["ids"]} == facts
    assert images.select([3, 1]).digests.tolist() == images.digests[[3, 1]].tolist()
    assert images.select([1, 0]).facts["pixels"] != images.select([0, 1]).facts["pixels"]
    assert load_images(images.source, size=3).facts["pixels"] != facts["pixels"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_read_once_is_remembered(kind: Callable[[Path], str], tmp_path: Path, reads: list[str]) -> None:
    memory: Memory = {}
    source = ImageSource(kind(tmp_path), memory=memory)
    facts = source.facts
    assert facts == source.facts
    assert len(reads) == len(set(reads)) * (2 if kind in (png_folder, compressed) else 1), "a header, and the pixels"
    memory = json.loads(json.dumps(memory))
    reads.clear()
    assert replace(source, memory=memory).facts == facts
    assert not reads or kind is compressed, "it is in memory, and hashed in no time"
    assert replace(source, memory=memory, size=3).facts != facts
    assert set(map(len, memory.values())) <= {4}


def test_a_file_that_changes_is_read_again_and_no_other(tmp_path: Path, reads: list[str]) -> None:
    memory: Memory = {}
    place = Path(png_folder(tmp_path))
    images = ImageSource(str(place), memory=memory).open()
    before, digests = images.facts, images.digests
    os.utime(place / "cat" / "1.png")
    reads.clear()
    assert images.facts == before
    assert reads == [str(place / "cat" / "1.png")], "a touch costs a hash"
    save_image(place / "horse" / "2.png", noise(6, 6, 3, seed=99))
    refused(lambda: images.pixels([5]), "horse/2.png has changed since it was first read", kind=DtrakError)
    for again in (images, ImageSource(str(place), memory=memory).open()):
        now = again.facts
        assert {name for name in before if now[name] != before[name]} == {"pixels"}
        assert (again.digests == digests).tolist() == [True] * 5 + [False]
    np.testing.assert_array_equal(images.pixels([5])[0], noise(6, 6, 3, seed=99))
    (place / "cat" / "0.png").unlink()
    assert images.digests.tolist() == again.digests.tolist(), "as they were when they were last read"
    refused(lambda: images.facts, "cat/0.png: No such file", kind=DtrakError)


def test_each_column_and_the_ids_have_a_fact_of_their_own(tmp_path: Path) -> None:
    def facts(**changes: Any) -> dict[str, Any]:
        columns = {"artist": ["a", "b"], "year": [1, None], "vector": np.eye(2), "box": [{"x": [1]}, None], **changes}
        return images_from(noise(2, 4, 4), **columns).facts

    before = facts()
    assert before == facts(artist=np.array(["a", "b"], dtype="<U50"))
    for name, value in {
        "artist": ["a", "c"],
        "year": [1, 2],
        "vector": 2 * np.eye(2),
        "box": [{"x": [2]}, None],
    }.items():
        after = facts(**{name: value})
        assert {one for one in before["columns"] if before["columns"][one] != after["columns"][one]} == {name}
        assert {**after, "columns": 0} == {**before, "columns": 0}
    odd = [np.array([1.5, 2]), b"bytes"]
    assert facts(box=odd) == facts(box=odd) != before
    save_image(tmp_path / "one" / "a.png", noise(4, 4))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "a.png").rename(tmp_path / "two" / "b.png")
    one, two = (load_images(tmp_path / name).facts for name in ("one", "two"))
    assert {name for name in one if one[name] != two[name]} == {"ids"}


def test_arrays_that_are_changed_in_memory_have_other_facts() -> None:
    pixels = noise(3, 4, 4, 3)
    images = images_from(pixels)
    before = images.facts
    pixels[1, 0, 0] ^= 1
    assert images.facts != before
    pixels[1, 0, 0] ^= 1
    assert images.facts == before


def test_grey_pixels_are_the_same_in_one_channel_and_in_three(tmp_path: Path) -> None:
    grey = noise(2, 5, 5, 1)
    three = images_from(np.repeat(grey, 3, axis=-1))
    assert (images_from(grey).digests == three.digests).all()
    for number, one in enumerate(grey):
        save_image(tmp_path / f"{number}.png", one[..., 0])
    wide = load_images(tmp_path, channels=3)
    assert wide.in_memory().digests.tolist() == wide.digests.tolist() == three.digests.tolist()
    np.testing.assert_array_equal(everything(wide), everything(three))


def test_many_images_are_read_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = load_images(png_folder(tmp_path)).digests
    monkeypatch.setattr("dtrak.images.images.MANY", 4)
    images: Images = load_images(tmp_path / "set")
    assert images.digests.tolist() == expected.tolist()
    assert "reading: 6/6 images" in capsys.readouterr().err
    (tmp_path / "set" / "cat" / "2.png").write_bytes(b"no image")
    refused(lambda: load_images(tmp_path / "set"), "cat/2.png: it is not an image")
