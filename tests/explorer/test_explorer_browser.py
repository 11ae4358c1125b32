"""The explorer in a real Chromium: search, slider, transpose, uploads, seeds, refusals, and narrow windows."""

import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import dtrak
from dtrak.runs.run import Run
from serving import Server, served

pytest_plugins = ["browser"]
NARROW = 400
expect.set_options(timeout=30_000)  # on a busy machine


@pytest.fixture(scope="module")
def run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("explorer") / "run"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with served(run, "--method", "d-trak,trak,raw-pixel-cosine", "--damping", "0.1") as started:
        started.get("damping")
        yield started


@pytest.fixture(scope="module")
def scores(run: Path) -> dict[str, dtrak.Scores]:
    """At the damping 0.1."""
    opened = Run.open(run)
    queries = opened.query_images(str(run / "generated"))
    cache = next(run.glob("features/*"))
    return dtrak.attribute(
        opened.model(),
        opened.train_images,
        queries,
        ["d-trak", "trak"],
        damping=0.1,
        cache=cache,
        timesteps=1,
        projection_dim=64,
        parameters="conv_out",
    )


SCREENS = ("pictures", "picture/seed-00001.png", "compare/seed-00001.png", "training", "image/17", "ask")


def shown(page: Page, kind: str = "proponents") -> list[tuple[str, float]]:
    """The ids and scores of the matches on the page."""
    items = page.locator(f".matches.{kind} li")
    ids = items.locator(".about span:first-child").all_inner_texts()
    values = [float(one.get_attribute("value") or "nan") for one in items.locator("data").all()]
    return list(zip(ids, values, strict=True))


def open_screen(page: Page, server: Server, place: str) -> None:
    page.goto(f"{server.url}#{place}")
    expect(page.locator("h2")).not_to_be_empty()


def open_advanced(page: Page) -> None:
    page.get_by_text("Advanced: method and damping").click()


def test_from_a_picture_to_an_image_and_back(page: Page, server: Server, scores: dict[str, dtrak.Scores]) -> None:
    open_screen(page, server, "pictures")
    expect(page.locator(".tiles li")).to_have_count(4)
    page.get_by_role("link", name="Picture seed 2: seed 2").click()
    expect(page.locator("h2")).to_have_text("Picture seed-00002.png")
    expect(page.locator(".proponents li")).to_have_count(10)
    top = scores["d-trak"].top(10)[2]
    found = shown(page)
    assert [int(id_) for id_, _ in found] == [match.id for match in top]
    np.testing.assert_allclose([score for _, score in found], [match.score for match in top], rtol=1e-4)
    page.locator(".proponents li a").first.click()
    expect(page.locator("h2")).to_have_text(f"Training image {top[0].id}")
    column = scores["d-trak"].values[:, top[0].position]
    expect(page.locator(".matches li")).to_have_count(4)
    helped = [float(score) for _, score in shown(page)]
    np.testing.assert_allclose(helped, np.sort(column[column > 0])[::-1], rtol=1e-4)
    expect(page.locator("h2")).to_be_focused()
    page.go_back()
    expect(page.locator("h2")).to_have_text("Picture seed-00002.png")
    page.go_back()
    expect(page.locator(".tiles li")).to_have_count(4)
    page.go_forward()
    expect(page.locator("h2")).to_have_text("Picture seed-00002.png")


def test_the_slider_changes_the_scores_at_once(page: Page, server: Server) -> None:
    open_screen(page, server, "picture/seed-00001.png")
    expect(page.locator(".proponents li")).to_have_count(10)
    before = shown(page)
    open_advanced(page)
    slider = page.get_by_label("Damping λ", exact=True)
    assert float(slider.input_value()) == pytest.approx(-1, abs=0.02)
    slider.focus()
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#meaning")).to_contain_text("0.316 × mean eigenvalue")
    expect(page.locator(".proponents data").first).not_to_have_attribute("value", str(before[0][1]))
    assert "damping=0.316" in page.url
    expected = server.get("answer", query="seed-00001.png", damping=0.316)["proponents"]
    expect(page.locator(".proponents data").first).to_have_attribute("value", str(expected[0]["score"]))
    assert shown(page) == [(one["id"], one["score"]) for one in expected]
    page.get_by_role("button", name="auto").click()
    expect(page.get_by_role("button", name="auto")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="auto")).to_be_focused()
    automatic = server.get("answer", query="seed-00001.png", damping="auto")["proponents"][0]["score"]
    expect(page.locator(".proponents data").first).to_have_attribute("value", str(automatic))
    page.reload()  # the address has it all
    expect(page.locator(".proponents data").first).to_have_attribute("value", str(automatic))


def test_methods_are_switched_and_one_without_damping_disables_it(
    page: Page, server: Server, scores: dict[str, dtrak.Scores]
) -> None:
    open_screen(page, server, "picture/seed-00003.png")
    expect(page.locator(".proponents li")).to_have_count(10)
    open_advanced(page)
    page.get_by_text("trak", exact=True).click()
    best = scores["trak"].top(1)[3][0]
    expect(page.locator(".proponents li").first).to_contain_text(str(best.id))
    assert shown(page)[0][1] == pytest.approx(best.score, rel=1e-4)
    page.get_by_text("raw-pixel-cosine").click()
    expect(page.get_by_label("Damping λ", exact=True)).to_be_disabled()
    expect(page.locator("#meaning")).to_have_text("raw-pixel-cosine has no damping")


