"""Tables: one content in four formats, each read back or compared with what it has to be."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dtrak.errors import UsageError
from dtrak.spreadsheets import original
from dtrak.tables import Cell, Table, check_table_path, write_table

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


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])), st.floats(allow_nan=False))
def test_csv_gives_back_what_went_in(text: str, number: float) -> None:
    _, (name, value, copy) = csv.reader(
        io.StringIO(Table(["a", "b", "c"], [[text, number, Cell(number, "")]]).csv(), "")
    )
    assert (original(name), float(value), float(copy)) == (text, number, number)


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
