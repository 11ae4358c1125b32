"""The program that kills commands and compares what they leave; and moments so short that it hardly ever hits them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import dtrak, processes
from dtrak.files import MARKER, kept_until_done

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "faults.py"


@pytest.mark.slow  # kills of train, attribute and evaluate have fast tests of their own
def test_killed_commands_leave_the_same_bytes() -> None:
    asked = [sys.executable, PROGRAM, "--kills", "2", "--commands", "train"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    _, row, total = [line.split("|")[2:-1] for line in done.stdout.splitlines() if line.startswith("|")][1:]
    kills, _, _, _, trials, identical, different, leftovers = map(int, row)
    assert (kills, identical, different, leftovers) == (2, trials, 0, 0)
    assert row == total


def test_the_state_that_a_training_left_as_it_was_killed_at_its_end_goes(own_run: Path) -> None:
    (own_run / "training.safetensors").write_bytes(b"of the last step")
    assert dtrak("train", own_run / "recipe.yaml", "--out", own_run, cwd=own_run).code == 0
    assert not (own_run / "training.safetensors").exists()


def die_while_removing(out: Path, number: int) -> None:
    """Be killed just before a file or folder is removed: the first one, the second, …"""
    removed = 0

    def watch(event: str, _: Any) -> None:
        nonlocal removed
        if event in ("os.remove", "os.rmdir") and (removed := removed + 1) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with kept_until_done(None, out) as folder:
        for name in ("a", "z"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "shard").write_text("features")
        sys.addaudithook(watch)


def test_a_kill_while_features_are_removed_stops_no_later_command(tmp_path: Path) -> None:
    folder, codes = tmp_path / "scores.npz.features", []
    for number in (
        1,
        2,
        3,
        4,
        5,
        6,
        999,
    ):  # there are six removals at least
        process = processes.Process(target=die_while_removing, args=(tmp_path / "scores.npz", number))
        process.start()
        process.join()
        codes.append(process.exitcode)
        assert (folder / MARKER).exists() or not folder.exists() or not any(folder.iterdir())
    assert codes == [-signal.SIGKILL] * 6 + [0]
    assert os.listdir(tmp_path) == []
