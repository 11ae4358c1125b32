"""Figures say what they were given, fit on a page, and are written whole in the format of their ending."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import dtrak
from dtrak.attribution.scores import Scores
from dtrak.attribution.self_influence import self_influence_by_class
from dtrak.errors import UsageError
from dtrak.figures import (
    boxplots,
    credit,
    lds_bars,
    lds_curve,
    proponents_and_opponents,
    save_figure,
    self_influence,
    side_by_side,
)
from dtrak.figures.picture_sheets import IN_A_ROW
from dtrak.figures.style import DPI, WIDTH
from dtrak.report.curves import Curve, Sample
from dtrak.report.measured import MethodLDS
from dtrak.wording import number

NAMES = ["random", "trak", "d-trak", "journey-trak-ensemble"]
TRAIN = dtrak.load_images("digits:train").select(range(200))
QUERIES = dtrak.load_images("digits:validation").select([5, 3, 8])


def panels(count: int = 20) -> dict[str, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    return {label: {name: random.gamma(5, size=count) for name in NAMES} for label in ("ℓ2 distance", "cosine")}


def pictures(count: int, shape: tuple[int, int, int] = (8, 8, 1)) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {name: random.integers(0, 256, (count, *shape), dtype=np.uint8) for name in NAMES}


def captions(count: int) -> list[str]:
    return [f"seed {index}" for index in range(count)]


def scores(method: str = "d-trak", seed: int = 0) -> Scores:
    random = np.random.default_rng(seed)
    values = random.normal(size=(len(QUERIES), len(TRAIN))).astype(np.float32)
    own = random.random(len(TRAIN)).astype(np.float32)
    return Scores(values, TRAIN.ids, QUERIES.ids, method, TRAIN.columns, own)


def measured() -> dict[str, MethodLDS]:
    return {
        name: MethodLDS(lds, 1.5, lds - 3, lds + 2.5, 0.1, [])
        for name, lds in zip(NAMES, (-0.7, 30, 45, 50), strict=True)
    }


def curve(log: bool = True, std: float | None = 1.0) -> Curve:
    lines = {
        name: [Sample(x, 20 + 5 * place + x**0.5, std, chosen=x == 5) for x in (2.0, 5.0, 10.0, 100.0)]
        for place, name in enumerate(NAMES)
    }
    return Curve("K", "K, timesteps averaged over", lines, "", log, 60.0)


def rendered(figure: Figure) -> np.ndarray:
    """[H, W, 3]."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return np.asarray(Image.open(buffer).convert("RGB"))


