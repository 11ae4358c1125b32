"""The program that measures the paper's findings writes tables and figures, and what was measured stays measured."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import dtrak

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "paper"
# the tables and figures that each finding leaves
WRITTEN = {
    "interpolation": ("interpolation.md", "interpolation-validation-10.png", "interpolation-generated-100.png"),
    "copies": ("copies.md",),
    "timesteps": ("timesteps.md",),
    "successors": ("successors.md",),
    "every-method": ("every-method.md",),
    "mixtures": ("mixtures.md",),
    "retraining": ("retraining.md",),
    "outputs": ("outputs.md",),
    "pictures": ("pictures.md", "proponents.png", "self-influence.png"),
    "counterfactuals": ("counterfactuals.md", "counterfactual-pictures.png"),
    "recommended": ("recommended.md",),
    "costs": ("costs.md", "cost.png"),
    "seeds": ("seeds.md",),
    "directions": ("directions.md",),
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
def test_findings_of_a_tiny_benchmark(recipe: Callable[..., Path], tmp_path: Path) -> None:
    own_run, few = tmp_path / "run", {"select": {"count": 64}, "select_validation": {"count": 10}}
    assert dtrak("run", recipe(data=few), "--out", own_run, cwd=tmp_path).code == 0
    asked = "--subsets 8 --seeds 2 --output-timesteps 2 --output-noises 1 --keep-models --method random"
    assert dtrak("evaluate", "lds", own_run, *asked.split(), cwd=tmp_path).code == 0
    asked = "--count 2 --method random,d-trak --encoder efficientnet-lite0"
    assert dtrak("evaluate", "counterfactual", own_run, *asked.split(), cwd=tmp_path).code == 0

    def ask(only: str) -> None:
        command = [sys.executable, PROGRAM, f"tiny={own_run / 'benchmark'}", "--run", f"tiny={own_run}"]
        command += ["--device", "cpu", "--k", "128"]
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
    assert "| 0.5 |" in tables["interpolation"]
    assert "step-trak's gain over d-trak" in tables["recommended"]
    assert "## Paired differences of ℓ2: the finished picture" in tables["counterfactuals"]
    assert "| ek-fac |" in tables["every-method"]
    assert "## Output and construction, K = 100, generated queries" in tables["outputs"]
    assert "python benchmarks/paper tiny=FOLDER --run tiny=RUN --k 128 --only seeds" in tables["seeds"]

    frontier, _, every = tables["costs"].partition("## All choices")
    best, costs = (
        [[float(cell.split()[0]) for cell in row.split("|")[2:4]] for row in part.splitlines() if " ± " in row]
        for part in (frontier, every)
    )
    assert [seconds for _, seconds in costs] == sorted(seconds for _, seconds in costs)
    assert [lds for lds, _ in best] == sorted(lds for lds, _ in best), "dearer choices of the frontier are better"

    before = measured(tmp_path)
    ask("interpolation")
    assert measured(tmp_path) == before
    assert (tmp_path / "out" / "tiny" / "interpolation.md").read_text() == tables["interpolation"]
    assert (tmp_path / "out" / "tiny" / "costs.md").read_text() == tables["costs"], "other findings are left alone"
