"""Progress with an estimate, on standard error: a bar in a terminal, now and then a line anywhere else.

Whoever would show it elsewhere, on a page for instance, watches the work instead.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0  # at the least

Item = TypeVar("Item")
Watcher = Callable[[str, int, int, str], None]  # is told the title, how much is done, of how much, and the unit
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)

console = Console(stderr=True, highlight=False, emoji=False)  # digits:train: is no tram


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how far `total` units of work have come.

    The yielded function moves it on. Its first call tells what an earlier run has done already, be it nothing: the
    estimate counts from there.
    """
    if (watcher := _watcher.get()) is not None:
        yield Watched(watcher, title, total, unit).advance
        return
    if not console.is_terminal:
        yield Lines(title, total, unit).advance
        return
    with Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("to go"),
        console=console,
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` how the work in this block goes on, instead of standard error. What it raises ends the work."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def steps_of(title: str, steps: Sequence[Item], unit: str) -> Iterator[Item]:
    """The steps one after another, too short for a bar of their own: only a watcher is told of them."""
    watcher = _watcher.get()
    for done, step in enumerate(steps):
        if watcher is not None:
            watcher(title, done, len(steps), unit)
        yield step


class Watched:
    """For a watcher: how much is done in all."""

    def __init__(self, watcher: Watcher, title: str, total: int, unit: str) -> None:
        self.watcher = watcher
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0

    def advance(self, count: int) -> None:
        self.done += count
        self.watcher(self.title, self.done, self.total, self.unit)


class Lines:
    """For logs: a line for every tenth of the work, one whenever the time has doubled, and one at the end."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0
        self.told = 0  # `done` of the last line
        self.told_at = self.started = time.monotonic()
        self.found: int | None = None  # what was there before the work began

    def advance(self, count: int) -> None:
        self.done += count
        if self.found is None:
            self.found = self.told = self.done
            return
        now = time.monotonic()
        is_much = self.done - self.told >= self.total / 10 or now - self.told_at >= self.told_at - self.started
        if (is_much and now - self.told_at >= SECONDS_BETWEEN_LINES) or self.done == self.total:
            self.told, self.told_at = self.done, now
            say(f"{self.title}: {self.done:,}/{self.total:,} {self.unit}, {self._times()}")

    def _times(self) -> str:
        elapsed = time.monotonic() - self.started
        left = elapsed * (self.total - self.done) / (self.done - (self.found or 0))
        return ", ".join(
            f"{timedelta(seconds=round(seconds))} {what}"
            for seconds, what in ((elapsed, "elapsed"), (left, "to go"))
            if seconds
        )


def say(message: str) -> None:
    """A line for the person who waits."""
    console.print(message, markup=False, soft_wrap=True)
