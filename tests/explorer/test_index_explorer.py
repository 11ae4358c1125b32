"""`dtrak serve INDEX`: an uploaded picture gets the strongest training images with exact scores, without a run."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import dtrak
from commands import dtrak as command
from dtrak.images.images import load_images
from pictures_on_disk import save_image
from serving import Server, colourful, served

pytest_plugins = ["browser"]
OPTIONS = ("--method", "d-trak", "--timesteps", "2", "--projection-dim", "96", "--parameters", "conv_out")
COUNT = 150
expect.set_options(timeout=30_000)  # on a busy machine


@pytest.fixture(scope="module")
def home(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, their features, scores of two pictures, and an index."""
    folder = tmp_path_factory.mktemp("served")
    digits = load_images("digits:train")
    for row, pixels in enumerate(digits.pixels(range(COUNT))):
        save_image(folder / "images" / str(digits.columns["label"][row]) / f"{row:03d}.png", pixels[..., 0])
    for row, pixels in enumerate(load_images("digits:validation").pixels(range(2))):
        save_image(folder / "asked" / f"{row}.png", pixels[..., 0])
    shutil.copytree(finished_run / "model", folder / "model")
    asked = ("--model", "model", "--train", "images", "--queries", "asked", "--out", "scores.npz", "--cache", "cache")
    for arguments in (("attribute", *asked, *OPTIONS), ("index", "--cache", "cache", "--out", "index")):
        done = command(*arguments, cwd=folder)
        assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with served(home / "index") as started:
        yield started


def uploaded(server: Server, home: Path, number: int) -> str:
    return server.answered(server.ask(picture=("x.png", (home / "asked" / f"{number}.png").read_bytes())))


def test_an_upload_finds_the_strongest_with_their_exact_scores(server: Server, home: Path) -> None:
    about = server.get("run")
    assert about["index"] is True
    assert about["train"]["count"] == COUNT
    exact = dtrak.Scores.load(home / "scores.npz")
    for number in range(2):
        id_ = uploaded(server, home, number)
        answer = server.get("answer", query=id_, count=20)
        wanted = exact.top(20)[number]
        assert [one["id"] for one in answer["proponents"]] == [one.id for one in wanted]
        np.testing.assert_allclose(
            [one["score"] for one in answer["proponents"]], [one.score for one in wanted], rtol=2e-3
        )
        first = answer["proponents"][0]
        assert first["columns"] == {"label": wanted[0].columns["label"]}
        shown = server.client.get(f"/images/small/train/{first['number']}")
        stored = Image.open(home / "images" / first["id"])
        np.testing.assert_array_equal(Image.open(io.BytesIO(shown.content)), stored)
        lines = list(csv.DictReader(io.StringIO(server.get("scores.csv", query=id_))))
        assert [line["train"] for line in lines[:20]] == [one.id for one in wanted]
    assert {one["id"] for one in server.get("queries")["items"]} >= {id_}


def test_pictures_are_still_there_after_a_restart_and_in_a_new_index(home: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(home, tmp_path / "own"))
    for path in (*(own / "cache/questions").glob("*.json"), own / "index/index.json"):
        path.write_text(path.read_text().replace(str(home), str(own)))
    with served(own / "index") as first:
        id_ = uploaded(first, own, 0)
        answer = first.get("answer", query=id_)
    assert command("index", "--cache", "cache", "--out", "index", cwd=own).code == 0
    with served(own / "index") as second:
        again = second.get("answer", query=id_)
        assert [one["id"] for one in again["proponents"]] == [one["id"] for one in answer["proponents"]]


def test_what_an_index_cannot_do_is_refused(server: Server, home: Path, tmp_path: Path) -> None:
    response = server.ask(seed=3)
    assert response.status_code == 422
    assert "an index takes pictures, and draws none" in response.json()["error"]
    assert server.client.get(f"/api/transpose?train={COUNT}").status_code == 404
    assert server.client.get("/api/damping").status_code == 404
    assert server.client.get(f"/images/small/train/{COUNT}").status_code == 404
    assert server.client.get("/api/answer?query=nobody").status_code == 404
    refused = command("serve", "index", "--no-browser", "--port", 0, "--method", "trak", cwd=home)
    assert "index is an index, whose settings are fixed: leave out the options of scoring" in refused.error


def test_images_that_vanished_are_named(home: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(home, tmp_path / "own"))
    path = own / "index/index.json"
    path.write_text(path.read_text().replace(str(home), str(own)))
    start = ("serve", "index", "--no-browser", "--port", 0)
    lost = next((own / "images").glob("*/*.png"))
    lost.unlink()
    name = lost.relative_to(own / "images").as_posix()
    message = command(*start, cwd=own).error
    assert message == f"the images of index are not where they were: {own / 'images'} has no image {name} any more"
    shutil.rmtree(own / "images")
    assert (
        f"the images of index are not where they were: no images at '{own / 'images'}'"
        in command(*start, cwd=own).error
    )
    about = json.loads(path.read_text())
    about["segments"][0]["images"]["source"] = "given from Python: Images"
    path.write_text(json.dumps(about))
    assert "index does not say where its images are: make it again with `dtrak index`" in command(*start, cwd=own).error


def test_in_a_browser(page: Page, server: Server, home: Path) -> None:
    from browser import assert_accessible, scrolls_sideways  # which pytest has to load first

    page.goto(f"{server.url}#ask")
    expect(page.get_by_role("navigation", name="Sections").get_by_role("link")).to_have_text(
        ["Pictures", "New picture"]
    )
    expect(page.get_by_text("Let the model draw a picture")).to_have_count(0)
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": colourful(40)})
    expect(page.locator("h2")).to_contain_text("Picture upload")
    expect(page.locator(".matches.proponents li")).to_have_count(10)
    expect(page.locator(".matches.opponents")).to_have_count(0)
    expect(page.get_by_text(f"The strongest of {COUNT} training images, with their exact scores.")).to_be_visible()
    assert_accessible(page)
    scores = [float(one.get_attribute("value") or "nan") for one in page.locator(".matches data").all()]
    assert scores == sorted(scores, reverse=True)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".matches.proponents li")).to_have_count(30)
    page.set_viewport_size({"width": 390, "height": 800})
    assert not scrolls_sideways(page)
    page.locator(".matches.proponents li a").first.click()
    expect(page.locator("h2")).to_contain_text("Training image")
    expect(page.locator(".picture img")).to_be_visible()
    page.get_by_role("link", name="All pictures added here").click()
    expect(page.locator(".tiles li")).not_to_have_count(0)
