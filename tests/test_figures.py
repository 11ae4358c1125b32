"""Figures say what they were given, fit on a page, and are written whole in the format of their ending."""

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from dtrak.errors import UsageError
from dtrak.report.figures import DPI, IN_A_ROW, WIDTH, boxplots, save_figure, side_by_side

NAMES = ["random", "trak", "d-trak", "journey-trak-ensemble"]


def panels(count: int = 20) -> dict[str, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    return {label: {name: random.gamma(5, size=count) for name in NAMES} for label in ("ℓ2 distance", "cosine")}


def pictures(count: int, shape: tuple[int, int, int] = (8, 8, 1)) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {name: random.integers(0, 256, (count, *shape), dtype=np.uint8) for name in NAMES}


def captions(count: int) -> list[str]:
    return [f"seed {index}" for index in range(count)]


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
        low, high = axes.get_xlim()
        ticks = [one for one in axes.get_xticklabels() if low <= one.get_position()[0] <= high]
        of_axes = [axes.title, axes.xaxis.label, *ticks, *axes.get_yticklabels()] * axes.axison
        for text in [*axes.texts, *of_axes]:
            if text.get_text() and text.get_visible():
                box = text.get_window_extent(renderer).transformed(figure.transFigure.inverted())
                found.append((text.get_text(), box.x0, box.y0, box.x1, box.y1))
    return found


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
    ],
    ids=["boxplots", "one query", "three bands", "one picture"],
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


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".PDF", b"%PDF")])
def test_the_ending_decides_the_format_and_the_bytes_are_always_the_same(
    tmp_path: Path, ending: str, start: bytes
) -> None:
    first, second = tmp_path / f"first{ending}", tmp_path / "new" / f"second{ending}"
    save_figure(boxplots(panels()), first)
    save_figure(boxplots(panels()), str(second))
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"figure\.gif: its ending has to be one of \.pdf, \.png"):
        save_figure(boxplots(panels()), tmp_path / "figure.gif")
    assert not list(tmp_path.iterdir())
