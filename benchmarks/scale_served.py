"""How long a question to `dtrak serve INDEX` takes, with an index of many images.

Training images are digits, repeated; their features are synthetic, as in `scale.py`, but in the space of the features
that the model gives, so that a real picture can be asked about. Everything else is what a user has: `dtrak index` makes
the index, `dtrak serve` answers, and each picture is uploaded.
"""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

import numpy as np
import torch
from PIL import Image

from dtrak.attribution.depends import of_features
from dtrak.attribution.opened import Opened
from dtrak.attribution.question import kept_question
from dtrak.attribution.required_gradients import spec_of
from dtrak.features.store import FeatureStore
from dtrak.images.images import ImageSource, load_images

QUESTIONS, TOP = 40, 20
POLL = 0.002  # seconds
PATIENCE = 600  # seconds
SAME = ("timesteps", "projection_dim", "damping", "dtype")  # settings of the real features

Asked, Answer = TypeVar("Asked"), TypeVar("Answer")


def make_served(real: Path, folder: Path, rows: int) -> None:
    """Make an index as `dtrak index` does, of features that are synthetic; keep the exact answers beside it."""
    os.fsync = lambda file: None  # they may be lost
    asked, folder = kept_question(real, None), folder.resolve()
    digits, store = asked.train.open(), FeatureStore.open(next(real.glob("train-square-*")))
    features, which = store.numpy(), np.random.default_rng(0).integers(0, len(digits), rows)
    folder.mkdir(parents=True)
    np.savez(folder / "images.npz", images=digits.pixels(range(len(digits)))[which])
    question = replace(asked, train=ImageSource(str(folder / "images.npz")))
    opened = Opened(question, folder)
    spec = spec_of(question.methods[0], question.settings)
    made_from = of_features(opened.facts, spec, "square", "train")
    new = FeatureStore.create(folder / "train-square", made_from, rows, store.shape, store.dtype)
    random = np.random.default_rng(1)
    for index, part in enumerate(new.shards):
        # √½ of a real row and √½ of noise with their covariance: a random mixture of all of them
        mixture = random.standard_normal((len(part), len(digits)), dtype=np.float32)
        noise = mixture @ features / np.float32(len(digits) ** 0.5)
        new.write(index, torch.from_numpy(np.float32(0.5**0.5) * (features[which[part]] + noise)))
    question.keep(folder, opened.facts)
    (folder / "asked").mkdir()
    for row, picture in enumerate(load_images("digits:validation").pixels(range(QUESTIONS))):
        Image.fromarray(picture[..., 0]).save(folder / "asked" / f"{row:02d}.png")
    command("index", "--cache", folder, "--out", folder / "index")
    same = [f"--{name.replace('_', '-')}={getattr(asked.settings, name)}" for name in SAME]
    images = ["--train", folder / "images.npz", "--queries", folder / "asked"]
    of_model = ["--model", asked.model.source, "--method", asked.methods[0].name, *same, "--cache", folder]
    command("attribute", *of_model, *images, "--top", TOP, "--out", folder / "exact.csv")


def command(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "dtrak", *map(str, arguments)], check=True)


def ask_served(folder: Path) -> None:
    """Upload pictures to `dtrak serve`, then ask about the same ones after a new start, and print what it took."""
    shutil.rmtree(folder / "index" / "asked", ignore_errors=True)
    pictures = sorted((folder / "asked").glob("*.png"))
    with serving(folder / "index") as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        upload(connection, encoded(Image.new("L", (8, 8))))  # the first one waits until the index is open
        names, taken = each(lambda one: upload(connection, one.read_bytes()), pictures)
        tell("an upload, to its id: features and search", taken)
        found, taken = each(lambda name: answer(connection, name), names)
        tell("the answer, when it is there", taken)
    print(f"recall@{TOP} of the uploads: {recall(folder / 'exact.csv', pictures, found):.3f}", flush=True)
    with serving(folder / "index") as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        answer(connection, names[0])
        again, taken = each(lambda name: answer(connection, name), names[1:])
        assert again == found[1:]
        tell("a question about a picture whose features are kept: search", taken)


def each(ask: Callable[[Asked], Answer], questions: Sequence[Asked]) -> tuple[list[Answer], list[float]]:
    """Ask one question after the other; return the answers, and the seconds that each took."""
    answers, taken = [], []
    for question in questions:
        started = time.perf_counter()
        answers.append(ask(question))
        taken.append(time.perf_counter() - started)
    return answers, taken


def tell(what: str, seconds: list[float]) -> None:
    median, slowest = 1000 * float(np.median(seconds)), 1000 * max(seconds)
    print(f"{what}: median {median:.1f} ms, slowest of {len(seconds)} {slowest:.1f} ms", flush=True)


def encoded(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@contextmanager
def serving(index: Path) -> Iterator[int]:
    """Start `dtrak serve INDEX`; give its port; end it as Ctrl-C does."""
    arguments = ["serve", str(index), "--no-browser", "--port", "0", "--device", "cpu"]
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "dtrak", *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = next(filter(None, (re.search(r"http://127\.0\.0\.1:(\d+)/", line) for line in server.stdout)))
            print(f"dtrak serve has started after {time.perf_counter() - started:.1f} s", flush=True)
            yield int(found[1])
        finally:
            server.send_signal(signal.SIGINT)


def upload(connection: HTTPConnection, picture: bytes) -> str:
    """Send a picture and wait for the end of its search; return its id."""
    boundary = token_hex(16)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="picture"; filename="a.png"\r\n\r\n'
    body = head.encode() + picture + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    connection.request("POST", "/api/ask", body, headers)
    return str(ended(connection, json.loads(connection.getresponse().read())["question"])["result"])


def ended(connection: HTTPConnection, question: dict[str, object]) -> dict[str, object]:
    while question["state"] in ("waiting", "working"):
        time.sleep(POLL)
        connection.request("GET", f"/api/questions/{question['id']}")
        question = json.loads(connection.getresponse().read())["question"]
    assert question["state"] == "done", question["error"]
    return question


def answer(connection: HTTPConnection, name: str) -> list[str]:
    """Return the ids of the strongest images of a picture."""
    while True:
        connection.request("GET", f"/api/answer?query={name}&count={TOP}")
        response = connection.getresponse()
        found = json.loads(response.read())
        if response.status != 202:
            return [one["id"] for one in found["proponents"]]
        ended(connection, found["question"])


def recall(exact: Path, pictures: list[Path], found: list[list[str]]) -> float:
    """Return the share of the exact strongest images that were found."""
    wanted: dict[str, set[str]] = {}
    with open(exact, newline="") as lines:
        for row in csv.DictReader(lines):
            wanted.setdefault(row["query"], set()).add(row["train"])
    pairs = zip(pictures, found, strict=True)
    return float(np.mean([len(wanted[one.name] & {*ids}) / TOP for one, ids in pairs]))
