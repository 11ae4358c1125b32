"""The report in a real browser, opened from the disk: that of a demo, and that of a run with everything."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from commands import dtrak
from dtrak.attribution.scores import load_scores
from dtrak.images.images import load_images
from dtrak.report import write_report
from report_runs import gallery, make_run

pytest_plugins = ["browser"]

QUERIES = load_images("digits:validation").select(range(40))
SCORED = ("--projection-dim", "64", "--parameters", "conv_out", "--damping")  # next to no backward pass
QUICK = ("--engine", "process", *SCORED)
MEASURED = (
    "evaluate", "lds", "run", "--subsets", "4", "--seeds", "2", "--output-timesteps", "2", "--output-noises", "1",
    "--validation-count", "4", "--method", "trak,d-trak,random", *QUICK, "chosen",
)  # fmt: skip


@pytest.fixture(scope="module")
def full_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with scores of three methods, LDS at two K, counterfactuals and a report, as the commands leave it."""
    folder = tmp_path_factory.mktemp("full")
    shutil.copytree(finished_run, folder / "run")
    np.savez(folder / "queries.npz", images=QUERIES.pixels(range(40)), ids=QUERIES.ids, labels=QUERIES.columns["label"])
    for arguments in (
        ("attribute", "run", "--queries", "queries.npz", "--method", "trak,d-trak,random", *SCORED, "0.1"),
        (*MEASURED, "--timesteps", "1"),
        (*MEASURED, "--timesteps", "2"),
        (
            "evaluate", "counterfactual", "run", "--count", "2", "--method", "random,d-trak",
            "--encoder", "efficientnet-lite0", *QUICK, "0.1",
        ),
        ("report", "run"),
    ):  # fmt: skip
        outcome = dtrak(*arguments, cwd=folder)
        assert outcome.code == 0, outcome.err
    return folder / "run"


@pytest.fixture
def full(page: Page, full_run: Path) -> Page:
    page.goto((full_run / "report.html").as_uri())
    return page


def shown(page: Page) -> list[str]:
    """The ids of the pictures that are shown, in their order."""
    return page.locator("article:visible").evaluate_all("all => all.map((one) => one.dataset.id)")


def shown_data(page: Page, name: str) -> list[str]:
    """A datum of the first method that is shown, for each picture."""
    first = "(all, name) => all.map((one) => one.querySelector('.by-method').dataset[name])"
    return page.locator("article:visible").evaluate_all(first, name)


def choose(page: Page, method: str) -> None:
    page.locator("#filters fieldset").get_by_text(method, exact=True).click()


def test_the_demo_s_report_opens_from_the_disk(page: Page, finished_run: Path) -> None:
    page.goto((finished_run / "report.html").as_uri())
    expect(page.locator("h1")).to_have_text("Which training images made this picture?")
    assert len(shown(page)) == 4
    assert page.locator("article").first.locator("li").count() <= 8
    expect(page.locator("#curves")).to_have_count(0)
    expect(page.locator("#counterfactuals")).to_have_count(0)
    expect(page.locator("#self-influence")).to_be_visible()


def test_every_section_of_a_full_run_is_there(full: Page) -> None:
    links = full.locator("nav a").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
    assert links == [
        "#pictures",
        "#credit-label",
        "#trust",
        "#self-influence",
        "#counterfactuals",
        "#curves",
        "#facts",
    ]
    for link in links:
        full.locator(f'nav a[href="{link}"]').click()
        expect(full.locator(link)).to_be_in_viewport()
    expect(full.locator(".trust tbody tr")).to_have_count(3)
    assert "noise ceiling" in full.locator(".trust").inner_text()
    expect(full.locator(".redrawn figure")).to_have_count(2)
    titles = full.locator(".curves h3").all_inner_texts()
    assert titles == ["LDS against damping λ", "LDS against K"]


