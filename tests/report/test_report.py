"""The report of a run's folder, read back as a browser would: what it shows, and that it needs nothing else."""

import re
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dtrak.attribution.scores import Match
from dtrak.errors import UsageError
from dtrak.report import write_report
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from dtrak.wording import number
from report_runs import make_run, paintings


class Page(HTMLParser):
    """`shown` has (query, method, proponents or opponents, image id, score, picture) in the order of the page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text()
        self.shown: list[tuple[str, str, str, str, float, str]] = []
        self.lists: list[dict[str, str]] = []  # the attributes of each list of matches
        self.tags: list[str] = []
        self.links: list[str] = []
        found = re.findall(r"^\.(\S+) \{ background-image: url\((data:\S+)\); \}$", self.text, re.MULTILINE)
        self.images: dict[str, str] = dict(found)  # data URI by the picture's name
        assert len(found) == len(self.images)
        self.options: list[str] = []
        self.query = self.method = self.kind = self.title = self.picture = ""
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = {name: value or "" for name, value in attributes}
        self.links += [found[name] for name in ("src", "href") if name in found]
        self.query = found.get("data-id", self.query)
        classes = found.get("class", "").split()
        match tag:
            case "section":
                self.kind = classes[1] if classes[:1] == ["matches"] else ""
            case "div" if classes == ["by-method"]:
                self.method = found["data-method"]
                self.lists.append(found)
            case "span" if classes[:1] == ["thumbnail"] and len(classes) > 1:
                self.title, self.picture = found["title"], classes[1]
                assert self.picture in self.images
            case "data" if self.kind:
                image = self.title.removeprefix("Training image ").split(":")[0]
                self.shown.append((self.query, self.method, self.kind, image, float(found["value"]), self.picture))
            case "option":
                self.options.append(found.get("value", ""))


def decoded(data_uri: str) -> Image.Image:
    return Image.open(BytesIO(b64decode(data_uri.partition(",")[2])))


def rows(query: Any, method: str, kind: str, matches: list[Match]) -> list[tuple[str, str, str, str, float, str]]:
    return [(str(query), method, kind, str(m.id), m.score, f"t{m.position}") for m in matches]


def test_each_query_has_its_strongest_images_of_every_method(tmp_path: Path) -> None:
    run, scores = make_run(tmp_path, load_recipe("digits"), "digits:validation", 60, ("d-trak", "trak"))
    page = Page(write_report(run))

    expected = []
    for q, query in enumerate(scores["trak"].query_ids):
        for method, one in scores.items():
            expected += rows(query, method, "proponents", one.top(5)[q])
            expected += rows(query, method, "opponents", one.bottom(3)[q])
    assert page.shown == expected
    assert {picture for *_, picture in page.shown} | {f"q{q}" for q in range(60)} == page.images.keys()
    assert set(page.options) >= {"0", "9", "d-trak", "trak", "score", "class"}
    assert "selfInfluence" not in page.options  # as there is no self-influence
    assert page.text.count('type="radio"') == 2


def test_small_images_are_embedded_pixel_by_pixel(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, load_recipe("digits"), "digits:validation", 10)
    page = Page(write_report(run))

    assert sum(name.startswith("q") for name in page.images) == 10
    for name, uri in page.images.items():
        images = run.train_images if name[0] == "t" else run.query_images("digits:validation")
        np.testing.assert_array_equal(np.asarray(decoded(uri)), images.pixels([int(name[1:])])[0, ..., 0])
    assert 'class="pixelated"' in page.text
    assert 'type="radio"' not in page.text


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, load_recipe("digits"), "digits:validation", 60)
    page = Page(write_report(run))
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"https?://|url\((?!data:image/)|@import|<link", page.text)
    assert len(page.text) < 500_000


def test_large_pictures_become_thumbnails(tmp_path: Path) -> None:
    recipe = paintings(tmp_path, 12, (300, 200))
    run, _ = make_run(tmp_path / "run", recipe, recipe.data.train, 3)
    page = Page(write_report(run))
    sizes = {(name[0], decoded(uri).format, decoded(uri).size) for name, uri in page.images.items()}
    assert sizes == {("t", "WEBP", (128, 85)), ("q", "WEBP", (256, 171))}
    assert "aspect-ratio: 300 / 200" in page.text
    assert 'class="pixelated"' not in page.text
    assert len(page.text) < 100_000


def test_what_users_write_is_only_text(tmp_path: Path) -> None:
    recipe = paintings(tmp_path, 12, (16, 16))
    run, _ = make_run(tmp_path / "run", recipe, recipe.data.train, 3)
    page = Page(write_report(run))
    assert page.tags.count("script") == 5  # four of our own, and numbers
    assert "b" not in page.tags
    assert "&lt;script&gt;alert(" in page.text
    assert "af Klint &amp; &lt;b&gt;co&lt;/b&gt;" in page.text


def test_credit_is_shown_for_the_columns_that_exist(tmp_path: Path) -> None:
    recipe = paintings(tmp_path, 12, (16, 16))
    run, scores = make_run(tmp_path / "run", recipe, recipe.data.train, 8)
    page = write_report(run).read_text()
    assert "Credit by artist" in page
    assert "Credit by label" not in page
    for credit in scores["d-trak"].credit("artist"):
        assert f'<td class="value">{100 * credit.share:.1f}%</td>' in page
        assert f'<td class="range">{100 * credit.low:.1f}–{100 * credit.high:.1f}</td>' in page


def test_at_most_200_queries_are_shown_and_the_page_says_so(tmp_path: Path) -> None:
    run, scores = make_run(tmp_path, load_recipe("digits"), "digits:validation", 797)
    page = Page(write_report(run))
    shown = dict.fromkeys(query for query, *_ in page.shown)
    assert list(shown) == list(map(str, scores["d-trak"].query_ids[:200]))
    assert "The first 200 of 797 pictures are shown" in page.text


def test_a_negative_score_makes_no_proponent(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, load_recipe("digits"), "digits:validation", 2, shift=-100)
    page = Page(write_report(run))
    assert {kind for _, _, kind, *_ in page.shown} == {"opponents"}
    assert "No training image has a positive score." in page.text


def test_without_scores_the_error_says_how_to_make_them(tmp_path: Path) -> None:
    run = Run(tmp_path / "mine", load_recipe("digits"))
    with pytest.raises(UsageError, match=r"mine has no scores yet: `dtrak attribute .*mine`"):
        write_report(run)


def test_a_query_that_is_gone_is_named(tmp_path: Path) -> None:
    recipe = paintings(tmp_path, 12, (16, 16))
    queries = tmp_path / "queries"
    queries.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (16, 16)).save(queries / name)
    run, _ = make_run(tmp_path / "run", recipe, str(queries), 2)
    (queries / "b.png").unlink()
    with pytest.raises(UsageError, match=r"b\.png"):
        write_report(run)


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "+0.500"), (-123.4, "−123"), (1234.0, "+1.23×10³"), (-1.2345e-12, "−1.23×10⁻¹²")]
)
def test_numbers_have_three_digits_and_a_sign(value: float, text: str) -> None:
    assert number(value) == text
