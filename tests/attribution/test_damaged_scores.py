"""Scores that are damaged, misshapen or no numbers are refused in one line; a run makes them again."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import dtrak
from dtrak.attribution.scores import Scores, save_scores
from dtrak.errors import DtrakError
from dtrak.features.store import FeatureStore
from dtrak.images.images import read_ids
from serving import served

GOOD: dict[str, Any] = {
    "values": np.ones((2, 3), np.float32),
    "train_ids": np.array(["a", "b", "c"]),
    "query_ids": np.array([7, 8]),
    "methods": np.array(["trak"]),
    "train_column.label": np.array([1, 2, 3]),
    "self_influence": np.zeros(3, np.float32),
}
BAD: dict[str, dict[str, Any]] = {
    "no array 'values'": {"values": None},
    "no array 'train_ids'": {"train_ids": None},
    "values is float32 [3]": {"values": np.ones(3, np.float32)},
    "values is float32 [3, 2]": {"values": np.ones((3, 2), np.float32)},
    "values is int64": {"values": np.ones((2, 3), int)},
    "values is <U1": {"values": np.full((2, 3), "x")},
    "values is complex64": {"values": np.ones((2, 3), np.complex64)},
    "values is float32 [2, 3], which": {"train_ids": np.array(["a", "b"]), "train_column.label": np.array([1, 2])},
    "train_ids is float64": {"train_ids": np.array([1.0, 2.0, 3.0])},
    "train_ids is <U1 [1, 3]": {"train_ids": np.array([["a", "b", "c"]])},
    "values is float32 [2, 3], which does": {"query_ids": np.array([7])},
    "methods is <U4 [2]": {"methods": np.array(["trak", "trak"])},
    "train_column.label is int64 [2]": {"train_column.label": np.array([1, 2])},
    "self_influence is float32 [2]": {"self_influence": np.zeros(2, np.float32)},
    "Object arrays cannot be loaded": {"values": np.array([[None] * 3] * 2, dtype=object)},
    "values is float32 [0, 3]": {"values": np.ones((0, 3), np.float32), "query_ids": np.array([], int)},
    "trak scores training image b for the query 8 with nan": {
        "values": np.array([[1, 2, 3], [4, np.nan, np.inf]], "f4")
    },
    "trak scores training image c for the query 7 with -inf": {"values": np.array([[1, 2, -np.inf], [4, 5, 6]], "f4")},
    "trak's self-influence of image b is inf": {"self_influence": np.array([0, np.inf, 1], "f4")},
}


@pytest.mark.parametrize("says", BAD)
def test_what_does_not_fit_together_is_named(says: str, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez(path, **{name: value for name, value in (GOOD | BAD[says]).items() if value is not None})
    with pytest.raises(DtrakError) as refused:
        Scores.load(path)
    assert str(refused.value).startswith(str(path))
    assert says in str(refused.value)


def test_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    np.save(tmp_path / "array.npy", GOOD["values"])
    np.savez_compressed(tmp_path / "whole.npz", **GOOD)
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    for name in ("empty", "folder", "pipe", "array.npy", "half"):
        with pytest.raises(DtrakError, match=f"{name} is not a file of scores: "):
            Scores.load(tmp_path / name)
    random = np.random.default_rng(0)
    for place in random.integers(len(whole), size=200):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        (tmp_path / "flipped").write_bytes(damaged)
        with suppress(DtrakError):  # or it is read, where the bit does not count
            Scores.load(tmp_path / "flipped")


def test_scores_that_are_no_numbers_are_not_written(tmp_path: Path) -> None:
    scores = Scores(np.array([[np.nan]], np.float32), np.array([5]), np.array(["q"]), "trak")
    for name in ("s.npz", "s.csv"):
        with pytest.raises(DtrakError, match=r"cannot write .*: trak scores training image 5 for the query q with nan"):
            save_scores(tmp_path / name, {"trak": scores})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("damage", ["nan", "half", "folder"])
def test_a_report_says_what_to_run_and_that_makes_them_again(damage: str, own_run: Path, tmp_path: Path) -> None:
    path = own_run / "scores.npz"
    good = path.read_bytes()
    if damage == "nan":
        with np.load(path) as file:
            arrays = dict(file)
        arrays["values"][1, 2] = np.nan
        np.savez(path, **arrays)
    elif damage == "half":
        path.write_bytes(good[: len(good) // 2])
    else:
        path.unlink()
        path.mkdir()
    outcome = dtrak("report", "run", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.error.startswith("run/scores.npz")
    assert outcome.error.endswith(": `dtrak attribute run` makes them again")
    if damage == "nan":
        assert "scores training image 2 for the query seed-00001.png with nan, which is no score" in outcome.error
    if damage == "folder":
        assert dtrak("attribute", "run", cwd=tmp_path).error == "cannot write run/scores.npz: it is a folder"
        path.rmdir()
    assert dtrak("attribute", "run", cwd=tmp_path).code == 0
    assert path.read_bytes() == good
    assert dtrak("report", "run", cwd=tmp_path).code == 0


def test_products_that_are_no_numbers_give_no_answer(finished_run: Path, tmp_path: Path) -> None:
    run, asked = tmp_path / "run", ("--method", "clip-dot", "--encoder", "efficientnet-lite0")
    (tmp_path / "ids.txt").write_text("3\n5\n")
    recipe = finished_run / "recipe.yaml"
    for line in (("train", recipe, "--subset", "ids.txt", "--out"), ("generate", "--count", 1), ("attribute", *asked)):
        outcome = dtrak(*line, "run", cwd=tmp_path)
        assert outcome.code == 0, outcome.err
    for path in run.glob("features/embeddings-*"):
        store = FeatureStore.open(path)
        store.write(0, torch.full((len(store), *store.shape), 1e30))
    (run / "scores.npz").unlink()
    says = "clip-dot scores training image 3 for the query seed-00000.png with inf, which is no score"
    assert dtrak("attribute", "run", *asked, cwd=tmp_path).error == f"cannot write run/scores.npz: {says}"
    with served(run, *asked) as server:
        question = server.wait(server.client.get("/api/answer", params={"query": "seed-00000.png"}).json()["question"])
    assert (question["state"], question["error"]) == ("failed", f"cannot score: {says}")


# what was asked, which is in the same file

MALFORMED: dict[str, Any] = {
    "no JSON": "{",
    "empty": "",
    "a list": "[1, 2]",
    "a number": "7",
    "deep": "[" * 100_000,
    "no fields": "{}",
    "no text": b"\xff\xfe\x00",
    "method": ("given", {"methods": "trak"}),
    "queries": ("given", {"queries": 5}),
    "settings": ("given", {"settings": "soon"}),
    "facts of methods": ("facts", {"methods": []}),
    "facts of the model": ("facts", {"model": 3}),
}


def change_question(path: Path, content: Any) -> None:
    """Write the scores with another text of what was asked, or with other fields of what was given or of the facts."""
    with np.load(path) as file:
        arrays = dict(file)
    if isinstance(content, tuple):
        (kind, changes), asked = content, json.loads(str(arrays["question"]))
        content = json.dumps(asked | {kind: asked[kind] | changes})
    np.savez(path, **arrays | {"question": np.array(content)})


@pytest.mark.parametrize("how", MALFORMED)
def test_scores_that_do_not_say_what_was_asked_are_made_again(how: str, own_run: Path, tmp_path: Path) -> None:
    path = own_run / "scores.npz"
    good = path.read_bytes()
    change_question(path, MALFORMED[how])
    outcome = dtrak("report", "run", cwd=tmp_path)
    says = "it does not say what was asked: `dtrak attribute run` makes them again"
    assert (outcome.code, outcome.error) == (2, f"run/scores.npz is not a file of scores: {says}")
    if how not in ("no JSON", "method"):
        return
    assert dtrak("attribute", "run", cwd=tmp_path).code == 0
    assert path.read_bytes() == good
    assert dtrak("report", "run", cwd=tmp_path).code == 0


@pytest.mark.parametrize("change", [{}, None, {"draws": "many"}, {"methods": ["d-track"]}, {"checkpoint_count": [4]}])
def test_serve_goes_on_with_the_recipe(change: dict[str, Any] | None, own_run: Path) -> None:
    """As in the last attribution, by the method random, as long as it says so."""
    path = own_run / "scores.npz"
    given = json.loads(str(np.load(path)["question"]))["given"]
    settings = given["settings"] | {name: value for name, value in (change or {}).items() if name in given["settings"]}
    methods = (change or {}).get("methods", ["random"])
    change_question(path, "{" if change is None else ("given", {"methods": methods, "settings": settings}))
    with served(own_run) as server:
        methods = [one["name"] for one in server.get("run")["methods"]]
    assert methods == (["random"] if change == {} else ["step-trak"])


# ids beyond int64

LARGE = np.array([1, 2**63, 2**64 - 1], np.uint64)


def test_ids_beyond_int64_are_refused(own_run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", LARGE)
    (tmp_path / "ids.txt").write_text("".join(f"{one}\n" for one in LARGE))
    assert read_ids(str(tmp_path / "ids.txt")).tolist() == [str(one) for one in LARGE]  # text stays what it is
    np.savez(tmp_path / "q.npz", images=np.zeros((3, 8, 8), np.uint8), ids=LARGE)
    asked = {
        "q.npz: 'ids'": ("attribute", own_run, "--queries", "q.npz", "--method", "random", "--out", "s.npz"),
        "ids.npy": ("train", own_run / "recipe.yaml", "--subset", "ids.npy", "--out", "new"),
    }
    for name, words in asked.items():
        outcome = dtrak(*words, cwd=tmp_path)
        assert outcome.code == 2
        expected = "holds 18446744073709551615, but integers must be below 2^63: give such ids as text"
        assert outcome.error == f"{name} {expected}"
