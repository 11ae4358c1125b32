"""Take the pictures of the report, the explorer and the card in this folder again: `python docs/images/make.py`.

They show the run that comes with the package, in the machine's Chromium.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

import dtrak

HERE, COMMAND = Path(__file__).parent, Path(sys.executable).parent / "dtrak"
PICTURE, PORT = "seed-00003.png", "8123"


def main() -> None:
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = dtrak.ready_run(Path(folder, "ready")).folder
        subprocess.run([COMMAND, "report", run], check=True)
        subprocess.run([COMMAND, "card", run, PICTURE, "--out", HERE / "card.png"], check=True)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 940})
        page.goto((run / "report.html").as_uri())
        page.screenshot(path=HERE / "report.png")
        with subprocess.Popen([COMMAND, "serve", run, "--port", PORT]) as server:
            try:
                show_explorer(page)
            finally:
                server.terminate()


def show_explorer(page: Page) -> None:
    """Take the picture of the explorer as soon as it has its scores."""
    address = f"http://127.0.0.1:{PORT}/"
    while not answers(address):
        time.sleep(1)
    page.set_viewport_size({"width": 1280, "height": 1100})
    page.goto(f"{address}#picture/{PICTURE}")
    page.get_by_text("Credit by label").wait_for(timeout=600_000)
    page.screenshot(path=HERE / "explorer.png")


def answers(address: str) -> bool:
    try:
        urlopen(address)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
