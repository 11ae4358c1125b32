"""The store survives kills, damage, company and other people's settings."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from commands import dtrak, dtrak_started
from dtrak.errors import DtrakError, UsageError
from dtrak.features.store import SHARD_ROWS, FeatureStore, Manifest, fill
from dtrak.files import write_bytes
from dtrak.images.images import load_images

MANIFEST = Manifest(
    model="aa", data="bb", objective="square", timesteps=[0, 100], draws=1, noise="shared", seed=0, parameters="all",
    projection="sketch", dim=5, rows=2 * SHARD_ROWS + 7,
)  # fmt: skip
VALUES = torch.randn(1, MANIFEST.rows, MANIFEST.dim, generator=torch.Generator().manual_seed(0))


def compute(rows: range) -> Tensor:
    return VALUES[:, rows.start : rows.stop]


def ignore(_: int) -> None:
    pass


def filled(folder: Path, manifest: Manifest = MANIFEST) -> FeatureStore:
    store = FeatureStore.create(folder, manifest)
    fill([store], compute, ignore)
    return store


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a store, but for those with the time that it took and with the times of its files."""
    others = ("cost.json", "checked.json")
    files = [path for path in sorted(folder.glob("*")) if path.is_file() and path.name not in others]
    return {path.name: path.read_bytes() for path in files}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    filled(tmp_path)
    store = FeatureStore.open(tmp_path)
    np.testing.assert_array_equal(store.numpy(), VALUES[0])
    assert [rows for rows, _ in store.blocks()] == [range(MANIFEST.rows)]
    assert store.manifest == MANIFEST
    assert store.missing() == []


def test_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before = contents(tmp_path)
    (tmp_path / "shard-00001.safetensors").unlink()
    asked, moved = [], []

    def watched(rows: range) -> Tensor:
        asked.append(rows)
        return compute(rows)

    fill([FeatureStore.create(tmp_path, MANIFEST)], watched, moved.append)
    assert asked == [store.shards[1]]
    assert sum(moved) == MANIFEST.rows - SHARD_ROWS
    assert contents(tmp_path) == before


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
    filled(tmp_path)
    before = contents(tmp_path)
    shard = tmp_path / "shard-00002.safetensors"
    shard.write_bytes(damage(shard.read_bytes()))
    reading = FeatureStore.open(tmp_path)
    assert reading.missing() == [2]
    with pytest.raises(DtrakError, match=r"shard-00002\.safetensors is missing or damaged"):
        reading.numpy()
    filled(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "zz"), ("data", "zz"), ("timesteps", [0, 50]), ("noise", "per-image"), ("seed", 1), ("draws", 2),
     ("parameters", "conv_out"), ("projection", "dense"), ("dim", 6), ("dtype", "float16"), ("rows", 3)],
)  # fmt: skip
def test_other_settings_are_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    filled(tmp_path)
    with pytest.raises(UsageError, match=f"made with {field} "):
        FeatureStore.create(tmp_path, replace(MANIFEST, **{field: value}))  # type: ignore[arg-type]


