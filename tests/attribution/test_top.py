"""Only the strongest scores are held: the same images, scores and credit as from the whole matrix."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dtrak
import tiny
from commands import dtrak as command
from dtrak.attribution.scores import Scores, load_scores, save_scores
from dtrak.attribution.top_scores import TopScores
from dtrak.errors import DtrakError, UsageError
from dtrak.images.images import load_images

TRAIN = load_images("digits:train").first(40)
QUERIES = load_images("digits:validation").first(5)


def scores(top: int | None = None, **settings: object) -> dict[str, Scores]:
    return dtrak.attribute(
        tiny.unet(),
        TRAIN,
        QUERIES,
        ["d-trak", "step-trak", "random", "raw-pixel-cosine"],
        timesteps=2,
        projection_dim=64,
        parameters="conv_out",
        top=top,
        **settings,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Scores], Path]:
    cache = tmp_path_factory.mktemp("cache")
    return scores(cache=cache), cache


@pytest.mark.parametrize("rows", [1, 2, 5])  # how many queries are in memory at a time
def test_the_strongest_are_those_of_the_whole_matrix(
    whole: tuple[dict[str, Scores], Path], rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtrak.attribution.answer.MATRIX_BYTES", 4 * len(TRAIN) * rows)
    every, cache = whole
    held = scores(top=6, cache=cache)
    save_scores(tmp_path / "top.npz", held)
    for found in (held, load_scores(tmp_path / "top.npz")):
        assert [*found] == [*every]
        for name, one in found.items():
            full = every[name]
            assert one.values.shape == one.train_ids.shape == (5, 12)
            assert one.images == 40
            for side in ("top", "bottom"):
                for mine, theirs in zip(getattr(one, side)(6), getattr(full, side)(6), strict=True):
                    assert [(a.id, a.position, a.columns) for a in mine] == [
                        (b.id, b.position, b.columns) for b in theirs
                    ]
                    np.testing.assert_allclose([a.score for a in mine], [b.score for b in theirs], rtol=1e-4)
            for mine, theirs in zip(one.credit("label"), full.credit("label"), strict=True):
                assert mine.group == theirs.group
                assert (mine.share, mine.low) == pytest.approx((theirs.share, theirs.low), rel=1e-5)
            single, alone = one.of_queries([3]), full.of_queries([3])
            np.testing.assert_allclose(single.groups("label").intervals, alone.groups("label").intervals, atol=1e-5)
            np.testing.assert_array_equal(one.groups("label").sizes, full.groups("label").sizes)
            np.testing.assert_array_equal(one.to_pandas()["train"], full.to_pandas(top=6)["train"])


def test_more_than_there_are_is_all(whole: tuple[dict[str, Scores], Path]) -> None:
    found = scores(top=30, cache=whole[1])["d-trak"]
    assert found.values.shape == (5, 60)
    assert len(found.top(100)[0]) == 30
    assert scores(top=50, cache=whole[1])["d-trak"].values.shape == (5, 80)


@pytest.mark.parametrize("each", [1, 3, 7, 20])
def test_equal_scores_keep_the_order_of_the_images(each: int) -> None:
    values = np.random.default_rng(0).integers(-2, 3, size=(6, 30)).astype(np.float32)
    holder = TopScores(each, {})
    holder.add(values)
    kept, held = holder.held()
    ids = np.arange(30)
    full = Scores(values, ids, np.arange(6), "m")
    mine = Scores(kept, ids[held.positions], np.arange(6), "m", held=held)
    assert mine.top(each) == full.top(each)
    assert mine.bottom(each) == full.bottom(each)


def test_a_column_with_too_many_values_has_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtrak.attribution.top_scores.MOST_GROUPS", 4)
    values, names = np.ones((1, 9), np.float32), np.arange(9)
    holder = TopScores(2, {"name": names, "label": names % 3})
    holder.add(values)
    kept, held = holder.held()
    at = {"name": names[held.positions], "label": names[held.positions] % 3}
    found = Scores(kept, names[held.positions], np.arange(1), "m", at, held=held)
    assert found.credit_columns == ["label"]
    assert [one.share for one in found.credit("label")] == pytest.approx([1 / 3] * 3)
    with pytest.raises(UsageError, match=r"'name' has more than .* make scores without --top"):
        found.credit("name")
    with pytest.raises(UsageError, match="no column 'artist': there is name, label"):
        found.credit("artist")


@pytest.mark.parametrize(("name", "damage"), [
    ("positions", np.zeros((5, 12), np.int64) - 1),
    ("positions", np.zeros((5, 11), np.int64)),
    ("images", np.array(3.5)),
    ("credit.sums.label", np.zeros((4, 10))),
    ("credit.sums.label", np.full((5, 10), np.nan)),
    ("train_ids", np.zeros(12, np.int64)),
])  # fmt: skip
def test_a_damaged_file_is_refused(
    whole: tuple[dict[str, Scores], Path], tmp_path: Path, name: str, damage: np.ndarray
) -> None:
    path = tmp_path / "top.npz"
    found = scores(top=6, cache=whole[1])["d-trak"]
    found.save(path)
    arrays = dict(np.load(path))
    assert name in arrays
    np.savez(path, **{**arrays, name: damage})
    with pytest.raises(DtrakError, match=str(path)):
        load_scores(path)
    replace(found).save(path)
    assert load_scores(path)


def test_from_the_command_line_into_the_report(own_run: Path) -> None:
    done = command("attribute", own_run, "--top", "7", cwd=own_run.parent)
    assert done.code == 0, done.err
    assert np.load(own_run / "scores.npz")["values"].shape == (4, 14)
    table = own_run / "top.csv"
    assert command("attribute", own_run, "--top", "7", "--out", table, cwd=own_run.parent).code == 0
    lines = list(csv.DictReader(table.open()))
    assert len(lines) == 4 * 7
    assert [line["rank"] for line in lines[:7]] == [str(rank) for rank in range(1, 8)]
    assert command("report", own_run, cwd=own_run.parent).code == 0
    page = (own_run / "report.html").read_text()
    assert "1,000 from digits:train" in page
    refused = command("attribute", own_run, "--top", "0", cwd=own_run.parent)
    assert refused.code == 2
    assert "'0' is not a whole number from 1 on" in refused.error
