"""Scores, images, models and runs in a notebook: a few lines of text, and HTML with the right pictures."""

import re
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dtrak
from dtrak import progress
from dtrak.attribution.scores import load_scores, save_scores
from dtrak.errors import UsageError
from dtrak.runs.ready import SHIPPED, ready_run
from dtrak.runs.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ready_run(tmp_path_factory.mktemp("ready") / "run")


def pictures(html: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/png;base64,([^\"]+)", html)
    return [np.asarray(Image.open(BytesIO(b64decode(one)))) for one in found]


def test_a_repr_has_a_few_lines(run: Run) -> None:
    for one in (run, run.scores(), run.train_images, run.model()):
        assert 1 <= len(repr(one).splitlines()) <= 6
        assert max(map(len, repr(one).splitlines())) < 200
    assert "176,849 parameters" in repr(run.model())


def test_html_shows_queries_beside_their_proponents(run: Run) -> None:
    scores = run.scores()
    html = scores._repr_html_()
    shown = pictures(html)
    assert len(shown) == 3 * 7
    generated = run.query_images(str(run.folder / "generated"))
    np.testing.assert_array_equal(shown[7], generated.pixels([1])[0, ..., 0])
    best = scores.top(6)[1]
    np.testing.assert_array_equal(shown[8], run.train_images.pixels([best[0].position])[0, ..., 0])
    credits = scores.credit("label")
    assert f"{credits[0].share:.1%} ({credits[0].low:.1%}–{credits[0].high:.1%})" in html
    assert len(pictures(run.train_images._repr_html_())) == 10
    assert "60 generated" in run._repr_html_()


def test_ids_of_users_are_only_text_in_html() -> None:
    one = dtrak.Scores(np.ones((1, 1), np.float32), np.array(["<b>x</b>"]), np.array(["<i>"]), "d-trak")
    assert "<b>x" not in one._repr_html_()
    assert "<i>" not in one._repr_html_()


def test_plots_show_themselves_and_are_saved(run: Run, tmp_path: Path) -> None:
    figure = run.scores().plot(["seed-00007.png"], top=2, bottom=1)
    assert figure._repr_png_().startswith(b"\x89PNG")
    np.testing.assert_array_equal(
        figure.axes[0].images[0].get_array()[..., 0],  # type: ignore[index]
        run.query_images(str(run.folder / "generated")).pixels([7])[0, ..., 0],
    )
    figure.save(tmp_path / "one.svg")
    run.scores().plot(["seed-00007.png"], top=2, bottom=1).save(tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_scores_from_a_file_need_their_images(run: Run) -> None:
    scores = dtrak.Scores.load(SHIPPED / "scores.npz")
    with pytest.raises(UsageError, match="give train="):
        scores.plot()
    generated = run.query_images(str(run.folder / "generated"))
    assert scores.plot(1, train=run.train_images, query_images=generated).axes
    assert scores.plot_credit(by="label").axes


def test_the_damping_is_kept_with_the_scores_and_in_tables(run: Run, tmp_path: Path) -> None:
    used = run.scores().damping
    assert used is not None
    assert used.rule == "auto"
    assert 0 < used.kept < used.rank
    scores = run.scores()
    random = dtrak.Scores(scores.values, scores.train_ids, scores.query_ids, "random", scores.columns)
    save_scores(tmp_path / "both.npz", {"step-trak": scores, "random": random})
    found = load_scores(tmp_path / "both.npz")
    assert found["step-trak"].damping == used
    assert found["random"].damping is None
    head, line = scores.csv(1).splitlines()[:2]
    assert head == "query,rank,train,score,label,damping"
    assert float(line.split(",")[-1]) == pytest.approx(used.relative, rel=1e-5)


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", progress)
    with progress.progress_bar("features", 10, "images") as advance:
        advance(4)
        advance(6)
    assert "10/10" in capsys.readouterr().err
