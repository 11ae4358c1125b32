"""What scores answer: the strongest first, shares that add up, and a file that keeps everything."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrak.attribution.scores import Scores, load_scores, save_scores
from dtrak.errors import DtrakError, UsageError

VALUES = np.array([[0.5, -1, 2, 0], [3, 1, -2, -3]], dtype=np.float32)


def scores(method: str = "d-trak", factor: float = 1) -> Scores:
    columns = {
        "artist": np.array(["ada", "bo", "ada", "cy"]),
        "year": np.array([1900, 1901, 1902, 1903]),
        "note": np.array(["x", None, "z", 3], dtype=object),
    }
    return Scores(
        VALUES * np.float32(factor), np.array([10, 11, 12, 13]), np.array(["a.png", "b.png"]), method, columns
    )


def test_top_and_bottom_are_the_strongest_first_with_their_columns() -> None:
    top, bottom = scores().top(2), scores().bottom(2)
    assert [[match.id for match in row] for row in top] == [[12, 10], [10, 11]]
    assert [[match.id for match in row] for row in bottom] == [[11, 13], [13, 12]]
    assert top[0][0].score == 2
    assert top[0][0].position == 2
    assert top[0][0].columns == {"artist": "ada", "year": 1902, "note": "z"}
    assert len(scores().top(99)[0]) == 4


def test_credit_is_the_mean_share_of_positive_scores() -> None:
    credit = {one.group: one for one in scores().credit(by="artist")}
    assert credit["ada"].share == pytest.approx((2.5 / 2.5 + 3 / 4) / 2)
    assert credit["bo"].share == pytest.approx((0 + 1 / 4) / 2)
    assert credit["cy"].share == 0
    assert list(credit) == ["ada", "bo", "cy"]
    assert credit["ada"].low == pytest.approx(0.75)
    assert credit["ada"].high == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), queries=st.integers(1, 5), images=st.integers(1, 8), groups=st.integers(1, 3))
def test_credit_adds_up_and_lies_in_its_interval(seed: int, queries: int, images: int, groups: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(queries, images)).astype(np.float32)
    given_scores = Scores(
        values, np.arange(images), np.arange(queries), "trak", {"g": random.integers(groups, size=images)}
    )
    credit = given_scores.credit(by="g")
    with_credit = (values > 0).any(1).mean()
    assert sum(one.share for one in credit) == pytest.approx(with_credit)
    assert all(one.low - 1e-9 <= one.share <= one.high + 1e-9 for one in credit)


def test_credit_by_an_unknown_column_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'painter'.*artist, year, note"):
        scores().credit(by="painter")


def test_one_method_survives_the_disk(tmp_path: Path) -> None:
    scores().save(tmp_path / "scores.npz")
    found = Scores.load(tmp_path / "scores.npz")
    assert found.method == "d-trak"
    assert found.top(1)[1][0].columns == {"artist": "ada", "year": 1900, "note": "x"}
    assert found.columns["note"].tolist() == ["x", "", "z", "3"]
    with np.load(tmp_path / "scores.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["values"], VALUES)
        assert file["values"].dtype == np.float32
        assert file["train_ids"].tolist() == [10, 11, 12, 13]
        assert file["query_ids"].tolist() == ["a.png", "b.png"]


def test_shares_are_of_each_query() -> None:
    credit = scores().groups("artist")
    groups, shares = credit.names, credit.shares
    assert groups.tolist() == ["ada", "bo", "cy"]
    np.testing.assert_allclose(shares, [[1, 0, 0], [0.75, 0.25, 0]])


def test_self_influence_survives_the_disk_where_a_method_has_it(tmp_path: Path) -> None:
    own = np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)
    with_it, without = replace(scores(), self_influence=own), scores("random")
    save_scores(tmp_path / "one.npz", {"d-trak": with_it})
    save_scores(tmp_path / "two.npz", {"random": without, "d-trak": with_it})
    save_scores(tmp_path / "none.npz", {"random": without})
    np.testing.assert_array_equal(Scores.load(tmp_path / "one.npz").self_influence, own)
    two = load_scores(tmp_path / "two.npz")
    np.testing.assert_array_equal(two["d-trak"].self_influence, own)
    assert two["random"].self_influence is None
    assert Scores.load(tmp_path / "none.npz").self_influence is None
    with (
        np.load(tmp_path / "one.npz") as one,
        np.load(tmp_path / "two.npz") as both,
        np.load(tmp_path / "none.npz") as none,
    ):
        assert one["self_influence"].shape == (4,)
        assert both["self_influence"].shape == (2, 4)
        assert "self_influence" not in none


def test_several_methods_have_a_leading_axis(tmp_path: Path) -> None:
    path = tmp_path / "scores.npz"
    save_scores(path, {"trak": scores("trak"), "d-trak": scores("d-trak", 2)})
    with np.load(path) as file:
        assert file["values"].shape == (2, 2, 4)
        assert file["methods"].tolist() == ["trak", "d-trak"]
    np.testing.assert_array_equal(Scores.load(path, "d-trak").values, 2 * VALUES)
    assert list(load_scores(path)) == ["trak", "d-trak"]
    with pytest.raises(UsageError, match="trak, d-trak"):
        Scores.load(path)
    with pytest.raises(UsageError, match="gas"):
        Scores.load(path, "gas")


def test_files_that_are_no_scores_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.npz"):
        Scores.load(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    for name in ("text.npz", "other.npz"):
        with pytest.raises(DtrakError, match=name.replace(".", r"\.")):
            Scores.load(tmp_path / name)


def test_a_table_has_a_line_for_each_pair_the_strongest_first(tmp_path: Path) -> None:
    table = scores().to_pandas()
    assert list(table.columns) == ["query", "rank", "train", "score", "artist", "year", "note"]
    assert len(table) == 8
    first = table[table["query"] == "a.png"]
    assert first["train"].tolist() == [12, 10, 13, 11]
    assert first["rank"].tolist() == [1, 2, 3, 4]
    assert first["score"].tolist() == [2, 0.5, 0, -1]
    assert first["artist"].tolist() == ["ada", "ada", "cy", "bo"]
    scores().to_csv(tmp_path / "top.csv", top=1)
    assert (tmp_path / "top.csv").read_text() == (
        "query,rank,train,score,artist,year,note\na.png,1,12,2.0,ada,1902,z\nb.png,1,10,3.0,ada,1900,x\n"
    )
    save_scores(tmp_path / "both.csv", {"trak": scores("trak", 2), "d-trak": scores()})
    lines = (tmp_path / "both.csv").read_text().splitlines()
    assert lines[0].endswith(",method")
    assert len(lines) == 1 + 2 * 8
    assert lines[1] == "a.png,1,12,4.0,ada,1902,z,trak"
