"""The report of a run's folder, read back as a browser would: what it shows, and that it needs nothing else."""

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dtrak.errors import UsageError
from dtrak.files import write_json, write_text
from dtrak.recipes import Recipe, dump_recipe, load_recipe
from dtrak.report import write_report
from dtrak.report.wording import number
from dtrak.runs import Run
from dtrak.scores import Match, Scores, save_scores

HOSTILE = '</title><script>alert("caption")</script>'


class Page(HTMLParser):
    """`shown` has (query, method, proponents or opponents, image id, score, href) in the order of the page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text()
        self.shown: list[tuple[str, str, str, str, float, str]] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.images: dict[str, str] = {}  # data URI by the symbol's id
        self.options: list[str] = []
        self.query = self.method = self.kind = self.title = self.href = self.symbol = ""
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = {name: value or "" for name, value in attributes}
        self.links += [found[name] for name in ("src", "href") if name in found]
        self.query = found.get("data-id", self.query)
        self.method = found.get("data-method", self.method)
        match tag:
            case "section":
                classes = found.get("class", "")
                self.kind = classes.removeprefix("matches ") if classes.startswith("matches") else ""
            case "title":
                self.title = ""
            case "use":
                self.href = found["href"]
            case "data" if self.kind:
                image = self.title.removeprefix("Training image ").split(":")[0]
                self.shown.append((self.query, self.method, self.kind, image, float(found["value"]), self.href))
            case "symbol":
                self.symbol = found["id"]
            case "image":
                assert self.symbol not in self.images
                self.images[self.symbol] = found["href"]
            case "option":
                self.options.append(found["value"])

    def handle_data(self, data: str) -> None:
        self.title += data if self.tags and self.tags[-1] == "title" else ""


def make_run(
    folder: Path, recipe: Recipe, queries: str, count: int, methods: tuple[str, ...] = ("d-trak",), shift: float = 0.0
) -> tuple[Run, dict[str, Scores]]:
    """A run with random scores of its first `count` queries, moved by `shift`."""
    write_text(folder / "recipe.yaml", dump_recipe(recipe))
    run = Run.open(folder)
    train, ids = run.train_images, run.query_images(queries).ids[:count]
    random = np.random.default_rng(0)
    scores = {}
    for method in methods:
        values = random.normal(shift, size=(len(ids), len(train))).astype(np.float32)
        scores[method] = Scores(values, train.ids, ids, method, train.columns)
    save_scores(folder / "scores.npz", scores)
    projection = {"projection": "sketch", "projection_dim": 4096, "damping": 0.1, "seed": 0}
    made_by = {"queries": queries, "method": list(methods), "objective": None, "timesteps": 10, "seconds": 134.2}
    write_json(folder / "attribution.json", made_by | projection)
    return run, scores


def paintings(folder: Path, count: int, size: tuple[int, int]) -> Recipe:
    """A recipe whose training images are so many in colour, with artists and a hostile caption."""
    random = np.random.default_rng(0)
    rows = []
    (folder / "art").mkdir(parents=True)
    for n in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / "art" / f"{n:03d}.png")
        artist = ("Klee", "af Klint & <b>co</b>")[n % 2]
        rows.append({"file_name": f"{n:03d}.png", "artist": artist, "caption": HOSTILE})
    (folder / "art" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    content: dict[str, Any] = load_recipe("digits").model_dump() | {"data": {"train": str(folder / "art")}}
    return Recipe.model_validate(content | {"summary": HOSTILE})


def decoded(data_uri: str) -> Image.Image:
    return Image.open(BytesIO(b64decode(data_uri.partition(",")[2])))


def rows(query: Any, method: str, kind: str, matches: list[Match]) -> list[tuple[str, str, str, str, float, str]]:
    return [(str(query), method, kind, str(m.id), m.score, f"#t{m.position}") for m in matches]


def test_each_query_has_its_strongest_images_of_every_method(tmp_path: Path) -> None:
    run, scores = make_run(tmp_path, load_recipe("digits"), "digits:validation", 60, ("d-trak", "trak"))
    page = Page(write_report(run))

    expected = []
    for q, query in enumerate(scores["trak"].query_ids):
        for method, one in scores.items():
            expected += rows(query, method, "proponents", one.top(5)[q])
            expected += rows(query, method, "opponents", one.bottom(3)[q])
    assert page.shown == expected
    shown = {href for *_, href in page.shown} | {f"#q{q}" for q in range(60)}
    assert shown == {f"#{name}" for name in page.images}
    assert set(page.options) >= {"0", "9", "d-trak", "trak", "score", "class"}
    assert "own" not in page.options  # as there is no self-influence
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
    assert all(link.startswith(("#", "data:image/")) for link in page.links)
    assert not re.search(r"https?://|url\(|@import|<link", page.text)
    assert len(page.text) < 500_000


def test_large_pictures_become_thumbnails(tmp_path: Path) -> None:
    recipe = paintings(tmp_path, 12, (300, 200))
    run, _ = make_run(tmp_path / "run", recipe, recipe.data.train, 3)
    page = Page(write_report(run))
    sizes = {(name[0], decoded(uri).format, decoded(uri).size) for name, uri in page.images.items()}
    assert sizes == {("t", "WEBP", (128, 85)), ("q", "WEBP", (256, 171))}
    assert 'viewBox="0 0 300 200"' in page.text
    assert 'class="pixelated"' not in page.text
    assert len(page.text) < 100_000


def test_what_users_write_is_only_text(tmp_path: Path) -> None:
    recipe = paintings(tmp_path, 12, (16, 16))
    run, _ = make_run(tmp_path / "run", recipe, recipe.data.train, 3)
    page = Page(write_report(run))
    assert page.tags.count("script") == 4  # three of our own, and numbers
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