def test_training_images_are_searched_filtered_sorted_and_paged(page: Page, server: Server) -> None:
    open_screen(page, server, "training")
    expect(page.locator("output").last).to_have_text("1,000 images")
    page.get_by_role("button", name="Next page").click()
    expect(page.locator(".tiles li").first).to_contain_text("66")
    page.get_by_label("Label").select_option("7")
    expect(page.locator(".tiles li .quiet").first).to_have_text("label 7")
    assert set(page.locator(".tiles li .quiet").all_inner_texts()) == {"label 7"}
    page.get_by_label("Label").select_option("")
    search = page.get_by_label("Search training images")
    search.press_sequentially("998")
    expect(page.locator(".tiles li")).to_have_count(1)
    expect(search).to_be_focused()
    search.fill("nothing like it")
    expect(page.get_by_text("No training image matches.")).to_be_visible()
    search.fill("")
    page.get_by_label("Sort by").select_option("total")
    expected = server.get("train", sort="total")["items"][0]
    expect(page.locator(".tiles li").first).to_contain_text(expected["id"])
    page.get_by_label("Sort by").select_option("self")
    expected = server.get("train", sort="self")["items"][0]
    expect(page.locator(".tiles li").first).to_contain_text(expected["id"])


def test_the_validation_images_are_made_ready_when_asked_for(page: Page, server: Server) -> None:
    open_screen(page, server, "image/3")
    page.get_by_text("validation", exact=True).click()
    expect(page.locator(".results > p").first).to_contain_text("Of the validation images")
    expect(page.locator(".proponents li")).to_have_count(10)
    page.locator(".proponents li a").first.click()
    expect(page.locator("h2")).to_contain_text("Picture ")
    page.get_by_text("generated", exact=True).click()
    expect(page.locator(".tiles li")).to_have_count(4)


def test_an_upload_is_followed_to_its_answer(page: Page, server: Server, run: Path) -> None:
    seen: list[str] = []
    page.expose_function("seen", lambda text: seen.append(text))
    open_screen(page, server, "ask")
    page.evaluate(
        "new MutationObserver(() => seen(document.getElementById('work').textContent))"
        ".observe(document.getElementById('work'), { subtree: true, childList: true, attributes: true })"
    )
    picture = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (40, 60, 3), dtype=np.uint8)).save(picture, "JPEG")
    file = {"name": "../../mine.jpg", "mimeType": "image/jpeg", "buffer": picture.getvalue()}
    page.locator("#file").set_input_files([file])  # type: ignore[list-item]
    expect(page.locator("h2")).to_have_text(re.compile("Picture upload [0-9a-f]{6}"))
    expect(page.locator(".proponents li")).to_have_count(10)
    assert any("your picture" in text or "Waiting" in text for text in seen)
    expect(page.locator("#work")).to_be_hidden()
    assert len(list((run / "asked").glob("*.png"))) >= 1
    with page.expect_download() as download:
        page.get_by_role("link", name="Scores as CSV").click()
    table = Path(download.value.path()).read_text()
    assert table.startswith("query,rank,train,score,label,damping\n")
    assert table.splitlines()[1].endswith(",0.1")
    assert table.count("\n") == 1001


def test_a_seed_is_drawn_and_attributed(page: Page, server: Server) -> None:
    open_screen(page, server, "ask")
    page.get_by_label("Seed").fill("41")
    page.get_by_role("button", name="Draw and attribute").click()
    expect(page.locator("h2")).to_have_text("Picture seed 41")
    expect(page.locator(".opponents li")).to_have_count(10)
    page.get_by_role("link", name="New picture", exact=True).click()
    expect(page.get_by_role("link", name="Picture seed 41: seed 41")).to_be_visible()


def test_a_bad_upload_shows_why(page: Page, server: Server, complaints: list[str]) -> None:
    open_screen(page, server, "ask")
    page.locator("#file").set_input_files(
        [{"name": "notes.png", "mimeType": "image/png", "buffer": b"not an image"}]  # type: ignore[list-item]
    )
    expect(page.locator(".refused")).to_contain_text("this is not an image")
    assert [text for text in complaints if "415" not in text] == []  # Chromium itself tells of every refusal
    complaints.clear()
    page.get_by_label("Seed").fill("42")
    page.get_by_role("button", name="Draw and attribute").click()
    expect(page.locator("h2")).to_have_text("Picture seed 42")


