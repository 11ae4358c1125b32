"""The store survives kills, damage, company and other people's settings."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from commands import dtrak, dtrak_started
from dtrak.errors import DtrakError, UsageError
from dtrak.features.filling import fill
from dtrak.features.store import SHARD_ROWS, FeatureStore
from dtrak.files import MACHINE
from dtrak.fingerprints import hash_of
from dtrak.images.images import load_images

DEAD = f"dtrak-{MACHINE}-{2**22}-0"  # Linux gives no process a higher number than 4,194,303
PART: dict[str, Any] = {"model": "aa", "images": {"pixels": "bb"}, "objective": "square", "timesteps": [0, 100]}
ROWS, DIM = 2 * SHARD_ROWS + 7, 5
VALUES = torch.randn(1, ROWS, DIM, generator=torch.Generator().manual_seed(0))


def compute(rows: Sequence[int]) -> Tensor:
    return VALUES[:, list(rows)]


def ignore(_: int) -> None:
    pass


def created(folder: Path, part: dict[str, Any] = PART, rows: int = ROWS, dim: int = DIM, **given: Any) -> FeatureStore:
    return FeatureStore.create(folder / "train", part, rows, (dim,), **given)


def filled(folder: Path, **given: Any) -> FeatureStore:
    store = created(folder, **given)
    fill([store], compute, ignore)
    return store


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a store, but for those with the time that it took and with the times of its files."""
    others = ("cost.json", "checked.json")
    files = [path for path in sorted(folder.glob("*")) if path.is_file() and path.name not in others]
    return {path.name: path.read_bytes() for path in files}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = filled(tmp_path)
    assert made.folder.name == f"train-{hash_of(PART)}"
    store = FeatureStore.open(made.folder)
    np.testing.assert_array_equal(store.numpy(), VALUES[0])
    assert [rows for rows, _ in store.blocks()] == [range(ROWS)]
    assert (store.part, len(store), store.shape, store.dtype) == (PART, ROWS, (DIM,), "float32")
    assert store.missing() == []


def test_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before = contents(store.folder)
    (store.folder / "shard-00001.safetensors").unlink()
    asked, moved = [], []

    def watched(rows: Sequence[int]) -> Tensor:
        asked.extend(rows)
        return compute(rows)

    fill([created(tmp_path)], watched, moved.append)
    assert asked == [*store.shards[1]]
    assert sum(moved) == ROWS - SHARD_ROWS
    assert contents(store.folder) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"",
        lambda content: b"\xff" * len(content),
    ],
    ids=["cut in half", "one bit flipped", "empty", "overwritten"],
)
def test_a_damaged_shard_is_found_and_computed_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    folder = filled(tmp_path).folder
    before = contents(folder)
    shard = folder / "shard-00002.safetensors"
    shard.write_bytes(damage(shard.read_bytes()))
    reading = FeatureStore.open(folder)
    assert reading.missing() == [2]
    with pytest.raises(DtrakError, match=r"shard-00002\.safetensors is missing or damaged"):
        reading.numpy()
    filled(tmp_path)
    assert contents(folder) == before


@pytest.mark.parametrize("change", [{"model": "zz"}, {"timesteps": [0, 50]}, {"more": {}}, {"images": {}}])
def test_what_depends_on_something_else_is_kept_beside(tmp_path: Path, change: dict[str, Any]) -> None:
    before = contents(filled(tmp_path).folder)
    other = created(tmp_path, PART | change)
    assert len(other.missing()) == 3
    assert [store.part for store in other.beside()] == [PART]
    assert contents(created(tmp_path).folder) == before


def test_a_store_that_is_not_what_its_part_says_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    for name, change in {"rows": {"rows": 3}, "shape.0": {"dim": 6}, "dtype": {"dtype": "float16"}}.items():
        with pytest.raises(UsageError, match=f"were made with another {name}: remove this folder"):
            created(tmp_path, **change)


def hashes_of(*names: object) -> np.ndarray:
    return np.array([str(name).encode().ljust(16) for name in names], "S16").view("V16")


def test_rows_of_the_same_images_are_copied_from_a_store_beside(tmp_path: Path) -> None:
    """An image that is added in front of the others, and one whose pixels change, cost one image each."""
    made = filled(tmp_path, hashes=hashes_of(*range(ROWS)))
    (made.folder / "shard-00001.safetensors").unlink()  # what is missing there cannot be copied
    own = [500, *range(ROWS)]
    own[10] = 600
    more, asked, moved = PART | {"images": {"pixels": "cc"}}, [], []
    values = torch.cat([torch.full((1, 1, DIM), 7.0), VALUES], 1)

    def watched(rows: Sequence[int]) -> Tensor:
        asked.extend(rows)
        moved.append(len(rows))
        return values[:, list(rows)]

    store = created(tmp_path, more, ROWS + 1, hashes=hashes_of(*own))
    fill([store], watched, moved.append)
    np.testing.assert_array_equal(store.numpy(), values[0])
    assert asked == [0, 10, *range(SHARD_ROWS + 1, 2 * SHARD_ROWS + 1)]
    assert sum(moved) == ROWS + 1


