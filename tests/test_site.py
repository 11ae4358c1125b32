"""The documentation: notebooks run, the site has no broken link, and the project's data agree with each other."""

import os
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import yaml
from playwright.sync_api import Page, expect

import dtrak
from dtrak.images.images import ImageSource
from dtrak.methods import METHODS
from dtrak.runs.ready import SHIPPED, ready_run
from dtrak.runs.run_questions import attribute_run, question_of, settings_of

pytest_plugins = ["browser"]

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return folder


@pytest.mark.slow
def test_the_site_needs_no_other_one(site: Path) -> None:
    """It was built, which a broken link would have prevented."""
    assert "Which training images made this picture?" in (site / "live" / "report.html").read_text()
    pages = "".join(page.read_text() for page in site.glob("*.html"))
    loaded = re.findall(r"<(?:link|script|img|iframe)[^>]+(?:href|src)=\"(https?:[^\"]+)\"", pages)
    assert not loaded


@pytest.mark.slow
def test_the_explorer_of_the_site_answers_without_a_server(site: Path, page: Page) -> None:
    """From the disk, and from a server that only sends files."""
    scores = dtrak.Scores.load(SHIPPED / "scores.npz")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for place in (site.as_uri(), f"http://127.0.0.1:{server.server_port}"):
            page.goto(f"{place}/live/explorer/index.html#picture/seed-00003.png")
            expect(page.locator(".proponents li")).to_have_count(10)
            ids = page.locator(".proponents .about span:first-child").all_inner_texts()
            assert ids == [str(match.id) for match in scores.top(10)[3]]
            page.locator(".proponents li a").first.click()
            expect(page.locator("h2")).to_have_text(f"Training image {ids[0]}")
            column = scores.values[:, scores.top(1)[3][0].position]
            expect(page.locator(".results > p")).to_contain_text(f"lowered the loss of {(column > 0).sum()} and")
    finally:
        server.shutdown()


@pytest.mark.slow
def test_the_shipped_scores_are_those_of_the_code(tmp_path: Path) -> None:
    run = ready_run(tmp_path / "run")
    kept = run.scores()
    queries = ImageSource(str(run.folder / "generated"))
    (run.folder / "scores.npz").unlink()
    found = attribute_run(run, question_of(run, queries, [METHODS[kept.method]], settings_of(run)))[kept.method]
    np.testing.assert_allclose(found.values, kept.values, rtol=1e-2, atol=1e-3 * np.abs(kept.values).max())


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dtrak.__version__ == version("dtrak") == project["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == project["version"]


def test_pages_link_to_files_that_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            made = re.fullmatch(r"changelog\.md|live/(report|explorer/index)\.html|notebooks/[\w-]+\.md", target)
            assert made or (page.parent / target).exists(), f"{page.name} links to {target}"
