"""`dtrak serve` as its users start it, in a process of its own, and pictures to send to it."""

import io
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from PIL import Image

from commands import Command, dtrak_started

PATIENCE = 120  # seconds, on a busy machine


@contextmanager
def served(run: Path, *options: object, **place: Any) -> Iterator["Server"]:
    """A server of this run on some free port; it has to end by Ctrl-C, without an error."""
    arguments = ("serve", run.name, "--no-browser", "--port", 0, "--device", "cpu", *options)
    with dtrak_started(*arguments, cwd=run.parent, **place) as command:
        with httpx2.Client(base_url=_address(command), timeout=PATIENCE) as client:
            yield Server(command, client)
        if command.runs:
            command.signal(signal.SIGINT)
        outcome = command.outcome()
        assert outcome.code == 0, outcome.err
        assert "Traceback" not in outcome.err


def _address(command: Command) -> str:
    ends, told = time.monotonic() + PATIENCE, command.streams / "out"
    while time.monotonic() < ends:
        found = re.search(r"http://\S+/", told.read_text() if told.exists() else "")
        if found:
            return found.group()
        assert command.runs, command.outcome().err
        time.sleep(0.05)
    raise AssertionError("it does not start")


class Server:
    def __init__(self, command: Command, client: httpx2.Client) -> None:
        self.command = command
        self.client = client

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def get(self, path: str, **parameters: object) -> Any:
        """The answer, once it is ready."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            response = self.client.get(f"/api/{path}", params={name: str(value) for name, value in parameters.items()})
            if response.status_code != 202:
                assert response.status_code == 200, response.text
                return response.json() if "json" in response.headers["content-type"] else response.text
            self.wait(response.json()["question"])
        raise AssertionError("it has no answer")

    def ask(self, seed: object = None, picture: tuple[str, bytes] | None = None) -> httpx2.Response:
        files: dict[str, Any] = {"seed": (None, str(seed))} if picture is None else {"picture": picture}
        return self.client.post("/api/ask", files=files)

    def wait(self, question: dict[str, Any]) -> dict[str, Any]:
        """The question when it has ended."""
        ends = time.monotonic() + PATIENCE
        while question["state"] in ("waiting", "working"):
            assert time.monotonic() < ends, question
            time.sleep(0.02)
            question = self.client.get(f"/api/questions/{question['id']}").json()["question"]
        return question

    def answered(self, response: httpx2.Response) -> str:
        """The id of the picture that was asked about, once the question is answered."""
        assert response.status_code == 202, response.text
        question = self.wait(response.json()["question"])
        assert question["state"] == "done", question["error"]
        return str(question["result"])


def colourful(side: int) -> bytes:
    """The PNG of a random picture, somewhat wider than high."""
    pixels = np.random.default_rng(5).integers(0, 256, (side, side + 30, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), "PNG")


def encoded(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()
