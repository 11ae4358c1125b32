"""Credit on the command line: shares with intervals, of all pictures and of each, from a file of scores or a run."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import dtrak
from dtrak.attribution.scores import Scores, save_scores

ARTISTS = np.array(["ada", "bo", "ada", "cy"])


def scores(queries: int = 2) -> Scores:
    values = np.array([[0.5, -1, 2, 0], [3, 1, -2, -3]], dtype=np.float32)[:queries]
    ids = np.array(["a.png", "b.png"])[:queries]
    return Scores(values, np.arange(4), ids, "d-trak", {"artist": ARTISTS})


def test_the_interval_of_one_picture_is_that_of_a_bootstrap_within_groups() -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), [40, 60, 100])
    values = random.gamma(1.0, size=(1, 200)).astype(np.float32) * np.array([3, 1, 0.5])[groups]
    found = Scores(values, np.arange(200), np.arange(1), "trak", {"g": groups}).groups("g").intervals[0]
    drawn = []
    for _ in range(4000):
        sums = [random.choice(values[0, groups == g], (groups == g).sum()).sum() for g in range(3)]
        drawn.append(np.array(sums) / sum(sums))
    assert pytest.approx(np.percentile(drawn, [2.5, 97.5], axis=0), abs=0.01) == found.T


def test_a_group_of_one_image_or_without_credit_still_has_an_interval() -> None:
    low, high = scores(1).groups("artist").intervals[0].T
    assert (low <= high).all()
    assert ((low >= 0) & (high <= 1)).all()
    nothing = Scores(-np.ones((1, 4), dtype=np.float32), np.arange(4), np.arange(1), "trak", {"artist": ARTISTS})
    assert (nothing.groups("artist").intervals == 0).all()


def test_the_file_has_the_credit_of_all_pictures_and_of_each(tmp_path: Path) -> None:
    scores().save(tmp_path / "scores.npz")
    outcome = dtrak("credit", "scores.npz", "--by", "artist", "--out", "credit.csv", cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    assert "87.5%" in outcome.out
    with open(tmp_path / "credit.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["picture"] for row in rows] == ["all pictures"] * 3 + ["a.png"] * 3 + ["b.png"] * 3
    assert [row["artist"] for row in rows[:3]] == ["ada", "bo", "cy"]
    assert [row["images"] for row in rows[:3]] == ["2", "1", "1"]
    first = {name: float(rows[0][name]) for name in ("share", "low", "high")}
    assert first == pytest.approx({"share": 0.875, "low": 0.75, "high": 1.0})
    of_b = {row["artist"]: float(row["share"]) for row in rows[6:]}
    assert of_b == pytest.approx({"ada": 0.75, "bo": 0.25, "cy": 0})


def test_top_and_chosen_artists(tmp_path: Path) -> None:
    save_scores(tmp_path / "both.npz", {"d-trak": scores(), "trak": replace(scores(), method="trak")})
    arguments = ("credit", "both.npz", "--method", "trak", "--out", "credit.csv")
    assert dtrak(*arguments, "--top", "1", cwd=tmp_path).code == 0
    assert (tmp_path / "credit.csv").read_text().count("\n") == 1 + 3
    outcome = dtrak(*arguments, "--by", "artist=bo, cy", cwd=tmp_path)
    assert outcome.code == 0
    assert "ada" not in outcome.out


def test_only_the_highest_scores_count(tmp_path: Path) -> None:
    kept = scores().only_highest(1)
    assert kept.values.tolist() == [[0, 0, 2, 0], [3, 0, 0, 0]]
    assert scores().only_highest(9).values.tolist() == scores().values.tolist()
    scores().save(tmp_path / "scores.npz")
    outcome = dtrak("credit", "scores.npz", "--highest", "1", cwd=tmp_path)
    assert outcome.code == 0
    assert "100.0%" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "painter"], ["'painter'", "artist"]),
        (["--by", "artist=eve"], ["no training image has artist 'eve'", "ada, bo, cy"]),
        (["--by", "artist="], ["'artist='", "artist=Claude"]),
        (["--method", "trak"], ["d-trak", "'trak'"]),
        (["--top", "0"], ["0", "from 1 on"]),
        (["--out", "credit.xlsx"], ["credit.xlsx", ".csv"]),
    ],
)
def test_faults_are_one_line(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    scores().save(tmp_path / "scores.npz")
    outcome = dtrak("credit", "scores.npz", *arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert all(word in outcome.err for word in words), outcome.err


def test_a_missing_file_and_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, word in {"none.npz": "no scores at none.npz", "empty": "empty is not a run"}.items():
        outcome = dtrak("credit", name, cwd=tmp_path)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert word in outcome.err