@pytest.mark.parametrize(
    "given",
    [
        {"part": PART | {"images": {}, "timesteps": [0]}, "hashes": hashes_of(*range(ROWS))},
        {"part": PART | {"images": {}}, "hashes": hashes_of(*range(ROWS)), "dtype": "float16"},
        {"part": PART | {"images": {}}},
    ],
    ids=["another part", "another type", "unknown images"],
)
def test_rows_that_could_differ_are_not_copied(tmp_path: Path, given: dict[str, Any]) -> None:
    filled(tmp_path, hashes=hashes_of(*range(ROWS)))
    asked: list[int] = []
    fill([created(tmp_path, **given)], lambda rows: asked.extend(rows) or compute(rows), ignore)
    assert asked == [*range(ROWS)]


def test_rows_of_two_stores_are_copied_if_both_are_there(tmp_path: Path) -> None:
    """Objectives share their passes."""
    parts = [PART | {"objective": one} for one in ("simple", "square")]
    names = hashes_of(*range(ROWS))
    for place, part in enumerate(parts):
        made = FeatureStore.create(tmp_path / part["objective"], part, ROWS, (DIM,), hashes=names)
        fill([made], lambda rows, place=place: compute(rows) + place, ignore)
    (made.folder / "shard-00000.safetensors").unlink()
    stores = [
        FeatureStore.create(tmp_path / part["objective"], part | {"images": {}}, ROWS, (DIM,), hashes=names)
        for part in parts
    ]
    asked: list[int] = []
    fill(stores, lambda rows: asked.extend(rows) or torch.cat([compute(rows), compute(rows) + 1]), ignore)
    assert asked == [*range(SHARD_ROWS)]
    np.testing.assert_array_equal(stores[1].numpy(), VALUES[0] + 1)


