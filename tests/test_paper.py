"""The program that measures the paper's findings writes tables and figures, and what was measured stays measured."""

import subprocess
import sys
from pathlib import Path

import pytest

from commands import dtrak

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "paper"
ONLY = "interpolation,dampings,mixtures,retraining"


def measured(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "kept" / "tiny" / "measured").iterdir()}


@pytest.mark.slow
def test_findings_of_a_tiny_benchmark(own_run: Path, tmp_path: Path) -> None:
    asked = "--subsets 6 --seeds 2 --output-timesteps 2 --output-noises 1 --keep-models --method random"
    assert dtrak("evaluate", "lds", own_run, *asked.split(), cwd=tmp_path).code == 0

    def ask(only: str) -> str:
        command = [sys.executable, PROGRAM, f"tiny={own_run / 'benchmark'}", "--run", f"tiny={own_run}"]
        outcome = subprocess.run(
            [*command, "--folder", tmp_path / "kept", "--out", tmp_path / "out", "--only", only],
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 0, outcome.stderr
        return (tmp_path / "out" / "tiny.md").read_text()

    first = ask(ONLY)
    for heading in ("## Interpolation, K = 10", "## Mixtures of objectives", "## Methods that retrain, generated"):
        assert heading in first
    assert "| 0.5 |" in first
    before = measured(tmp_path)
    again = ask("dampings")
    assert measured(tmp_path) == before
    table = again[again.index("## Ways to set the damping") :]
    assert table.strip() in first
