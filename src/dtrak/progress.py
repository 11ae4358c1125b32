"""Progress with an estimate, on standard error: a bar in a terminal, now and then a line anywhere else."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0  # at the least

console = Console(stderr=True, highlight=False, emoji=False)  # digits:train: is no tram


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how far `total` units of work have come.

    The yielded function moves it on. Its first call tells what an earlier run has done already, be it nothing: the
    estimate counts from there.
    """
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