def test_a_folder_without_or_with_a_broken_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"part\.json"):
        FeatureStore.open(tmp_path)
    for text in ("{", "[]", '{"colour": 3}'):
        (tmp_path / "part.json").write_text(text)
        with pytest.raises(DtrakError, match=r"part\.json is not"):
            FeatureStore.open(tmp_path)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_halves_take_half_the_disk(tmp_path: Path, dtype: str, error: float) -> None:
    store = filled(tmp_path, dtype=dtype)
    assert store.numpy().dtype == np.float32
    np.testing.assert_allclose(store.numpy(), VALUES[0], rtol=error)
    stored = load_file(store.folder / "shard-00000.safetensors")["features"]
    assert stored.nbytes == SHARD_ROWS * 5 * (4 if dtype == "float32" else 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_single_rows_are_read_from_checked_shards_and_others(tmp_path: Path, dtype: str) -> None:
    store, rows = filled(tmp_path, dtype=dtype), [70, 0, 33, 33, 5]
    expected = store.numpy()[rows]
    np.testing.assert_array_equal(FeatureStore.open(store.folder).at(rows), expected)
    time.sleep(0.06)  # a file that changed just now is not remembered as checked
    assert FeatureStore.open(store.folder).missing() == []
    checked = FeatureStore.open(store.folder)
    for _ in range(2):
        np.testing.assert_array_equal(checked.at(rows), expected)
    path = store.folder / "shard-00001.safetensors"
    for change in (lambda: os.truncate(path, path.stat().st_size - 4 * SHARD_ROWS), path.unlink):
        change()
        with pytest.raises(DtrakError, match=r"shard-00001.safetensors is missing or damaged: run the command"):
            checked.at([SHARD_ROWS + 31])


def test_overflow_of_a_small_dtype_is_an_error(tmp_path: Path) -> None:
    store = created(tmp_path, dtype="float16")
    with pytest.raises(DtrakError, match="overflow float16"):
        fill([store], lambda rows: 1e6 * compute(rows), ignore)


def test_a_store_that_cannot_fit_is_refused_before_work_starts(tmp_path: Path) -> None:
    store = created(tmp_path, dim=10**12)
    with pytest.raises(DtrakError, match="MB more"):
        fill([store], compute, ignore)


def test_leftovers_of_a_killed_writer_are_cleared(tmp_path: Path) -> None:
    folder = tmp_path / f"train-{hash_of(PART)}"
    folder.mkdir()
    leftover = folder / f".shard-00001.safetensors.{DEAD}.tmp"
    leftover.write_bytes(b"half a shard")
    filled(tmp_path)
    assert not leftover.exists()


def test_rows_of_zeros_are_those_left_out(tmp_path: Path) -> None:
    store = created(tmp_path)
    fill([store], lambda rows: compute(rows) * torch.tensor([n not in (3, 40) for n in rows])[None, :, None], ignore)
    assert store.left_out() == [3, 40]


@pytest.fixture(scope="module")
def question(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """A question to the tiny model that takes a second or two, over 20 shards."""
    train = tmp_path_factory.mktemp("train") / "digits.npz"
    np.savez(train, images=load_images("digits:train").pixels(range(20 * SHARD_ROWS)))
    return (
        "attribute", "--model", finished_run / "model", "--train", train, "--queries", finished_run / "generated",
        "--timesteps", "4", "--projection-dim", "512",
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(question: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the question leaves if nothing disturbs it: `cache` and `scores.npz`."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = dtrak(*question, "--cache", "cache", "--out", "scores.npz", cwd=folder)
    assert outcome.code == 0, outcome.err
    return folder


def stores(cache: Path) -> dict[str, dict[str, bytes]]:
    """Every file of every store of training images in a cache."""
    return {folder.name: contents(folder) for folder in cache.glob("train-*")}


def wait_for_shards(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(list(folder.glob("train-simple-*/shard-*.safetensors"))) < count:
        assert time.monotonic() < deadline, "no shards appear"
        time.sleep(0.01)


def test_killed_again_and_again_the_run_ends_with_the_same_bytes(
    question: tuple[object, ...], whole: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng()
    for survived in (2, 7, 13):
        with dtrak_started(*question, "--cache", "killed", "--out", "killed.npz", cwd=tmp_path) as command:
            wait_for_shards(tmp_path / "killed", survived)
            time.sleep(random.uniform(0, 0.1))
            command.signal(signal.SIGKILL)
            assert command.outcome().code == -signal.SIGKILL
        assert not (tmp_path / "killed.npz").exists()
    outcome = dtrak(*question, "--cache", "killed", "--out", "killed.npz", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert stores(tmp_path / "killed") == stores(whole / "cache")
    assert (tmp_path / "killed.npz").read_bytes() == (whole / "scores.npz").read_bytes()


def test_two_processes_fill_one_store_and_a_dead_ones_share_is_taken_over(
    question: tuple[object, ...], whole: Path, tmp_path: Path
) -> None:
    with (
        dtrak_started(*question, "--cache", "both", "--out", "first.npz", cwd=tmp_path) as first,
        dtrak_started(*question, "--cache", "both", "--out", "second.npz", cwd=tmp_path) as second,
        dtrak_started(*question, "--cache", "both", "--out", "third.npz", cwd=tmp_path) as third,
    ):
        wait_for_shards(tmp_path / "both", 3)
        third.signal(signal.SIGKILL)
        assert first.outcome().code == 0, first.outcome().err
        assert second.outcome().code == 0, second.outcome().err
    assert stores(tmp_path / "both") == stores(whole / "cache")
    for name in ("first.npz", "second.npz"):
        assert np.array_equal(np.load(tmp_path / name)["values"], np.load(whole / "scores.npz")["values"])


def test_one_cache_serves_several_objectives_and_other_settings(question: tuple[object, ...], tmp_path: Path) -> None:
    assert dtrak(*question, "--cache", "c", "--out", "s.npz", "--method", "trak,d-trak", cwd=tmp_path).code == 0
    (first,) = tmp_path.glob("c/train-square-*")
    (simple,) = tmp_path.glob("c/train-simple-*")
    assert json.loads((simple / "part.json").read_text())["part"]["objective"].keys() == {"simple"}
    before = contents(first)
    again = dtrak(*question, "--cache", "c", "--out", "t.npz", "--method", "d-trak", "--seed", "5", cwd=tmp_path)
    assert again.code == 0, again.err
    (other,) = {*tmp_path.glob("c/train-square-*")} - {first}
    assert json.loads((other / "part.json").read_text())["part"]["spec"]["seed"] == 5
    assert contents(first) == before


def test_a_checked_shard_is_read_again_only_after_it_has_changed(tmp_path: Path) -> None:
    store = created(tmp_path, rows=40)
    for index, rows in enumerate(store.shards):
        features = torch.ones(len(rows), store.dim)
        features[3] = 0
        store.write(index, features)
    time.sleep(0.06)  # a file that changed just now may change again without a new time
    digest = FeatureStore.open(store.folder).digest
    kept = FeatureStore.open(store.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtrak.features.store._checksum", lambda features: pytest.fail("a shard was checked again"))
        assert kept.missing() == []
        assert kept.left_out() == [3, 35]
        assert kept.digest == digest
        assert [rows for rows, _ in kept.blocks(range(30, 34))] == [range(30, 34)]
    path = store.folder / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert FeatureStore.open(store.folder).missing() == [1]
    store.write(1, torch.ones(8, store.dim))
    assert FeatureStore.open(store.folder).digest != digest
    assert FeatureStore.open(store.folder).left_out() == [3]
    (store.folder / "checked.json").write_text("{")
    assert FeatureStore.open(store.folder).missing() == []
