"""How quickly the explorer answers: one client on one connection, then eight of them at a time for 20 seconds.

    python benchmarks/explorer.py                  # a small run of 1,000 digits that it makes itself, a minute in all
    python benchmarks/explorer.py runs/digits      # a run that is there

Each client keeps its connection and asks one question after another: who made a picture, what did a training image do,
a page of training images, a thumbnail. Every damping is another one, so that no answer is a repeated one. Client and
server share the machine, and talk by 127.0.0.1 alone. It ends by itself.
"""

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

PATIENCE = 120  # seconds until it serves, and until it has an answer
MOST_REQUESTS = 200_000  # of one client
ALONE = 300  # requests of the client that has the server to itself
RECIPE = """
name: small
summary: a small U-Net on the embedded digits
data: {train: "digits:train", validation: "digits:validation"}
model:
  unet:
    block_out_channels: [8, 8]
    layers_per_block: 1
    down_block_types: [DownBlock2D, DownBlock2D]
    up_block_types: [UpBlock2D, UpBlock2D]
    norm_num_groups: 4
training: {epochs: 2, batch_size: 250, learning_rate: 0.01}
generation: {count: 4, steps: 5}
attribution: {timesteps: 1, projection_dim: 512}
evaluation: {}
"""


@dataclass(frozen=True)
class Load:
    """What some clients saw: the seconds that each answer took, how often each status came, and the time in all."""

    seconds: list[float]
    statuses: Counter[int]
    lasted: float


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", type=Path, nargs="?", help="a run's folder; a small one is made if there is none")
    options.add_argument("--clients", type=int, default=8, choices=range(1, 33), metavar="1…32")
    options.add_argument("--seconds", type=int, default=20, choices=range(1, 301), metavar="1…300")
    given = options.parse_args()
    table = Table(
        "clients", "requests", "requests/s", "median", "95th percentile", "statuses", box=None, pad_edge=False
    )
    with TemporaryDirectory() as folder, served(given.run or made(Path(folder))) as port:
        pictures = warmed(port)
        for clients, most, seconds in ((1, ALONE, given.seconds), (given.clients, MOST_REQUESTS, given.seconds)):
            table.add_row(str(clients), *described(load(port, pictures, clients, most, seconds)))
    Console().print(table)


def made(folder: Path) -> Path:
    (folder / "recipe.yaml").write_text(RECIPE)
    run = folder / "run"
    command = [sys.executable, "-m", "dtrak", "run", str(folder / "recipe.yaml"), "--out", str(run)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE)
    return run


@contextmanager
def served(run: Path) -> Iterator[int]:
    """The port on which `dtrak serve` answers about a run; it ends as after Ctrl-C."""
    command = [sys.executable, "-m", "dtrak", "serve", str(run), "--no-browser", "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                    yield int(found[1])
                    break
            else:
                raise SystemExit("dtrak serve has not started")
        finally:
            server.send_signal(signal.SIGINT)


def warmed(port: int) -> list[str]:
    """The ids of the run's first pictures, once the server has answered about each."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    pictures = [one["id"] for one in json.loads(answer(connection, "/api/queries?size=4")[1])["items"]]
    for path in (*(f"/api/answer?query={one}" for one in pictures), "/api/train?sort=total"):
        ends = time.monotonic() + PATIENCE
        while answer(connection, path)[0] == 202:
            if time.monotonic() > ends:
                raise SystemExit(f"there is no answer to {path}")
            time.sleep(0.1)
    return pictures


def load(port: int, pictures: list[str], clients: int, most: int, seconds: float) -> Load:
    """Let some clients ask at the same time, so many requests each at the most and so long at the longest."""
    begun = time.monotonic()

    def ask(client: int) -> list[tuple[float, int]]:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        taken = []
        for path in itertools.islice(questions(pictures, client), most):
            started = time.perf_counter()
            status, _ = answer(connection, path)
            taken.append((time.perf_counter() - started, status))
            if time.monotonic() - begun > seconds:
                break
        connection.close()
        return taken

    with ThreadPoolExecutor(clients) as threads:
        answers = [one for found in threads.map(ask, range(clients)) for one in found]
    return Load([one for one, _ in answers], Counter(one for _, one in answers), time.monotonic() - begun)


def questions(pictures: list[str], client: int) -> Iterator[str]:
    for number in itertools.count(client * MOST_REQUESTS):
        damping = 0.01 + number * 1e-6
        yield f"/api/answer?query={pictures[number % len(pictures)]}&damping={damping:.6f}"
        yield f"/api/transpose?train={number % 1000}&damping={damping:.6f}"
        yield f"/api/train?page={number % 10}"
        yield f"/images/small/train/{number % 1000}"


def answer(connection: HTTPConnection, path: str) -> tuple[int, bytes]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def described(found: Load) -> list[str]:
    median, high = (f"{1000 * np.percentile(found.seconds, share):.1f} ms" for share in (50, 95))
    statuses = ", ".join(f"{count:,} × {status}" for status, count in sorted(found.statuses.items()))
    return [f"{len(found.seconds):,}", f"{len(found.seconds) / found.lasted:,.0f}", median, high, statuses]


if __name__ == "__main__":
    main()