def boxes_of_text(figure: Figure) -> list[tuple[str, float, float, float, float]]:
    """Every text that shows, with its left, bottom, right and upper edge in parts of the figure."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    found = []
    for axes in figure.axes:
        (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        ticks = [one for one in axes.get_xticklabels() if left <= one.get_position()[0] <= right]
        ticks += [one for one in axes.get_yticklabels() if bottom <= one.get_position()[1] <= top]
        of_axes = [axes.title, axes.xaxis.label, axes.yaxis.label, *ticks] * axes.axison
        found += [*axes.texts, *of_axes]
    found += [text for legend in figure.legends for text in legend.get_texts()]
    boxes = []
    for text in found:
        if text.get_text() and text.get_visible():
            box = text.get_window_extent(renderer).transformed(figure.transFigure.inverted())
            boxes.append((text.get_text(), box.x0, box.y0, box.x1, box.y1))
    return boxes


def test_boxes_reach_from_quartile_to_quartile() -> None:
    given = panels()
    figure = boxplots(given)
    assert figure.get_figwidth() == WIDTH
    for axes, (label, by_name) in zip(figure.axes, given.items(), strict=True):
        assert axes.get_xlabel() == label
        shown = [text.get_text() for text in axes.texts]
        for box, values in zip(axes.patches, by_name.values(), strict=True):
            corners = box.get_path().vertices[:, 0]
            assert (corners.min(), corners.max()) == pytest.approx(tuple(np.percentile(values, [25, 75])))
            assert f"{np.median(values):#.3g}" in shown
        points = [np.sort(collection.get_offsets()[:, 0]) for collection in axes.collections]
        for found, values in zip(points, by_name.values(), strict=True):
            np.testing.assert_allclose(found, np.sort(values))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == NAMES


@pytest.mark.parametrize(
    "figure",
    [
        boxplots(panels()),
        boxplots(panels(1)),
        side_by_side(pictures(30), captions(30)),
        side_by_side(pictures(1), ["seed 7"]),
        lds_bars(measured(), 55.0),
        lds_curve(curve()),
        credit(scores().credit("label"), dict.fromkeys(range(10), 0.1)),
        proponents_and_opponents({name: scores(name) for name in NAMES}, TRAIN, QUERIES),
        self_influence(self_influence_by_class(scores()), TRAIN),
    ],
    ids=[
        "boxplots",
        "one query",
        "three bands",
        "one picture",
        "lds bars",
        "lds curve",
        "credit",
        "proponents",
        "self-influence",
    ],
)
def test_no_text_leaves_the_page_or_covers_another(figure: Figure) -> None:
    texts = boxes_of_text(figure)
    for index, (text, left, bottom, right, top) in enumerate(texts):
        assert min(left, bottom) >= -0.005, text
        assert max(right, top) <= 1.005, text
        for other, left2, bottom2, right2, top2 in texts[:index]:
            assert min(right, right2) <= max(left, left2) or min(top, top2) <= max(bottom, bottom2), (text, other)


@pytest.mark.parametrize(("count", "shape"), [(3, (8, 8, 1)), (IN_A_ROW + 2, (8, 8, 3)), (2, (6, 12, 3))])
def test_every_picture_stands_in_its_row_below_its_caption(count: int, shape: tuple[int, int, int]) -> None:
    given = pictures(count, shape)
    figure = side_by_side(given, captions(count))
    axes = figure.axes[0]
    page = rendered(figure)
    height, width, _ = page.shape
    to_page = axes.transData + figure.transFigure.inverted()
    texts = {text.get_text(): text.get_position() for text in axes.texts}
    shown = iter(axes.images)
    for index in range(count):
        for name in NAMES:
            image = next(shown)
            left, right, bottom, top = image.get_extent()
            assert texts[f"seed {index}"][0] == pytest.approx((left + right) / 2)
            assert (right - left) / (bottom - top) == pytest.approx(shape[1] / shape[0])
            x, y = to_page.transform((left + (right - left) * 0.5 / shape[1], top + (bottom - top) * 0.5 / shape[0]))
            corner = page[round((1 - y) * height), round(x * width)]
            np.testing.assert_array_equal(corner, np.broadcast_to(given[name][index, 0, 0], 3))


def shown(figure: Figure) -> list[tuple[np.ndarray, str]]:
    """The pictures of a sheet from left to right, row by row, each with what stands below it."""
    axes = figure.axes[0]
    below = {(round(x, 3), round(y, 3)): text.get_text() for text in axes.texts for x, y in [text.get_position()]}
    found = []
    for image in axes.images:
        left, right, bottom, _ = image.get_extent()
        found.append((np.asarray(image.get_array()), below[round((left + right) / 2, 3), round(bottom + 0.03, 3)]))
    return found


def assert_shows(found: tuple[np.ndarray, str], pixels: np.ndarray, caption: str) -> None:
    np.testing.assert_array_equal(found[0], np.broadcast_to(pixels, found[0].shape))
    assert found[1] == caption


def test_each_query_stands_beside_its_proponents_and_opponents() -> None:
    given = scores()
    found = shown(proponents_and_opponents(given, TRAIN, QUERIES, top=4, bottom=2))
    assert len(found) == 3 * (1 + 4 + 2)
    rows = [found[start : start + 7] for start in range(0, 21, 7)]
    for q, (row, top, bottom) in enumerate(zip(rows, given.top(4), given.bottom(2), strict=True)):
        assert_shows(row[0], QUERIES.pixels([q])[0], "")
        for one, match in zip(row[1:], top + bottom, strict=True):
            assert_shows(one, TRAIN.pixels([match.position])[0], number(match.score))


def test_only_the_queries_asked_for_are_shown() -> None:
    given = scores()
    found = shown(proponents_and_opponents(given, TRAIN, QUERIES.select([2]), top=1, bottom=1))
    assert len(found) == 3
    assert_shows(found[0], QUERIES.pixels([2])[0], "")
    assert found[1][1] == number(given.top(1)[2][0].score)
    other = dtrak.load_images("digits:validation").select([40])
    with pytest.raises(UsageError, match=r"there are no scores of .* from digits:validation"):
        proponents_and_opponents(given, TRAIN, other)


def test_methods_stand_below_each_other() -> None:
    by_method = {"trak": scores("trak", 1), "d-trak": scores("d-trak", 2)}
    figure = proponents_and_opponents(by_method, TRAIN, QUERIES)
    found = shown(figure)
    assert len(found) == 3 * (1 + 2 * 8)
    assert_shows(found[9], TRAIN.pixels([by_method["d-trak"].top(1)[0][0].position])[0], found[9][1])
    names = [text.get_text() for text in figure.axes[0].texts]
    assert names.count("trak") == names.count("d-trak") == 3


def test_the_ends_of_self_influence_are_shown_by_class() -> None:
    given = scores()
    found = shown(self_influence(self_influence_by_class(given, each=2), TRAIN))
    own, labels = given.self_influence, TRAIN.columns["label"]
    assert own is not None
    assert len(found) == 10 * 4
    for label in range(10):
        rising = sorted(np.flatnonzero(labels == label), key=lambda n: own[n])
        for one, n in zip(found[4 * label :], [rising[-1], rising[-2], rising[0], rising[1]], strict=False):
            np.testing.assert_array_equal(one[0][..., :1], TRAIN.pixels([n])[0])


def test_without_self_influence_the_method_is_named() -> None:
    without = Scores(scores().values, TRAIN.ids, QUERIES.ids, "gradient-dot", TRAIN.columns)
    with pytest.raises(UsageError, match="gradient-dot has no self-influence"):
        without.plot_self_influence(train=TRAIN)


def test_bars_are_as_long_as_the_lds_and_the_ceiling_is_marked() -> None:
    figure = lds_bars(measured(), 55.0)
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [one.lds for one in measured().values()]
    texts = [text.get_text() for text in axes.texts]
    assert {"−0.7 ± 1.5", "50.0 ± 1.5", "noise ceiling"} <= set(texts)
    assert any(list(line.get_xdata()) == [55.0, 55.0] for line in axes.lines)
    assert "noise ceiling" not in [text.get_text() for text in lds_bars(measured()).axes[0].texts]


@pytest.mark.parametrize(("log", "std"), [(True, 1.0), (False, None)])
def test_curves_go_through_their_samples(log: bool, std: float | None) -> None:
    given = curve(log, std)
    axes = lds_curve(given).axes[0]
    lines = {tuple(line.get_ydata()): tuple(line.get_xdata()) for line in axes.lines}
    for samples in given.lines.values():
        assert lines[tuple(sample.lds for sample in samples)] == tuple(sample.x for sample in samples)
    assert axes.get_xscale() == ("log" if log else "linear")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "5", "10", "100"]


def test_credit_is_shown_with_interval_and_share_of_the_training_images() -> None:
    credits = scores().credit("label")
    axes = credit(credits, {credits[0].group: 0.25}, groups=7).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([100 * one.share for one in credits[:7]])
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(one.group) for one in credits[:7]]
    assert [list(line.get_xdata()) for line in axes.lines] == [[25.0, 25.0]]


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".PDF", b"%PDF")])
def test_the_ending_decides_the_format_and_the_bytes_are_always_the_same(
    tmp_path: Path, ending: str, start: bytes
) -> None:
    first, second = tmp_path / f"first{ending}", tmp_path / "new" / f"second{ending}"
    save_figure(boxplots(panels()), first)
    save_figure(boxplots(panels()), str(second))
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda: lds_bars(measured()),
        lambda: lds_curve(curve()),
        lambda: proponents_and_opponents(scores(), TRAIN, QUERIES),
    ],
    ids=["bars", "curve", "proponents"],
)
def test_letters_stay_letters_in_a_pdf(tmp_path: Path, make: Callable[[], Figure]) -> None:
    save_figure(make(), tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/Subtype /Type0" in content  # TrueType, not outlines
    assert b"/Type3" not in content


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"figure\.gif: its ending has to be one of \.pdf, \.png"):
        save_figure(boxplots(panels()), tmp_path / "figure.gif")
    assert not list(tmp_path.iterdir())
