"""Tables as CSV: no text in them is run as a formula, numbers stay numbers, and everything can be read back."""

import csv
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from commands import dtrak
from dtrak.attribution.scores import Scores, save_scores
from dtrak.spreadsheets import FORMULAS, harmless, original
from dtrak.tables import Cell, Table
from serving import served

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.tuples(
    st.sampled_from(["", "'", "''", "="]), st.sampled_from(FORMULAS), st.text(max_size=5)
).map("".join)


@given(TEXTS)
def test_no_formula_is_left_and_every_text_comes_back(text: str) -> None:
    assert not harmless(text).startswith(FORMULAS)
    assert original(harmless(text)) == text


def test_most_texts_stay_as_they_are() -> None:
    for text in ("", "seed-00001.png", "a=b", "'tis", " =1", "−1", "7"):
        assert harmless(text) == text == original(text)
    assert harmless("=1+1") == "'=1+1"


def cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@settings(deadline=None, max_examples=60)
@given(TEXTS, TEXTS, st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_tables_and_scores_give_back_what_went_in(name: str, label: str, number: float) -> None:
    table = cells(Table([label, "n"], [[name, number], [label, Cell(-number, "")]]).csv())
    assert [[original(one) for one in row[:1]] for row in table] == [[label], [name], [label]]
    assert [float(row[1]) for row in table[1:]] == [number, -number]

    values = np.array([[number, -abs(number) - 1]], dtype=np.float32)
    columns = {"artist": np.array([label, None], dtype=object), "year": np.array([-1, 5])}
    scores = Scores(values, np.array([name, "other"], dtype=object), np.array([label], dtype=object), "m", columns)
    head, first, second = cells(scores.csv())
    assert head == ["query", "rank", "train", "score", "artist", "year"]
    row = first if first[5] == "-1" else second
    assert [original(one) for one in (row[0], row[2], row[4])] == [label, name, label]
    assert np.float32(row[3]) == np.float32(number)
    assert row[5] == "-1"


def test_negative_scores_stay_numbers_for_pandas(tmp_path: Path) -> None:
    scores = Scores(np.array([[-1.5, 2e-7]], np.float32), np.array([-3, 4]), np.array(["-q"]), "m", {})
    save_scores(tmp_path / "s.csv", {"m": scores})
    table = pandas.read_csv(tmp_path / "s.csv")
    assert table["score"].tolist() == [pytest.approx(2e-7), -1.5]
    assert table["train"].tolist() == [4, -3]
    assert table["query"].map(original).tolist() == ["-q", "-q"]


def test_a_column_called_score_does_not_hide_the_scores(tmp_path: Path) -> None:
    columns = {name: np.array(["mine", "mine"]) for name in ("score", "rank", "query", "method")}
    scores = Scores(np.array([[1, 2]], np.float32), np.array([0, 1]), np.array([9]), "trak", columns)
    save_scores(tmp_path / "s.csv", {"trak": scores})
    table = pandas.read_csv(tmp_path / "s.csv")
    assert (table["score"].tolist(), table["method"].tolist()) == ([2, 1], ["trak", "trak"])
    assert table["train_column.score"].tolist() == ["mine", "mine"]


# through the command line and the explorer: names that no one would give a file

NAMES = ["=cmd.png", "two\nlines.png", "re\rturn.png", "@sum.png", os.fsdecode(b"\xff.png")]


@pytest.fixture(scope="module")
def odd(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures with such names, beside a run."""
    place = tmp_path_factory.mktemp("odd")
    shutil.copytree(finished_run, place / "run")
    (place / "pictures").mkdir()
    for shade, name in enumerate(NAMES):
        Image.new("L", (8, 8), 40 * shade).save(place / "plain.png")
        (place / "plain.png").rename(place / "pictures" / name)
    return place


def test_odd_names_of_files_break_no_table(odd: Path) -> None:
    asked = ("attribute", "run", "--queries", "pictures", "--method", "random", "--out")
    for out in ("s.csv", os.fsdecode(b"\xfe.csv"), "s.npz"):
        outcome = dtrak(*asked, out, cwd=odd)
        assert outcome.code == 0, outcome.err
    assert outcome.out == "The scores: s.npz\n"
    _, *rows = cells((odd / "s.csv").read_bytes().decode())
    assert len(rows) == 5 * 1000
    assert {original(row[0]) for row in rows} == {*NAMES[:4], "\\udcff.png"}
    assert (odd / os.fsdecode(b"\xfe.csv")).read_bytes() == (odd / "s.csv").read_bytes()
    assert sorted(Scores.load(odd / "s.npz").query_ids.tolist()) == sorted(NAMES)
    outcome = dtrak("report", "run", cwd=odd)
    assert outcome.code == 0, outcome.err
    assert "\\udcff.png" in (odd / "run" / "report.html").read_text()


def test_the_explorers_table_is_harmless_too(odd: Path) -> None:
    assert dtrak("attribute", "run", "--queries", "pictures", "--method", "random", cwd=odd).code == 0
    with served(odd / "run", "--method", "random") as server:
        _, *rows = cells(server.get("scores.csv", set="attributed"))
    assert {row[0] for row in rows} == {"'=cmd.png", "two\nlines.png", "re\rturn.png", "'@sum.png", "\\udcff.png"}
