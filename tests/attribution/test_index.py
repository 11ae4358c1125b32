"""An index finds what exact scores find, from a run or from kept features, and knows when something has changed."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dtrak
from commands import dtrak as command
from dtrak.attribution import short_lists
from dtrak.attribution.index import Index
from dtrak.attribution.index_building import add_images, remove_images
from dtrak.errors import UsageError
from dtrak.features.store import FeatureStore
from dtrak.images.images import Images, ImageSource, load_images

OPTIONS = ("--timesteps", "2", "--projection-dim", "96", "--parameters", "conv_out")


@pytest.fixture(scope="module")
def features(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of features of three methods, and their scores."""
    folder = tmp_path_factory.mktemp("index")
    images = load_images("digits:train").first(150)
    np.savez(folder / "train.npz", images=images.pixels(range(150)), labels=images.columns["label"])
    shutil.copytree(finished_run / "model", folder / "model")
    done = command(
        "attribute", "--model", "model", "--train", "train.npz", "--queries", finished_run / "generated",
        "--method", "d-trak,mixed-trak,step-trak", "--out", "scores.npz", "--cache", "cache", *OPTIONS, cwd=folder,
    )  # fmt: skip
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def folder(features: Path, tmp_path: Path) -> Path:
    own = Path(shutil.copytree(features, tmp_path / "own"))
    (asked,) = (own / "cache" / "questions").iterdir()
    asked.write_text(asked.read_text().replace(str(features), str(own)))
    return own


def made(folder: Path, *more: str) -> Index:
    done = command("index", "--cache", "cache", "--out", "index", *more, cwd=folder)
    assert done.code == 0, done.err
    return Index.open(folder / "index")