def test_what_is_not_there_is_said(page: Page, server: Server, complaints: list[str]) -> None:
    page.goto(f"{server.url}#image/4711")
    expect(page.get_by_role("alert")).to_have_text("there is no '4711' among the 1,000 training images")
    assert [text for text in complaints if "404" not in text] == []
    complaints.clear()
    page.get_by_role("link", name="Training images", exact=True).click()
    expect(page.locator(".tiles li")).to_have_count(66)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_keyboard_is_enough(page: Page, server: Server) -> None:
    open_screen(page, server, "pictures")
    expect(page.locator(".tiles li")).to_have_count(4)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the images")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(2):  # past the search
        page.keyboard.press("Tab")
    expect(page.locator(".tiles a").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h2")).to_have_text("Picture seed-00000.png")
    expect(page.locator("h2")).to_be_focused()
    page.get_by_role("button", name="Show more").press("Enter")
    expect(page.locator(".proponents li")).to_have_count(30)
    expect(page.locator(".proponents li a").nth(10)).to_be_focused()


def test_credit_is_shown_for_a_picture(page: Page, server: Server) -> None:
    open_screen(page, server, "picture/seed-00001.png")
    expect(page.get_by_role("heading", name="Credit by label")).to_be_visible()
    shares = [float(text.rstrip("%")) for text in page.locator(".credit .value").all_inner_texts()]
    assert len(shares) == 10
    assert sum(shares) == pytest.approx(100, abs=1)
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_narrow_windows_are_wide_enough(page: Page, server: Server, scheme: str) -> None:
    page.set_viewport_size({"width": NARROW, "height": 800})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for place in (*SCREENS, "training?sort=total"):
        open_screen(page, server, place)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, place


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", SCREENS)
def test_axe_has_nothing_to_say(page: Page, server: Server, place: str, scheme: str) -> None:
    from browser import assert_accessible  # which pytest has to load first

    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    open_screen(page, server, place)
    page.wait_for_load_state("networkidle")
    if place != "ask":
        open_advanced(page)
    assert_accessible(page)


def test_the_question_comes_first_and_lambda_is_advanced(page: Page, server: Server) -> None:
    open_screen(page, server, "picture/seed-00001.png")
    expect(page.locator(".proponents li")).to_have_count(10)
    expect(page.get_by_label("Damping λ", exact=True)).to_be_hidden()
    expect(page.locator("#trust")).to_contain_text("Not measured: dtrak evaluate lds")
    open_screen(page, server, "picture/seed-00001.png?damping=0.5")
    page.reload()  # a link to another damping shows it
    expect(page.get_by_label("Damping λ", exact=True)).to_be_visible()
    expect(page.locator("#trust")).to_contain_text("not for the one chosen below")


def test_two_pictures_stand_side_by_side(page: Page, server: Server, scores: dict[str, dtrak.Scores]) -> None:
    open_screen(page, server, "picture/seed-00001.png")
    page.get_by_role("link", name="Compare with another picture").click()
    expect(page.locator(".pair article")).to_have_count(2)
    expect(page.locator(".pair .proponents li")).to_have_count(20)
    page.get_by_label("Second picture").select_option("seed-00003.png")
    top = scores["d-trak"].top(10)
    second = page.locator(".pair article").nth(1).locator(".proponents .about span:first-child")
    expect(second.first).to_have_text(str(top[3][0].id))
    common = len({one.id for one in top[1]} & {one.id for one in top[3]})
    expect(page.locator(".compare [role=status]")).to_contain_text(f"{common} of the 10" if common else "different")
    assert "with=seed-00003.png" in page.url
    page.reload()  # the address has both
    expect(second.first).to_have_text(str(top[3][0].id))


def test_a_link_has_the_whole_view(page: Page, server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_screen(page, server, "picture/seed-00001.png")
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".proponents li")).to_have_count(30)
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    page.goto("about:blank")
    page.goto(copied)
    expect(page.locator(".proponents li")).to_have_count(30)


def test_a_card_is_saved(page: Page, server: Server) -> None:
    open_screen(page, server, "picture/seed-00002.png")
    for name, start in (("Attribution card", b"\x89PNG"), ("Card as PDF", b"%PDF")):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        assert Path(download.value.path()).read_bytes().startswith(start)


def test_the_place_in_a_list_is_kept(page: Page, server: Server) -> None:
    open_screen(page, server, "training")
    following = page.get_by_role("button", name="Next page")
    following.press("Enter")
    expect(page.locator(".tiles li").first).to_contain_text("66")
    expect(following).to_be_focused()
    following.press("Enter")
    expect(page.locator(".tiles li").first).to_contain_text("132")
    page.locator(".tiles a").nth(3).click()
    expect(page.locator("h2")).to_have_text("Training image 135")
    expect(page.get_by_role("link", name="Next")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("h2")).to_have_text("Training image 136")
    page.get_by_role("link", name="All training images").click()
    expect(page.locator(".tiles li").first).to_contain_text("132")


def test_forced_colours_show_bars_and_choices(page: Page, server: Server) -> None:
    page.emulate_media(forced_colors="active")
    open_screen(page, server, "picture/seed-00001.png")
    expect(page.locator(".proponents li")).to_have_count(10)
    colour = "one => getComputedStyle(one).backgroundColor"
    bar, track = (page.locator(place).first.evaluate(colour) for place in (".proponents .bar span", ".proponents .bar"))
    assert bar != track
    chosen, other = (
        page.locator(f"#sets input{place} + span").first.evaluate(colour) for place in (":checked", ":not(:checked)")
    )
    assert chosen != other
