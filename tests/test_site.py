"""The documentation: notebooks run, the site has no broken link, and the project's data agree with each other."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import dtrak

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ("ddpm-to-figure", "lora-to-credit")


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run_and_show_pictures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    made = runpy.run_path(str(ROOT / "docs" / "notebooks" / "make.py"))["execute"](name, tmp_path)
    shown = [kind for cell in made.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert shown.count("image/png") == 2
    assert shown.count("text/html") >= 3
    kept = nbformat.read(ROOT / "docs" / "notebooks" / f"{name}.ipynb", 4)
    assert [cell.source for cell in kept.cells] == [cell.source for cell in made.cells], "make.py writes it again"
    assert "/tmp" not in (ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text()


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "Which training images made this picture?" in (tmp_path / "live" / "report.html").read_text()
    pages = "".join(page.read_text() for page in tmp_path.glob("*.html"))
    loaded = re.findall(r"<(?:link|script|img|iframe)[^>]+(?:href|src)=\"(https?:[^\"]+)\"", pages)
    assert not [one for one in loaded if "canonical" not in one], "the site needs no other one"


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dtrak.__version__ == version("dtrak") == project["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == project["version"]


def test_pages_link_to_files_that_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            made = re.fullmatch(r"(changelog\.md|live/report\.html|notebooks/[\w-]+\.md)", target)
            assert made or (page.parent / target).exists(), f"{page.name} links to {target}"