def test_a_folder_without_or_with_a_broken_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"manifest\.json"):
        FeatureStore.open(tmp_path)
    for text in ("{", "[]", '{"colour": 3}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DtrakError, match=r"manifest\.json is not"):
            FeatureStore.open(tmp_path)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_halves_take_half_the_disk(tmp_path: Path, dtype: str, error: float) -> None:
    store = filled(tmp_path, replace(MANIFEST, dtype=dtype))
    assert store.numpy().dtype == np.float32
    np.testing.assert_allclose(store.numpy(), VALUES[0], rtol=error)
    stored = load_file(tmp_path / "shard-00000.safetensors")["features"]
    assert stored.nbytes == SHARD_ROWS * 5 * (4 if dtype == "float32" else 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_single_rows_are_read_from_checked_shards_and_others(tmp_path: Path, dtype: str) -> None:
    store, rows = filled(tmp_path, replace(MANIFEST, dtype=dtype)), [70, 0, 33, 33, 5]
    expected = store.numpy()[rows]
    np.testing.assert_array_equal(FeatureStore.open(tmp_path).at(rows), expected)
    time.sleep(0.06)  # a file that changed just now is not remembered as checked
    assert FeatureStore.open(tmp_path).missing() == []
    checked = FeatureStore.open(tmp_path)
    for _ in range(2):
        np.testing.assert_array_equal(checked.at(rows), expected)
    path = tmp_path / "shard-00001.safetensors"
    for change in (lambda: os.truncate(path, path.stat().st_size - 4 * SHARD_ROWS), path.unlink):
        change()
        with pytest.raises(DtrakError, match=r"shard-00001.safetensors is missing or damaged: run the command"):
            checked.at([SHARD_ROWS + 31])


def test_overflow_of_a_small_dtype_is_an_error(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, replace(MANIFEST, dtype="float16"))
    with pytest.raises(DtrakError, match="overflow float16"):
        fill([store], lambda rows: 1e6 * compute(rows), ignore)


def test_a_store_that_cannot_fit_is_refused_before_work_starts(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, replace(MANIFEST, dim=10**12))
    with pytest.raises(DtrakError, match="MB more"):
        fill([store], compute, ignore)


def test_leftovers_of_a_killed_writer_are_cleared(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, MANIFEST)
    leftover = tmp_path / ".shard-00001.safetensors.0badcafe.tmp"
    leftover.write_bytes(b"half a shard")
    fill([store], compute, ignore)
    assert not leftover.exists()


def test_rows_of_zeros_are_those_left_out(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, MANIFEST)
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
    while len(list(folder.glob("train-simple-copies/shard-*.safetensors"))) < count:
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


def test_one_cache_serves_several_objectives_and_refuses_another_setting(
    question: tuple[object, ...], tmp_path: Path
) -> None:
    assert dtrak(*question, "--cache", "c", "--out", "s.npz", "--method", "trak,d-trak", cwd=tmp_path).code == 0
    assert json.loads((tmp_path / "c/train-simple/manifest.json").read_text())["objective"] == "simple"
    before = contents(tmp_path / "c/train-square")
    refused = dtrak(*question, "--cache", "c", "--out", "t.npz", "--method", "d-trak", "--seed", "5", cwd=tmp_path)
    assert refused.code == 2
    assert "made with seed 0, not 5" in refused.error
    assert contents(tmp_path / "c/train-square") == before


def test_a_checked_shard_is_read_again_only_after_it_has_changed(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, replace(MANIFEST, rows=40))
    for index, rows in enumerate(store.shards):
        features = torch.ones(len(rows), store.dim)
        features[3] = 0
        store.write(index, features)
    time.sleep(0.06)  # a file that changed just now may change again without a new time
    digest = FeatureStore.open(tmp_path).digest
    kept = FeatureStore.open(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtrak.features.store._checksum", lambda features: pytest.fail("a shard was checked again"))
        assert kept.missing() == []
        assert kept.left_out() == [3, 35]
        assert kept.digest == digest
        assert [rows for rows, _ in kept.blocks(range(30, 34))] == [range(30, 34)]
    path = tmp_path / "shard-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert FeatureStore.open(tmp_path).missing() == [1]
    store.write(1, torch.ones(8, store.dim))
    assert FeatureStore.open(tmp_path).digest != digest
    assert FeatureStore.open(tmp_path).left_out() == [3]
    (tmp_path / "checked.json").write_text("{")
    assert FeatureStore.open(tmp_path).missing() == []


def test_the_time_of_a_write_does_not_grow_with_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with many files is looked through once for as many writes; then what a killed writer left is gone."""
    for number in range(600):
        (tmp_path / f"shard-{number:05d}").touch()
    scans, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: scans.append(folder) or scandir(folder))
    leftover = tmp_path / ".shard-00001.0badcafe.tmp"
    for number in range(603):
        if number == 1:
            leftover.write_bytes(b"half a shard")
        write_bytes(tmp_path / f"more-{number % 3}", b"x")
    assert len(scans) == 4, "it was counted and cleared twice"
    assert not leftover.exists()