@pytest.mark.parametrize("method", ["d-trak", "mixed-trak", "step-trak"])
@pytest.mark.parametrize("with_faiss", [True, False])
def test_search_finds_the_strongest_with_their_exact_scores(
    folder: Path, finished_run: Path, method: str, with_faiss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = made(folder, "--method", method)
    if with_faiss:
        monkeypatch.setattr(short_lists, "LEAST", 1)
        short_lists.code(index.folder / "images")
        assert (index.folder / "images/vectors.faiss").exists()
    monkeypatch.setattr("dtrak.attribution.index.SHORT_LIST", 60)  # of 150
    exact = dtrak.Scores.load(folder / "scores.npz", method)
    found = index.search(finished_run / "generated", top=5)
    assert found.values.shape == (4, 5)
    assert found.bottom() == [[]] * 4
    for mine, theirs in zip(found.top(5), exact.top(5), strict=True):
        assert [one.id for one in mine] == [one.id for one in theirs]
        assert mine[0].columns == theirs[0].columns
        np.testing.assert_allclose([one.score for one in mine], [one.score for one in theirs], rtol=2e-3)


@pytest.mark.parametrize("method", ["d-trak", "mixed-trak", "step-trak"])
def test_another_question_does_not_look_at_every_file_of_features_again(
    folder: Path, finished_run: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million images have 31,250 files."""
    index, queries = made(folder, "--method", method), load_images(str(finished_run / "generated"))
    index.search(queries.select([0]), top=5)
    monkeypatch.setattr(FeatureStore, "digest", property(lambda store: pytest.fail("all files were looked at")))
    assert index.search(queries.select([1]), top=5).values.shape == (1, 5)


def test_the_command_line_writes_a_table(own_run: Path) -> None:
    done = command("index", own_run, "--out", "index", "--method", "d-trak", cwd=own_run.parent)
    assert done.code == 0, done.err
    searched = ("search", "index", "--queries", own_run / "generated", "--top", "20", "--out", "top.csv")
    done = command(*searched, cwd=own_run.parent)
    assert done.code == 0, done.err
    lines = list(csv.DictReader((own_run.parent / "top.csv").open()))
    assert len(lines) == 4 * 20
    assert {*lines[0]} >= {"query", "rank", "train", "score", "label", "method"}
    assert command("attribute", own_run, "--method", "d-trak", "--out", "all.npz", cwd=own_run.parent).code == 0
    exact = dtrak.Scores.load(own_run.parent / "all.npz").top(20)
    found = [{line["train"] for line in lines[20 * q : 20 * q + 20]} for q in range(4)]
    recall = [len(mine & {str(one.id) for one in theirs}) / 20 for mine, theirs in zip(found, exact, strict=True)]
    assert np.mean(recall) >= 0.95


def test_images_are_added_and_removed_with_the_same_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = made(folder, "--method", "d-trak")
    every = load_images("digits:train")
    new = every.select(range(200, 212))
    np.savez(folder / "new.npz", images=new.pixels(range(12)), labels=new.columns["label"], ids=new.ids)
    more = load_images(str(folder / "new.npz"))
    if set(more.ids.tolist()) & set(index.ids.tolist()):
        more = replace_ids(more)
    index = add_images(index, ImageSource(more))
    assert len(index) == 162
    found = index.search(more.first(3), top=4)
    assert [row[0].id for row in found.top(1)] == more.ids[:3].tolist()  # each is its own strongest proponent
    index = remove_images(index, [more.ids[0], index.ids[7]])
    assert len(Index.open(index.folder)) == 160
    found = index.search(more.first(1), top=160)
    assert found.values.shape == (1, 160)
    assert more.ids[0] not in found.train_ids
    assert "were added or removed" not in capsys.readouterr().err
    remove_images(index, index.ids[20:40])
    assert "were added or removed since: make the index again" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UsageError, match="has no image nobody"):
        remove_images(index, ["nobody"])
    with pytest.raises(UsageError, match="already"):
        add_images(index, ImageSource(more))


def replace_ids(images: Images) -> Images:
    return replace(images, ids=images.ids + 10_000)


def refused(folder: Path, *arguments: object, code: int = 2) -> str:
    outcome = command(*arguments, cwd=folder)
    assert outcome.code == code, outcome.err
    return outcome.error


def test_faults_are_one_clear_line(folder: Path) -> None:
    made(folder, "--method", "d-trak")
    search = ("search", "index", "--queries", "train.npz", "--out", "top.csv")
    assert "give a run, or --cache" in refused(folder, "index", "--out", "other")
    assert "model is not an index, and would be replaced" in refused(
        folder, "index", "--cache", "cache", "--out", "model"
    )
    assert (folder / "model").is_dir()
    assert "cannot have scores of relative-if: give trak" in refused(
        folder, "index", "--cache", "cache", "--out", "other", "--method", "relative-if"
    )
    assert "not an index: it has no index.json" in refused(folder, "search", "model", *search[2:])
    # features that have changed, or that are gone
    (shard,) = folder.glob("cache/train-square-*/shard-00001.safetensors")
    content = shard.read_bytes()
    shard.unlink()
    assert "missing or damaged" in refused(folder, *search, code=1)
    shard.write_bytes(shard.with_name("shard-00000.safetensors").read_bytes())
    assert "have changed since the index was made" in refused(folder, *search, code=1)
    shard.write_bytes(content)
    # another model
    path = folder / "index/index.json"
    text = path.read_text()
    facts = json.loads(text)["question"]["facts"]
    path.write_text(text.replace(facts["model"]["weights"], "0"))
    message = refused(folder, *search)
    assert "is not the model that" in message
    assert message.endswith("was made with: the weights of the model have changed")
    path.write_text(json.dumps({**json.loads(text), "segments": 3}))
    assert "index.json is not that of an index" in refused(folder, *search, code=1)
    (folder / "train.npz").unlink()
    assert "train.npz" in refused(folder, "index", "--cache", "cache", "--out", "other", "--method", "d-trak")
    assert not (folder / "other").exists()


def test_an_index_is_of_the_images_that_there_are_now(folder: Path) -> None:
    """Features that a folder lacks are computed, and rows of the same images are copied."""
    expected = content(made(folder, "--method", "d-trak").folder)
    (shard,) = folder.glob("cache/train-square-*/shard-00001.safetensors")
    shard.unlink()
    shutil.rmtree(folder / "index")
    assert content(made(folder, "--method", "d-trak").folder) == expected
    arrays = dict(np.load(folder / "train.npz"))
    np.savez(folder / "train.npz", **{name: array[:100] for name, array in arrays.items()})
    index = made(folder, "--method", "d-trak")
    assert index.ids.tolist() == list(range(100))
    assert len(list(folder.glob("cache/train-square-*"))) == 2


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_disk_that_fills_up_in_the_middle_of_an_index_leaves_the_old_one(folder: Path) -> None:
    """There is room for the matrix, but not for the vectors."""
    index = made(folder, "--method", "d-trak")
    before = content(index.folder)
    again = ("index", "--cache", "cache", "--out", "index", "--method", "d-trak")
    outcome = command(*again, cwd=folder, largest_file=len(before["matrix-0.npy"]) + 1000)
    assert outcome.code == 1
    assert re.search(r"dtrak: cannot write .*vectors.npy: File too large\n$", outcome.err)
    assert content(index.folder) == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert command(*again, cwd=folder).code == 0
    assert content(index.folder) == before


def test_a_disk_that_fills_up_while_images_are_added_leaves_the_index_as_it_was(folder: Path) -> None:
    index = made(folder, "--method", "d-trak")
    before = content(index.folder)
    new = load_images("digits:train").select(range(200, 240))
    np.savez(folder / "new.npz", images=new.pixels(range(40)), ids=new.ids)
    add = ("index", "--out", "index", "--add", "new.npz")
    for room in (1000, len(before["matrix-0.npy"]) // 4 + 1000):  # for none of their features, for some of the files
        outcome = command(*add, cwd=folder, largest_file=room)
        assert outcome.code == 1
        assert re.search(r"dtrak: cannot write index/added-1/.*: File too large\n$", outcome.err)
        assert content(index.folder).items() >= before.items()
        assert len(Index.open(index.folder)) == 150
    assert command(*add, cwd=folder).code == 0
    assert len(Index.open(index.folder)) == 190


def test_features_that_were_moved_are_named(folder: Path) -> None:
    made(folder, "--method", "d-trak")
    (folder / "cache").rename(folder / "moved")
    message = refused(folder, "search", "index", "--queries", "train.npz", "--out", "top.csv")
    assert f"no features at {folder / 'cache' / 'train-square'}" in message