def test_pictures_are_drawn(full: Page) -> None:
    """Every thumbnail in sight has a decoded image behind it."""
    broken = full.evaluate(
        """async () => {
          const urls = new Set([...document.querySelectorAll(".thumbnail")]
            .map((one) => getComputedStyle(one).backgroundImage).filter((one) => one !== "none")
            .map((one) => one.slice(5, -2)));
          const sizes = await Promise.all([...urls].map(async (url) => {
            const image = new Image();
            image.src = url;
            await image.decode();
            return image.naturalWidth;
          }));
          return [sizes.length, sizes.filter((one) => one !== 8).length];
        }"""
    )
    assert broken[0] > 100
    assert broken[1] == 0


def test_filters_leave_what_was_asked_for(full: Page) -> None:
    everything = shown(full)
    full.select_option("[name=class]", "3")
    labels = shown_data(full, "class")
    assert labels
    assert set(labels) == {"3"}
    expect(full.locator("#status")).to_have_text(f"{len(labels)} of {len(everything)} pictures")
    full.select_option("[name=class]", "")
    assert shown(full) == everything
    expect(full.locator("#status")).to_have_text("")

    full.locator("[name=score]").fill("50")
    assert len(shown(full)) == len(everything) // 2
    kept = [float(one) for one in shown_data(full, "score")]
    full.locator("[name=score]").fill("0")
    assert min(kept) >= sorted(float(one) for one in shown_data(full, "score"))[len(everything) // 2]
    full.locator("[name=selfInfluence]").fill("75")
    assert len(shown(full)) == len(everything) // 4


def test_the_class_is_the_query_s_own_label(full: Page, full_run: Path) -> None:
    labels = [str(label) for label in QUERIES.columns["label"]]
    top = load_scores(full_run / "scores.npz")["random"].top(1)
    assert [str(match.columns["label"]) for (match,) in top] != labels
    choose(full, "random")
    assert shown_data(full, "class") == labels


@pytest.mark.parametrize("order", ["score", "selfInfluence", "class"])
def test_sorting_is_by_the_shown_method(full: Page, order: str) -> None:
    given = shown(full)
    choose(full, "d-trak")
    full.select_option("[name=order]", order)
    found = [float(one) for one in shown_data(full, order)]
    assert found == sorted(found, reverse=order != "class")
    assert shown(full) != given
    assert sorted(shown(full)) == sorted(given)
    full.select_option("[name=order]", "")
    assert shown(full) == given


def test_two_methods_stand_side_by_side(full: Page) -> None:
    card = full.locator("article").first
    assert card.locator(".by-method").count() == 1
    full.select_option("[name=beside]", "d-trak")
    heads = card.locator("h4").all_inner_texts()
    assert [head.split()[-1] for head in heads] == ["trak", "trak", "d-trak", "d-trak"]
    left, right = (card.locator(".by-method").nth(place).bounding_box() for place in (0, 1))
    assert left
    assert right
    assert left["x"] + left["width"] < right["x"]
    assert left["y"] == right["y"]
    assert left["width"] == pytest.approx(right["width"], abs=1)
    choose(full, "d-trak")  # beside itself: one is enough
    assert card.locator(".by-method").count() == 1
    choose(full, "random")
    assert [head.split()[-1] for head in card.locator("h4").all_inner_texts()] == ["random"] * 2 + ["d-trak"] * 2


def test_columns_are_said_on_hover_and_to_screen_readers(full: Page) -> None:
    image = full.locator("article").first.locator("li .thumbnail").first
    title = image.get_attribute("title") or ""
    assert title.startswith("Training image ")
    assert "label " in title
    expect(full.get_by_role("img", name=title).first).to_be_visible()
    label = QUERIES.columns["label"][0]
    expect(full.get_by_role("img", name=f"Picture {QUERIES.ids[0]}: label {label}").first).to_be_visible()


def test_credit_of_one_picture_and_back(full: Page, full_run: Path) -> None:
    values = full.locator(".credit table").first.locator(".value")
    every = values.all_inner_texts()
    expect(full.locator(".credit .interval").first).to_be_visible()
    full.locator("article").nth(4).get_by_text("Show its credit").click()
    expect(full.locator("#credit-label")).to_be_focused()
    credit = load_scores(full_run / "scores.npz")["trak"].groups("label")
    groups, shares = credit.names, credit.shares
    order = np.argsort(-shares[4], kind="stable")
    names = full.locator(".credit table").first.locator("tbody th").all_inner_texts()
    assert names == [str(groups[place]) for place in order]
    assert values.all_inner_texts() == [f"{100 * shares[4, place]:.1f}%" for place in order]
    assert values.all_inner_texts() != every
    low, high = 100 * load_scores(full_run / "scores.npz")["trak"].groups("label").intervals[4, order[0]]
    expect(full.locator(".credit table").first.locator(".range").first).to_have_text(f"{low:.1f}–{high:.1f}")
    full.select_option(".credit [name=query]", "")
    assert values.all_inner_texts() == every


def test_self_influence_is_shown_for_the_chosen_method(full: Page) -> None:
    select = full.locator("select[data-blocks]")
    assert select.locator("option").all_inner_texts() == ["trak", "d-trak"]
    for method in ("d-trak", "trak"):
        select.select_option(method)
        assert full.locator(".by-class:visible").get_attribute("data-self-influence-by") == method
        expect(full.locator(".by-class:visible .class")).to_have_count(10)


def test_the_keyboard_reaches_controls_and_pictures(full: Page) -> None:
    full.keyboard.press("Tab")
    expect(full.locator(".skip")).to_be_focused()
    full.keyboard.press("Enter")
    expect(full.locator("#pictures")).to_be_focused()
    full.keyboard.press("Tab")
    expect(full.locator("[name=method][value=trak]")).to_be_focused()
    full.keyboard.press("ArrowRight")
    assert shown_data(full, "method")[0] == "d-trak"
    for name in ("beside", "class", "order", "score", "selfInfluence", "jump"):
        full.keyboard.press("Tab")
        expect(full.locator(f"[name={name}]")).to_be_focused()
    full.select_option("[name=class]", "1")
    full.locator("[name=jump]").focus()
    full.keyboard.type(str(QUERIES.ids[30]))
    full.keyboard.press("Enter")
    expect(full.locator("article").nth(30)).to_be_focused()
    expect(full.locator("article").nth(30)).to_be_in_viewport()
    full.locator("[name=jump]").fill("nowhere")
    full.keyboard.press("Enter")
    expect(full.locator("#status")).to_have_text("There is no picture “nowhere” here.")


def test_the_numbers_stand_behind_each_curve(full: Page) -> None:
    figure = full.locator(".curves figure").nth(1)
    figure.locator("summary").click()
    assert figure.locator("tbody th").all_inner_texts() == ["1", "2"]
    assert all("±" in cell for cell in figure.locator("tbody td").all_inner_texts())
    expect(full.get_by_role("img", name="LDS against K")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_words_stand_out_from_the_paper_by_day_and_night(full: Page, scheme: Any) -> None:
    full.emulate_media(color_scheme=scheme)
    for selector in ("h1", ".summary", ".score", ".about span", "dt", ".range", "nav a"):
        ratio = full.locator(selector).first.evaluate(
            """(element) => {
              const light = (colour) => {
                const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255);
                const linear = parts.map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
                return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
              };
              const paper = getComputedStyle(document.body).backgroundColor;
              const [a, b] = [getComputedStyle(element).color, paper].map(light);
              return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            }"""
        )
        assert ratio >= 4.5, selector
    dark = full.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    assert dark == (scheme == "dark")


def test_a_phone_shows_it_all_without_scrolling_sideways(full: Page) -> None:
    from browser import NARROW, scrolls_sideways  # which pytest has to load first

    full.set_viewport_size(NARROW)
    full.select_option("[name=beside]", "d-trak")
    for summary in full.locator("summary").all():
        summary.click()
    assert not scrolls_sideways(full)
    wide = full.evaluate(
        """() => [...document.querySelectorAll("main *:not(.scroll *)")].filter((one) => one.checkVisibility()
             && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.className || one.tagName)"""
    )
    assert wide == []


def test_print_has_pictures_and_no_controls(full: Page) -> None:
    full.emulate_media(media="print")
    for selector in ("#filters", "nav", ".curves details", ".which"):
        expect(full.locator(selector).first).to_be_hidden()
    expect(full.locator("article").first).to_be_visible()
    assert full.locator(".thumbnail").first.evaluate("one => getComputedStyle(one).printColorAdjust") == "exact"
    assert full.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.slow
def test_thousands_of_images_stay_small_and_quick(page: Page, tmp_path: Path) -> None:
    recipe, queries = gallery(tmp_path / "gallery", 2000, 200)
    methods = ("trak", "d-trak", "gradient-dot", "relative-if", "random")
    run, scores = make_run(tmp_path / "run", recipe, queries, 200, methods, kernels=methods[:2])
    report = write_report(run)
    assert 3e6 < report.stat().st_size < 20e6
    page.goto(report.as_uri())
    assert len(shown(page)) == 200
    change = """([name, value]) => {
      const control = document.getElementById("filters").elements[name];
      const started = performance.now();
      control.value = value;
      control.dispatchEvent(new Event("input", { bubbles: true }));
      document.body.getBoundingClientRect();  // lays out what has changed
      return performance.now() - started;
    }"""
    for name, values in {
        "class": ("artist 07", ""),
        "order": ("score", "class"),
        "method": ("d-trak", "trak"),
        "beside": ("random", ""),
        "score": ("50", "0"),
    }.items():
        rounds = [[page.evaluate(change, [name, value]) for value in values] for _ in range(3)]
        # The quickest of three: others may be at work on this machine.
        assert max(map(min, zip(*rounds, strict=True))) < 200, name

    page.locator("article:visible").nth(7).get_by_text("Show its credit").click()
    credit = scores["trak"].groups("artist")
    groups, shares = credit.names, credit.shares
    table = page.locator(".credit table").first
    largest = np.argsort(-shares[int(page.locator(".credit [name=query]").input_value())], kind="stable")[:12]
    assert table.locator("th[scope=row]").all_inner_texts() == [*groups[largest], "28 more"]
    said = [float(text.rstrip("%")) for text in table.locator(".value").all_inner_texts()]
    assert sum(said) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_has_nothing_to_say(full: Page, scheme: Any) -> None:
    from browser import assert_accessible  # which pytest has to load first

    full.emulate_media(color_scheme=scheme)
    full.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    full.evaluate("document.querySelectorAll('article:nth-child(n + 4)').forEach((one) => one.remove())")  # all alike
    assert_accessible(full)


def test_pictures_come_first_and_settings_are_folded(full: Page) -> None:
    heads = full.locator("main h2").all_inner_texts()
    assert (heads[0], heads[-1]) == ("Pictures", "Settings")
    expect(full.locator(".settings dl")).to_be_hidden()
    full.locator(".settings summary").click()
    expect(full.locator(".settings dl")).to_contain_text("directions")


def test_print_says_how_the_pictures_were_filtered(full: Page) -> None:
    expect(full.locator("#filtered")).to_be_hidden()
    choose(full, "d-trak")
    full.select_option("[name=class]", "3")
    full.select_option("[name=order]", "score")
    full.emulate_media(media="print")
    count = len(shown(full))
    told = f"Scores by d-trak, {count} of 40 pictures, only label 3, sorted by strongest score."
    expect(full.locator("#filtered")).to_have_text(told)
    expect(full.locator(".settings dl")).to_be_visible()
