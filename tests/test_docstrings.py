"""The examples in the docstrings of everything public work as they stand, and all of it is listed for completion."""

import doctest
import inspect
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def beside_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working folder has runs/digits, the run that comes with the package."""
    shutil.copytree(SHIPPED, tmp_path / "runs" / "digits")
    monkeypatch.chdir(tmp_path)
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
