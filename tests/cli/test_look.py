"""The commands that show what there is: help in groups, info of a run, figures, cards, and the run that is shipped."""

import re
import signal
import time
from importlib.metadata import version
from pathlib import Path

import httpx2
import numpy as np
import pytest
from PIL import Image

from commands import dtrak, dtrak_started
from dtrak.attribution.settings import OPTIONS
from dtrak.report.card import card_of_run
from dtrak.report.measured import trust_of
from dtrak.runs.ready import ready_run
from dtrak.runs.run import Run


@pytest.fixture
def ready(tmp_path: Path) -> Run:
    return ready_run(tmp_path / "ready")


@pytest.mark.parametrize("name", ["attribute", "serve", "index", "evaluate lds", "evaluate counterfactual"])
def test_help_has_every_option_of_scoring_in_its_group(name: str, tmp_path: Path) -> None:
    told = dtrak(*name.split(), "--help", cwd=tmp_path).out
    heads = [line.split()[1:-1] for line in told.splitlines() if line.startswith("╭")]
    assert " ".join(heads[2]) == "How features and scores are made"
    for option in ("cache", "engine", "workers", "address", *(name for name, one in OPTIONS.items() if one.is_typed)):
        assert re.search(rf"^│ +--{option.replace('_', '-')} ", told, re.MULTILINE), option


def test_a_piped_table_has_one_line_for_each_row(tmp_path: Path) -> None:
    lines = dtrak("methods", cwd=tmp_path).out.splitlines()
    assert sum(line.startswith(" d-trak ") for line in lines) == 1
    (line,) = (line for line in lines if line.startswith(" step-trak "))
    assert "kernel" in line


def test_info_tells_what_a_run_holds_and_what_is_next(ready: Run, finished_run: Path, tmp_path: Path) -> None:
    told = dtrak("info", "ready", cwd=tmp_path).out
    assert "60 generated" in told
    assert re.search(r"damping +auto: λ = \S+ × mean eigenvalue, which keeps [\d,]+ of [\d,]+ directions", told)
    assert re.search(r"Of 100 points that perfect scores would reach, these reach \d+, give or take \d+", told)
    assert re.search(r"next +dtrak report ready", told)
    told = dtrak("info", finished_run, cwd=tmp_path).out
    assert re.search(r"Not measured: `dtrak evaluate lds \S+ --method \S+` would take about [\w, ]+ on this", told)


def test_trust_is_in_proportion_to_what_perfect_scores_would_reach(ready: Run) -> None:
    found = trust_of(ready)
    assert found is not None
    assert found.perfect is not None
    assert found.ceiling is not None
    assert found.perfect > found.ceiling
    share = round(100 * found.methods["step-trak"].lds / found.perfect)
    assert f"these reach {share}," in found.words("step-trak")


@pytest.mark.parametrize(
    ("kind", "file"), [("proponents", "f.pdf"), ("credit", "f.svg"), ("self-influence", "f.png"), ("lds", "f.svg")]
)
def test_figures_are_drawn_by_a_command(kind: str, file: str, ready: Run, tmp_path: Path) -> None:
    outcome = dtrak("figure", "ready", "--kind", kind, "--out", file, "--queries", "2", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}
    assert (tmp_path / file).read_bytes().startswith(starts[Path(file).suffix])


def test_a_figure_that_cannot_be_drawn_says_why(ready: Run, tmp_path: Path) -> None:
    outcome = dtrak("figure", "ready", "--kind", "pie", "--out", "f.pdf", cwd=tmp_path)
    assert (outcome.code, "proponents, credit, self-influence" in outcome.err) == (2, True)
    outcome = dtrak("figure", "ready", "--out", "f.doc", cwd=tmp_path)
    assert (outcome.code, ".pdf, .png, .svg" in outcome.err) == (2, True)


def test_a_card_has_everything_that_its_reader_needs(ready: Run, tmp_path: Path) -> None:
    outcome = dtrak("card", "ready", "seed-00003.png", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    with Image.open(tmp_path / "seed-00003-card.png") as image:
        assert np.asarray(image.convert("L")).std() > 20
    figure = card_of_run(ready, "seed-00003.png")
    texts = "\n".join(text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text")))  # type: ignore[attr-defined]
    scores = ready.scores()
    best = scores.top(1)[3][0]
    for word in ("step-trak", "directions", "give or take", "no proof", str(best.id), "95% interval"):
        assert word in texts
    assert len([axes for axes in figure.axes if axes.images]) == 1 + 6 + 3
    outcome = dtrak("card", "ready", "seed-99.png", cwd=tmp_path)
    assert (outcome.code, "has no scores of the picture 'seed-99.png'" in outcome.err) == (2, True)


def test_demo_ready_opens_the_explorer(tmp_path: Path) -> None:
    with dtrak_started("demo", "--ready", "--no-browser", "--port", 0, "--device", "cpu", cwd=tmp_path) as command:
        told = command.streams / "out"
        while not told.exists() or "The explorer: http" not in told.read_text():
            assert command.runs, command.outcome().err
            time.sleep(0.1)
        address = re.search(r"http://\S+/", told.read_text())
        assert address
        assert "explorer" in httpx2.get(address.group(), timeout=60).text
        command.signal(signal.SIGINT)
        assert command.outcome().code == 0
    assert (tmp_path / "runs" / "ready" / "recipe.yaml").exists()


def test_the_shipped_run_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    with pytest.raises(Exception, match="is not dtrak's"):
        ready_run(tmp_path)


def test_completion_is_offered(tmp_path: Path) -> None:
    outcome = dtrak("--show-completion", "bash", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "complete" in outcome.out
    assert "attribute" in outcome.out


def test_the_version_is_told(tmp_path: Path) -> None:
    outcome = dtrak("--version", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (0, f"{version('dtrak')}\n")


def test_what_may_have_been_meant_is_suggested(tmp_path: Path) -> None:
    for typed, meant in {"atribute run": "attribute", "attribute run --projection-di 3": "--projection-dim"}.items():
        outcome = dtrak(*typed.split(), cwd=tmp_path)
        assert (outcome.code, f"Did you mean {meant}?" in outcome.error) == (2, True), outcome.err
