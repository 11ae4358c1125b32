"""CelebA and ArtBench-10 in the layouts in which they are published, made small on the spot."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dtrak import load_images
from dtrak.errors import UsageError
from dtrak.images.selection import Selection
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run

SPLITS = {"train": 6, "validation": 2, "test": 3}
STYLES = ("post_impressionism", "ukiyo_e", "baroque")


def celeba(folder: Path) -> Path:
    """Pictures of 178×218 pixels, as those of CelebA are, and the list of which is what."""
    (folder / "img_align_celeba").mkdir(parents=True)
    random, lines = np.random.default_rng(0), list[str]()
    for split, count in enumerate(SPLITS.values()):
        for _ in range(count):
            name = f"{len(lines) + 1:06d}.jpg"
            pixels = random.integers(0, 256, (218, 178, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "img_align_celeba" / name)
            lines.append(f"{name} {split}\n")
    (folder / "list_eval_partition.txt").write_text("".join(lines))
    return folder


def artbench(folder: Path, is_split: bool) -> Path:
    """Three styles, each with four paintings to train on and two to test, listed in no particular order."""
    rows = []
    for style in STYLES:
        for number in (3, 1, 6, 2, 5, 4):
            split, artist = "train" if number <= 4 else "test", f"artist-{number % 2}"
            home = folder / ("artbench-10-imagefolder-split" if is_split else "artbench-10-imagefolder")
            path = (home / split if is_split else home) / style / f"{artist}_painting-{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (256, 256), (10 * number, 0, 0)).save(path)
            rows.append({"name": path.name, "artist": artist, "label": style, "split": split, "cifar_index": 0})
    with open(folder / "ArtBench-10.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.mark.parametrize(("split", "first"), [("train", 1), ("validation", 7), ("test", 9)])
def test_celeba_has_the_images_of_each_part(tmp_path: Path, split: str, first: int) -> None:
    images = load_images(f"celeba:{celeba(tmp_path)}:{split}")
    assert images.ids.tolist() == [f"{number:06d}.jpg" for number in range(first, first + SPLITS[split])]
    assert images.shape == (3, 218, 178)
    assert not images.columns


def test_the_recipe_of_celeba_crops_as_the_authors_do(tmp_path: Path) -> None:
    """The 140×140 pixels in the middle, then bilinear to 64×64: pixels 19 to 158 across and 39 to 178 down."""
    source = f"celeba:{celeba(tmp_path)}:train"
    changes = {"data": {"train": source, "select": {"count": 4}, "validation": source.replace("train", "test")}}
    changes["data"]["select_validation"] = {"count": 2}
    run = Run(tmp_path / "run", load_recipe("celeba", changes=changes))
    assert run.train_images.shape == (3, 64, 64)
    for id_, found in zip(run.train_images.ids, run.train_images.pixels(range(4)), strict=True):
        with Image.open(tmp_path / "img_align_celeba" / str(id_)) as image:
            expected = image.crop((19, 39, 159, 179)).resize((64, 64), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(found, np.asarray(expected))
    assert run.validation_images is not None
    assert run.validation_images.shape == (3, 64, 64)
    assert set(run.validation_images.ids) < {f"{number:06d}.jpg" for number in (9, 10, 11)}


@pytest.mark.parametrize("is_split", [True, False])
def test_artbench_has_styles_and_artists_in_the_order_of_its_list(tmp_path: Path, is_split: bool) -> None:
    images = load_images(f"artbench:{artbench(tmp_path, is_split)}:train")
    expected = [f"{style}/artist-{number % 2}_painting-{number}.jpg" for style in STYLES for number in (3, 1, 2, 4)]
    assert images.ids.tolist() == expected
    assert images.columns["label"].tolist() == [style for style in STYLES for _ in range(4)]
    assert images.columns["artist"].tolist() == ["artist-1", "artist-1", "artist-0", "artist-0"] * 3
    assert images.pixels([0]).max(initial=0) in range(28, 33)
    test = load_images(f"artbench:{tmp_path}:test", select=Selection(classes=["ukiyo_e"]))
    assert test.ids.tolist() == ["ukiyo_e/artist-0_painting-6.jpg", "ukiyo_e/artist-1_painting-5.jpg"]


def test_the_recipes_of_artbench_take_their_styles(tmp_path: Path) -> None:
    folder = artbench(tmp_path, True)
    changes = {"data": {"train": f"artbench:{folder}:train", "select": {"count": 4}}}
    images = Run(tmp_path / "run", load_recipe("artbench2", changes=changes)).train_images
    assert images.shape == (3, 256, 256)
    assert sorted(images.columns["label"]) == ["post_impressionism"] * 2 + ["ukiyo_e"] * 2


def test_what_is_missing_is_named_with_its_place_and_where_it_is_published(tmp_path: Path) -> None:
    def refused(source: str) -> str:
        with pytest.raises(UsageError) as caught:
            load_images(source)
        return str(caught.value)

    message = refused(f"celeba:{tmp_path / 'faces'}:train")
    assert f"no CelebA in {tmp_path / 'faces'}: list_eval_partition.txt is missing" in message
    assert "published at mmlab.ie.cuhk.edu.hk/projects/CelebA.html" in message
    message = refused(f"artbench:{tmp_path / 'art'}:train")
    assert f"no ArtBench-10 in {tmp_path / 'art'}: ArtBench-10.csv is missing" in message
    assert "published at github.com/liaopeiyuan/artbench" in message

    (celeba(tmp_path / "faces") / "img_align_celeba" / "000003.jpg").unlink()
    assert "000003.jpg" in refused(f"celeba:{tmp_path / 'faces'}:train")
    (tmp_path / "art").mkdir()
    (tmp_path / "art" / "ArtBench-10.csv").write_text("name,artist,label,split\n")
    assert "the images themselves are missing" in refused(f"artbench:{tmp_path / 'art'}:train")
    (tmp_path / "faces" / "list_eval_partition.txt").write_text("000001.jpg 0 and more\n")
    assert "cannot read" in refused(f"celeba:{tmp_path / 'faces'}:train")
    for source in ("celeba:faces", "celeba:faces:all", "celeba:", "artbench:art:validation"):
        assert repr(source) in refused(source)
