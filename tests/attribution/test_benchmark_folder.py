"""A benchmark folder as other tools would write it: what is read from it, and what is refused by name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dtrak
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.errors import DtrakError, UsageError
from tiny_benchmark import GENERATED, SEEDS, SUBSETS, TRAIN, VALIDATION, write_benchmark


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_benchmark(tmp_path / "bench")


def test_what_the_files_hold_is_what_is_read(folder: Path) -> None:
    benchmark = Benchmark.open(folder)
    np.testing.assert_array_equal(benchmark.masks, np.load(folder / "masks.npy"))
    np.testing.assert_array_equal(benchmark.losses("validation"), np.load(folder / "losses.npy"))
    np.testing.assert_array_equal(benchmark.losses("generated"), np.load(folder / "generated_losses.npy"))
    np.testing.assert_array_equal(benchmark.train.pixels(range(12)), TRAIN.pixels(range(12)))
    np.testing.assert_array_equal(benchmark.train.columns["label"], TRAIN.columns["label"])
    np.testing.assert_array_equal(benchmark.queries("generated").pixels(range(3)), GENERATED.pixels(range(3)))
    assert benchmark.retrained == {}


def test_other_outputs_lie_beside_the_losses(folder: Path) -> None:
    benchmark = Benchmark.open(folder)
    with pytest.raises(UsageError, match=re.escape(f"{folder} has no outputs/validation-square.npy")):
        benchmark.losses("validation", "square")
    (folder / "outputs").mkdir()
    outputs = np.ones((SUBSETS, SEEDS, len(VALIDATION)), dtype=np.float32)
    np.save(folder / "outputs" / "validation-square.npy", outputs)
    np.testing.assert_array_equal(benchmark.losses("validation", "square"), outputs)


def test_losses_of_any_pictures_are_found_by_what_they_show(folder: Path, tmp_path: Path) -> None:
    """In any order, from either set, under any id: the mean over seeds of the column that is theirs."""
    asked = np.concatenate([GENERATED.pixels([2]), VALIDATION.pixels([3, 1])])
    np.savez(tmp_path / "asked.npz", images=asked, ids=np.array(["a", "b", "c"]))
    found = Benchmark.open(folder).losses_of(dtrak.load_images(str(tmp_path / "asked.npz")))
    validation, generated = np.load(folder / "losses.npy"), np.load(folder / "generated_losses.npy")
    assert found.shape == (SUBSETS, 3)
    for subset in range(SUBSETS):
        for place, (losses, query) in enumerate([(generated, 2), (validation, 3), (validation, 1)]):
            expected = sum(float(losses[subset, seed, query]) for seed in range(SEEDS)) / SEEDS
            assert found[subset, place] == pytest.approx(expected, rel=1e-6)


def test_one_kind_of_queries_is_enough(folder: Path) -> None:
    for name in ("generated.npz", "generated_losses.npy"):
        (folder / name).unlink()
    benchmark = Benchmark.open(folder)
    assert benchmark.losses_of(VALIDATION).shape == (SUBSETS, len(VALIDATION))
    with pytest.raises(UsageError, match=r"no generated queries: generated\.npz is missing"):
        benchmark.queries("generated")


def test_a_picture_that_is_no_query_of_the_benchmark_is_named(folder: Path) -> None:
    stranger = dtrak.load_images("digits:validation").select([1, 77])
    with pytest.raises(UsageError) as caught:
        Benchmark.open(folder).losses_of(stranger)
    for part in ("77 of digits:validation", str(folder), "validation.npz or generated.npz"):
        assert part in str(caught.value)


def one_pixel_off(images: dtrak.Images) -> NDArray[np.uint8]:
    pixels = images.pixels(range(len(images)))
    pixels[5, 4, 4] ^= 1
    return pixels


@pytest.mark.parametrize(
    "changed",
    [
        one_pixel_off,
        lambda images: images.pixels([1, 0, *range(2, 12)]),
        lambda images: images.pixels(range(11)),
        lambda images: images.pixels(range(12)).reshape(12, 4, 16, 1),
    ],
    ids=["a pixel", "the order", "the number", "the shape"],
)
def test_other_training_images_are_refused(
    folder: Path, tmp_path: Path, changed: Callable[[dtrak.Images], NDArray[np.uint8]]
) -> None:
    """The same pictures under other ids are the same training set; anything else is not."""
    benchmark = Benchmark.open(folder)
    np.savez(tmp_path / "same.npz", images=TRAIN.pixels(range(12)), ids=np.arange(12) + 100)
    np.savez(tmp_path / "other.npz", images=changed(TRAIN))
    benchmark.check_train(dtrak.load_images(str(tmp_path / "same.npz")))
    with pytest.raises(UsageError) as caught:
        benchmark.check_train(dtrak.load_images(str(tmp_path / "other.npz")))
    assert f"{tmp_path / 'other.npz'} does not hold the training images of {folder}" in str(caught.value)


def test_retrained_models_count_once_for_each_subset(tmp_path: Path) -> None:
    """Of several seeds the first; not what a kill or a person left beside them."""
    folder = write_benchmark(tmp_path / "bench")
    for name in ("subset-002-seed-0", "subset-010-seed-1", "subset-002-seed-1", "subset-000-seed-1"):
        (folder / "retrained" / name).mkdir(parents=True)
    for name in (".subset-001-seed-0.0a1b2c3d.tmp", "subset-003-seed-0 (copy)", "notes"):
        (folder / "retrained" / name).mkdir()
    found = [path.name for path in Benchmark.open(folder).retrained.values()]
    assert found == ["subset-000-seed-1", "subset-002-seed-0", "subset-010-seed-1"]


@pytest.mark.parametrize("name", ["model", "train.npz", "masks.npy"])
def test_a_folder_without_the_essentials_is_no_benchmark(folder: Path, name: str) -> None:
    (folder / name).rename(folder / "elsewhere")
    with pytest.raises(UsageError, match=re.escape(f"{folder} is not a benchmark: it has no {name}")):
        Benchmark.open(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / 'nowhere'} is not a benchmark")):
        Benchmark.open(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["losses.npy", "generated_losses.npy"])
def test_missing_losses_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UsageError, match=re.escape(f"{folder} has no {name}")):
        Benchmark.open(folder).losses("generated" if "generated" in name else "validation")


def test_an_unknown_kind_of_queries_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="'training': choose from validation, generated"):
        Benchmark.open(folder).queries("training")


@pytest.mark.parametrize(
    "masks",
    [
        np.ones((SUBSETS, 12), dtype=np.int64),
        np.ones((SUBSETS, 11), dtype=np.bool_),
        np.ones((12, SUBSETS), dtype=np.bool_),
        np.ones(12, dtype=np.bool_),
    ],
    ids=["numbers", "an image short", "transposed", "one subset alone"],
)
def test_masks_of_another_shape_or_kind_are_refused(folder: Path, masks: NDArray[Any]) -> None:
    np.save(folder / "masks.npy", masks)
    with pytest.raises(DtrakError) as caught:
        _ = Benchmark.open(folder).masks
    assert f"{folder / 'masks.npy'} is {masks.dtype} {list(masks.shape)}" in str(caught.value)
    assert "must be bool [subsets, 12]" in str(caught.value)


@pytest.mark.parametrize("shape", [(SUBSETS, 4), (SUBSETS + 1, SEEDS, 4), (SUBSETS, SEEDS, 5), (4, SEEDS, SUBSETS)])
def test_losses_of_another_shape_are_refused(folder: Path, shape: tuple[int, ...]) -> None:
    np.save(folder / "losses.npy", np.ones(shape, dtype=np.float32))
    for read in (lambda found: found.losses("validation"), lambda found: found.losses_of(VALIDATION)):
        with pytest.raises(DtrakError) as caught:
            read(Benchmark.open(folder))
        assert f"{folder / 'losses.npy'} is {list(shape)}, but must be [6, seeds, 4]" in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "emptied", "pickled"])
@pytest.mark.parametrize("name", ["masks.npy", "losses.npy"])
def test_damaged_arrays_are_named(folder: Path, name: str, damage: str) -> None:
    """A pickle could run foreign code; it is damage like any other."""
    path = folder / name
    if damage == "pickled":
        np.save(path, np.array([None, {}], dtype=object), allow_pickle=True)
    else:
        path.write_bytes(path.read_bytes()[: 140 if damage == "cut" else 0])
    with pytest.raises(DtrakError, match=re.escape(f"cannot read {path}")):
        Benchmark.open(folder).losses("validation")
