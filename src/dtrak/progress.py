"""Show progress with an estimate of the time left: tqdm's bar in a terminal or a notebook, some lines elsewhere.

To show it somewhere else, on a web page for instance, use `watched_by`.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeVar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that a notebook has no widgets: it gets a line of text that is drawn again
    from tqdm.auto import tqdm

BAR = "{desc:<12} {bar:30} {n_fmt}/{total_fmt} {unit} {elapsed} elapsed, {remaining} to go"
SECONDS_BETWEEN_LINES = 5.0  # at the least

Item = TypeVar("Item")
Watcher = Callable[[str, int, int, str], None]  # takes the title, how much is done, the total and the unit
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` units of work are done.

    The yielded function adds to this number. Its first call must give what an earlier run has done already, possibly 0:
    the estimate counts from there.
    """
    watcher, log = _watcher.get(), Log(title, total, unit)
    is_drawn = watcher is None and (sys.stderr.isatty() or "ipykernel" in sys.modules)  # in Jupyter, VS Code or Colab
    done, before = 0, -1
    with tqdm(desc=title, total=total, unit=unit, bar_format=BAR, dynamic_ncols=True, disable=not is_drawn) as bar:

        def advance(count: int) -> None:
            nonlocal done, before
            done += count
            before = done if before < 0 else before
            if watcher is not None:
                watcher(title, done, total, unit)
            elif is_drawn:
                bar.initial = before
                bar.update(done - bar.n)
            else:
                log.tell(done, before)

        yield advance


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Report the progress of this block to `watcher` instead of standard error. Its errors end the work."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def steps_of(title: str, steps: Sequence[Item], unit: str) -> Iterator[Item]:
    """Yield the steps one after another, and report them to a watcher if there is one; there is no bar for them."""
    watcher = _watcher.get()
    for done, step in enumerate(steps):
        if watcher is not None:
            watcher(title, done, len(steps), unit)
        yield step


class Log:
    """Print lines for a log: one for every tenth of the work, one whenever the time has doubled, and one at the end."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.told = -1  # how much was done at the last line
        self.told_at = self.started = time.monotonic()

    def tell(self, done: int, before: int) -> None:
        """Print a line if it is time for one; `before` is what an earlier run has done of `done`."""
        now = time.monotonic()
        since, elapsed = now - self.told_at, now - self.started
        if self.told < 0:
            self.told = before
        is_much = done - self.told >= self.total / 10 or since >= self.told_at - self.started
        if done > before and ((is_much and since >= SECONDS_BETWEEN_LINES) or done == self.total):
            self.told, self.told_at = done, now
            left = elapsed * (self.total - done) / (done - before)
            times = [f"{timedelta(seconds=round(elapsed))} elapsed", f"{timedelta(seconds=round(left))} to go"]
            say(f"{self.title}: {done:,}/{self.total:,} {self.unit}, {', '.join(times if left else times[:1])}")


def say(message: str) -> None:
    """Print a message on standard error, above a bar if there is one."""
    tqdm.write(message, file=sys.stderr)
