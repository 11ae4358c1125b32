"""The examples in the docstrings of everything public work as they stand, and all of it is listed for completion."""

import doctest
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commands
import dtrak
from dtrak.runs.ready import SHIPPED

METHODS = {
    dtrak.Scores: (
        "top",
        "bottom",
        "credit",
        "plot",
        "plot_credit",
        "plot_self_influence",
        "to_pandas",
        "to_csv",
        "save",
    ),
    dtrak.Images: ("tensor", "select", "first"),
    dtrak.Run: ("scores",),
}


def forked(command: list[str], **options: Any) -> None:
    """In place of `subprocess.run`: the same command from the server that has imported everything."""
    assert command[:3] == [sys.executable, "-m", "dtrak"]
    outcome = commands.dtrak(*command[3:], cwd=Path.cwd())
    assert outcome.code == 0, outcome.err


@pytest.fixture
def beside_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working folder has runs/digits, the run that comes with the package."""
    shutil.copytree(SHIPPED, tmp_path / "runs" / "digits")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", forked)
    yield
    assert os.path.isdir("runs/digits")


def examples() -> dict[str, object]:
    """Everything that should have an example, by its name."""
    found: dict[str, object] = {"dtrak": dtrak}
    found |= {name: getattr(dtrak, name) for name in dtrak.__all__}
    for owner, names in METHODS.items():
        found |= {f"{owner.__name__}.{name}": getattr(owner, name) for name in names}
    for module in (dtrak.evaluation, dtrak.figures):
        found |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return found


@pytest.mark.parametrize("name", list(examples()))
@pytest.mark.usefixtures("beside_a_run")
def test_examples_work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    of = examples()[name]
    text = inspect.getdoc(of) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example)
    assert runner.failures == 0, capsys.readouterr().out


def test_completion_knows_the_public_names() -> None:
    assert set(dtrak.__all__) <= set(dir(dtrak))
    assert {"figures", "methods", "objectives", "evaluation"} <= set(dir(dtrak))
    for name in dir(dtrak):
        assert getattr(dtrak, name) is not None
