"""The program that kills commands and compares what they leave; and a moment so short that it hardly ever hits it."""

import subprocess
import sys
from pathlib import Path

from commands import dtrak

ROOT = Path(__file__).parents[1]


def test_killed_commands_leave_the_same_bytes() -> None:
    program = [sys.executable, ROOT / "benchmarks" / "faults.py", "--kills", "2", "--commands", "train"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    _, row, total, *_ = [line.split("|")[2:-1] for line in done.stdout.splitlines() if line.startswith("|")][1:]
    kills, _, _, _, trials, identical, different, leftovers = map(int, row)
    assert (kills, identical, different, leftovers) == (2, trials, 0, 0)
    assert row == total


def test_the_state_that_a_training_left_as_it_was_killed_at_its_end_goes(own_run: Path) -> None:
    (own_run / "training.safetensors").write_bytes(b"of the last step")
    assert dtrak("train", own_run / "recipe.yaml", "--out", own_run, cwd=own_run).code == 0
    assert not (own_run / "training.safetensors").exists()
