"""A real Chromium for tests of pages. A test file takes it up with `pytest_plugins = ["browser"]`.

`page` is a fresh page; whatever it writes to its console as an error fails the test. A test that provokes such errors
looks at them in `complaints` and clears the list.
"""

import os
import shutil
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 800}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        told = "there is no Chromium on this machine: install the package `chromium`"
        pytest.fail(told) if "NEEDS_BROWSER" in os.environ else pytest.skip(told)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the page has complained of so far."""
    return []


@pytest.fixture
def page(chromium: Browser, complaints: list[str]) -> Iterator[Page]:
    context = chromium.new_context(viewport=WIDE)
    fresh = context.new_page()
    fresh.set_default_timeout(10_000)
    fresh.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    fresh.on("pageerror", lambda error: complaints.append(str(error)))
    yield fresh
    context.close()
    assert not complaints


def assert_accessible(page: Page) -> None:
    """axe finds nothing that keeps people with disabilities from using the page."""
    found = Axe().run(page).response["violations"]
    told = [f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found for node in one["nodes"]]
    assert not told


def scrolls_sideways(page: Page) -> bool:
    """Whether something on the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
