"""The program that measures the paper's findings writes tables and figures, and what was measured stays measured."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import dtrak

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "paper"
# the tables and figures that each finding leaves
WRITTEN = {
    "interpolation": ("interpolation.md", "interpolation-10.png", "interpolation-100.png"),
    "mixtures": ("mixtures.md",),
    "retraining": ("retraining.md",),
    "outputs": ("outputs.md",),
    "pictures": ("pictures.md", "proponents.png", "self-influence.png"),
    "counterfactuals": ("counterfactuals.md", "counterfactual-pictures.png"),
    "recommended": ("recommended.md",),
    "costs": ("costs.md", "cost.png"),
}


def measured(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "kept" / "tiny" / "measured").iterdir()}


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
    assert "| 0.5 |" in tables["interpolation"]
    assert "mixed-trak's gain over d-trak" in tables["recommended"]

    costs = [re.split(r" *\| *", row)[1:-1] for row in tables["costs"].splitlines() if row.endswith(("yes |", "|  |"))]
    seconds = [float(row[2]) for row in costs]
    assert seconds == sorted(seconds)
    best = [float(row[1].split()[0]) for row in costs if row[3] == "yes"]
    assert best == sorted(best), "dearer choices of the frontier are better"

    before = measured(tmp_path)
    ask("interpolation")
    assert measured(tmp_path) == before
    assert (tmp_path / "out" / "tiny" / "interpolation.md").read_text() == tables["interpolation"]
    assert (tmp_path / "out" / "tiny" / "costs.md").read_text() == tables["costs"], "other findings are left alone"
