"""SIGTERM ends a command like Ctrl-C: one line, exit status 143, nothing half-written, no process left behind."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import numpy as np
import pytest

from commands import dtrak, dtrak_started
from dtrak.attribution.scores import Scores
from processes import children
from serving import PATIENCE, _address

SAYS = "terminated; the same command goes on where this one stopped"
MakeRecipe = Callable[..., Path]


def until(happens: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < ends, "it does not happen"
        time.sleep(0.01)


def last_line(err: str) -> str:
    """After which only progress may come before."""
    assert "Traceback" not in err
    assert err.count("dtrak: ") == 1
    return err.splitlines()[-1].removeprefix("dtrak: ")


def test_training_ends_and_goes_on_to_the_same_weights(recipe: MakeRecipe, tmp_path: Path, finished_run: Path) -> None:
    asked = ("train", recipe(), "--out", "run")
    with dtrak_started(*asked, cwd=tmp_path) as command:
        until(lambda: (tmp_path / "run" / "checkpoints").exists() or not command.runs)
        command.signal(signal.SIGTERM)
        outcome = command.outcome()
    assert (outcome.code, last_line(outcome.err)) == (143, SAYS)
    assert not list((tmp_path / "run").rglob(".*.tmp"))
    assert dtrak(*asked, cwd=tmp_path).code == 0
    weights = Path("model", "unet", "diffusion_pytorch_model.safetensors")
    assert (tmp_path / "run" / weights).read_bytes() == (finished_run / weights).read_bytes()


def test_the_workers_of_a_pool_end_as_well(finished_run: Path, tmp_path: Path) -> None:
    model = ("--model", finished_run / "model", "--train", "digits:train", "--queries", finished_run / "generated")
    settings = ("--timesteps", 1, "--projection-dim", 64, "--parameters", "conv_out")
    asked = ("attribute", *model, *settings, "--out", "s.npz")
    with dtrak_started(*asked, "--engine", "pool", "--workers", 1, cwd=tmp_path) as command:
        until(lambda: len(list(tmp_path.glob("s.npz.features/*/shard-*"))) > 1 or not command.runs)
        workers = children(command.process.pid or 0)
        assert workers
        command.signal(signal.SIGTERM)
        outcome = command.outcome()
    assert (outcome.code, last_line(outcome.err)) == (143, SAYS)
    until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers))
    assert not list(tmp_path.rglob(".*.tmp"))
    assert not (tmp_path / "s.npz").exists()
    assert dtrak(*asked, cwd=tmp_path).code == 0
    found = Scores.load(tmp_path / "s.npz").values
    assert np.array_equal(found, Scores.load(finished_run / "scores.npz").values)


def test_serve_ends_in_one_line(own_run: Path) -> None:
    with dtrak_started(
        "serve", "run", "--no-browser", "--port", 0, "--method", "random", cwd=own_run.parent
    ) as command:
        assert httpx2.get(_address(command)).status_code == 200
        command.signal(signal.SIGTERM)
        outcome = command.outcome()
    assert (outcome.code, outcome.error) == (143, SAYS)


LONG = """
import hashlib, os, sys, threading, time
from dtrak import sigterm
from dtrak.cli import commands as cli

@cli.app.command()
def long():
    threading.Timer(0.5, lambda: print("at work", flush=True)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # one step of Python's, for many minutes

@cli.app.command()
def deaf():
    print("at work", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

sigterm.SECONDS_TO_END = 1
sys.argv = ["dtrak", sys.argv[1]]
cli.main()
"""


@pytest.mark.parametrize("command", ["long", "deaf"])
def test_neither_a_long_computation_nor_deaf_code_outlives_it(command: str) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LONG, command], text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # the impatient do it twice
        began = time.monotonic()
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (143, f"dtrak: {SAYS}\n")
    assert time.monotonic() - began < 30
