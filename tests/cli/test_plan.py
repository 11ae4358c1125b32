"""`dtrak plan`: what a million images would take."""

import csv
from pathlib import Path

import pytest

from commands import dtrak


def rows(folder: Path, *options: str) -> list[dict[str, str]]:
    done = dtrak("plan", "--images", "1000000", "--model", "model", "--out", "plan.csv", *options, cwd=folder)
    assert done.code == 0, done.err
    return list(csv.DictReader((folder / "plan.csv").open()))


def test_a_plan_says_what_each_choice_takes(own_run: Path) -> None:
    one = rows(own_run, "--rate", "100")
    eight = rows(own_run, "--rate", "100", "--gpus", "8")
    first = one[0]
    assert (first["method"], first["K"], first["k"], first["stored as"]) == ("d-trak", "2", "1024", "float16")
    assert float(first["passes"]) == 2e6
    assert float(first["hours"]) == pytest.approx(2e6 * (5 / 3) / 100 / 3600)
    assert float(first["disk"]) == pytest.approx(2 * 1024 * 2 * 1e6)  # two objectives
    assert [float(row["hours"]) / 8 for row in one] == pytest.approx([float(row["hours"]) for row in eight])
    assert max(float(row["memory"]) for row in one) < 4.1e9


def test_the_speed_is_measured_if_it_is_not_given(own_run: Path) -> None:
    done = dtrak("plan", "--images", "5000", "--model", "model", cwd=own_run)
    assert done.code == 0, done.err
    assert "passes per second, measured on this machine" in " ".join(done.out.split())


def test_what_makes_no_sense_is_refused(own_run: Path) -> None:
    refused = dtrak("plan", "--images", "0", "--model", "model", cwd=own_run)
    assert refused.code == 2
    assert "'0' is not a whole number from 1 on" in refused.error
    refused = dtrak("plan", "--images", "10", "--model", "model", "--rate", "-3", cwd=own_run)
    assert refused.code == 2
    assert "rate -3.0: it must be positive" in refused.error
    assert dtrak("plan", "--images", "10", "--model", "nowhere", cwd=own_run).code == 2
