"""The program that measures the paper's findings writes tables and figures, and what was measured stays measured."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from commands import dtrak

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "paper"
# the tables and figures that each finding leaves
WRITTEN = {
    "pictures": ("pictures.md", "proponents.png", "self-influence.png"),
    "counterfactuals": ("counterfactuals.md", "counterfactual-pictures.png"),
    "recommended": ("recommended.md",),
}


def measured(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "kept" / "tiny" / "measured").iterdir()}


@pytest.mark.parametrize("page", ["docs/results.md", "README.md"])
def test_pages_show_what_the_findings_say(page: str) -> None:
    filled, text = runpy.run_path(str(PROGRAM / "page.py"))["filled"], (ROOT / page).read_text()
    assert "<!-- digits/" in text
    assert filled(text, ROOT / "docs" / "results") == text


def test_a_page_joins_tables_by_their_first_columns(tmp_path: Path) -> None:
    for name, row in {"digits": "trak | 55.8", "paper": "trak | 11.4", "other": "random | 0.1"}.items():
        (tmp_path / name).mkdir()
        table = f"| method | K = 10 |\n| --- | ---: |\n| {row} |\n"
        (tmp_path / name / "methods.md").write_text(f"# {name}\n\n## LDS\n\n{table}")
    page = runpy.run_path(str(PROGRAM / "page.py"))
    comment = "<!-- digits/methods, paper/methods, other/methods: LDS -->"
    heads = "| method | digits: K = 10 | paper: K = 10 | other: K = 10 |\n| --- | ---: | ---: | ---: |\n"
    expected = f"Text.\n\n{comment}\n\n{heads}| trak | 55.8 | 11.4 | – |\n\nMore.\n"
    assert page["filled"](f"Text.\n\n{comment}\n\nMore.\n", tmp_path) == expected
    assert page["filled"](expected, tmp_path) == expected
    with pytest.raises(ValueError, match="no table “Cost”"):
        page["filled"]("<!-- digits/methods: Cost -->\n\n", tmp_path)


@pytest.mark.slow
def test_findings_of_a_tiny_benchmark(own_run: Path, tmp_path: Path) -> None:
    asked = "--subsets 8 --seeds 2 --output-timesteps 2 --output-noises 1 --keep-models --method random"
    assert dtrak("evaluate", "lds", own_run, *asked.split(), cwd=tmp_path).code == 0
    asked = "--count 2 --method random,d-trak --encoder efficientnet-lite0"
    assert dtrak("evaluate", "counterfactual", own_run, *asked.split(), cwd=tmp_path).code == 0

    def ask(only: str) -> None:
        command = [sys.executable, PROGRAM, f"tiny={own_run / 'benchmark'}", "--run", f"tiny={own_run}"]
        outcome = subprocess.run(
            [*command, "--folder", tmp_path / "kept", "--out", tmp_path / "out", "--only", only],
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 0, outcome.stderr

    ask(",".join(WRITTEN))
    there = {path.name for path in (tmp_path / "out" / "tiny").iterdir()}
    assert {name for names in WRITTEN.values() for name in names} <= there
    tables = {name: (tmp_path / "out" / "tiny" / f"{name}.md").read_text() for name in WRITTEN}
    assert "mixed-trak's gain over d-trak" in tables["recommended"]

    before = measured(tmp_path)
    ask("recommended")
    assert measured(tmp_path) == before
    assert (tmp_path / "out" / "tiny" / "recommended.md").read_text() == tables["recommended"]
    assert (tmp_path / "out" / "tiny" / "pictures.md").read_text() == tables["pictures"], "others are left alone"
