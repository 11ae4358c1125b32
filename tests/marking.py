"""Jobs that leave marks on the disk: a file for every start and every end, so that they can be counted."""

import os
import time
from collections.abc import Callable
from pathlib import Path

# For processes that import the tests of engines, and what they share.
PATHS = f"{Path(__file__).parent / 'engines'}{os.pathsep}{Path(__file__).parent}"


def mark(folder: Path, what: str) -> None:
    (folder / f"{what}-{os.getpid()}-{time.monotonic_ns()}").touch()


def marks(folder: Path, what: str) -> int:
    return len(list(folder.glob(f"{what}-*")))


def marked(folder: Path, job: int) -> int:
    mark(folder, f"start-{job}")
    time.sleep(0.5)
    mark(folder, f"end-{job}")
    return job


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)
