"""Tables: one content in four formats, each read back or compared with what it has to be.

In CSV files, no text is run as a formula, numbers stay numbers, and everything can be read back.
"""

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
from rich.console import Console

from commands import dtrak
from dtrak.attribution.scores import Scores, save_scores
from dtrak.errors import UsageError
from dtrak.tables import FORMULAS, Cell, Table, check_table_path, harmless, original, write_table
from serving import served

TABLE = Table(
    ["method", "LDS %", "best λ", "images"],
    [
        ["d-trak [ours] :tram:", Cell(41.678901, "41.7 ± 4.8"), 0.12345678, 5000],
        ["a|b & c_d", Cell(None, "–"), np.float32(1), np.int64(3)],
    ],
    "LDS, 50 % of the images",
    ["± is an error."],
)


def test_text_is_plain_and_whole() -> None:
    wide = Table(["what"], [["word " * 100]])
    assert "word " * 99 + "word" in wide.text()
    assert TABLE.text() == (
        "             LDS, 50 % of the images\n"
        "\n"
        " method                     LDS %  best λ  images\n"
        " ────────────────────────────────────────────────\n"
        " d-trak [ours] :tram:  41.7 ± 4.8  0.1235   5,000\n"
        " a|b & c_d                      –       1       3\n"
        "\n"
        "± is an error.\n"
    )


def test_a_console_shows_the_same_styled_in_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = {}
    for is_terminal in (False, True):
        file = io.StringIO()
        Console(file=file, width=99, force_terminal=is_terminal).print(TABLE)
        shown[is_terminal] = file.getvalue()
    assert "\x1b[" in shown[True]
    assert "".join(f"{line.rstrip()}\n" for line in shown[False].splitlines()) == TABLE.text()


def test_csv_keeps_numbers_whole() -> None:
    heads, first, second = csv.reader(io.StringIO(TABLE.csv()))
    assert heads == TABLE.heads
    assert first == ["d-trak [ours] :tram:", "41.678901", "0.12345678", "5000"]
    assert second == ["a|b & c_d", "", "1.0", "3"]


def test_markdown() -> None:
    assert TABLE.markdown() == (
        "LDS, 50 % of the images\n"
        "\n"
        "| method | LDS % | best λ | images |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| d-trak [ours] :tram: | 41.7 ± 4.8 | 0.1235 | 5,000 |\n"
        "| a\\|b & c_d | – | 1 | 3 |\n"
        "\n"
        "± is an error.\n"
    )
    assert Table(["a"], [["two\nlines"]]).markdown() == "| a |\n| --- |\n| two lines |\n"


def test_latex() -> None:
    assert TABLE.latex() == (
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{LDS, 50 \\% of the images}\n"
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        "method & LDS \\% & best $\\lambda$ & images \\\\\n"
        "\\midrule\n"
        "d-trak {[}ours{]} :tram: & 41.7 $\\pm$ 4.8 & 0.1235 & 5,000 \\\\\n"
        "a$|$b \\& c\\_d & – & 1 & 3 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\par\\smallskip $\\pm$ is an error.\n"
        "\\end{table}\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "100 %": r"100 \%",
        "$5 #2 {x}": r"\$5 \#2 \{x\}",
        r"a\b~c^d": r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d",
        "10⁻² × λ": r"10$^-$$^2$ $\times$ $\lambda$",
        "p < 0.05": "p $<$ 0.05",
        "--damping, ---": "-{}-damping, -{}-{}-",
        "*": "{*}",
    }.items(),
)
def test_latex_of_what_means_something_else_there(text: str, expected: str) -> None:
    assert f"\n{expected} \\\\\n\\bottomrule" in Table(["a"], [[text]]).latex()


def test_the_ending_decides_what_is_written(tmp_path: Path) -> None:
    formats = {".csv": TABLE.csv(), ".md": TABLE.markdown(), ".tex": TABLE.latex(), ".TXT": TABLE.text()}
    for ending, expected in formats.items():
        write_table(TABLE, tmp_path / f"new/table{ending}")
        assert (tmp_path / f"new/table{ending}").read_text() == expected


@pytest.mark.parametrize("name", ["table.xlsx", "table", "csv"])
def test_an_unknown_ending_is_refused_by_name(tmp_path: Path, name: str) -> None:
    for refuse in (check_table_path, lambda path: write_table(TABLE, path)):
        with pytest.raises(UsageError, match=rf"{name}: its ending has to be one of \.csv, \.md, \.tex, \.txt"):
            refuse(tmp_path / name)
    assert not list(tmp_path.iterdir())


# texts that spreadsheets would run

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
