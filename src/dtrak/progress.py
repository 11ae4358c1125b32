"""Show progress with an estimate of the time left: a bar in a terminal or a notebook, some lines elsewhere.

To show it somewhere else, on a web page for instance, use `watched_by`.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0  # at the least

Item = TypeVar("Item")
Watcher = Callable[[str, int, int, str], None]  # takes the title, how much is done, the total and the unit
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)

console = Console(stderr=True, highlight=False, emoji=False)  # rich would show :train: as a picture


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` units of work are done.

    The yielded function adds to this number. Its first call must give what an earlier run has done already, possibly 0:
    the estimate counts from there.
    """
    if (watcher := _watcher.get()) is not None:
        yield WatcherProgress(watcher, title, total, unit).advance
        return
    if console.is_jupyter:  # in Jupyter, VS Code or Colab
        with closing(NotebookProgress(title, total, unit)) as notebook:
            yield notebook.advance
        return
    if not console.is_terminal:
        yield LogProgress(title, total, unit).advance
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


class WatcherProgress:
    """Report to a watcher how much is done in all."""

    def __init__(self, watcher: Watcher, title: str, total: int, unit: str) -> None:
        self.watcher = watcher
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0

    def advance(self, count: int) -> None:
        self.done += count
        self.watcher(self.title, self.done, self.total, self.unit)


class NotebookProgress:
    """Show tqdm's bar: a widget where the notebook has widgets, else a line of text that is drawn again."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self.settings: dict[str, Any] = {"desc": title, "total": total, "unit": f" {unit}"}
        self.bar: Any = None

    def advance(self, count: int) -> None:
        if self.bar is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are no widgets
                from tqdm.auto import tqdm

                self.bar = tqdm(initial=count, **self.settings)
        else:
            self.bar.update(count)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class LogProgress:
    """Print lines for a log: one for every tenth of the work, one whenever the time has doubled, and one at the end."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0
        self.reported = 0  # `done` of the last line
        self.reported_at = self.started = time.monotonic()
        self.done_before: int | None = None  # what an earlier run has done

    def advance(self, count: int) -> None:
        self.done += count
        if self.done_before is None:
            self.done_before = self.reported = self.done
            return
        now = time.monotonic()
        since = now - self.reported_at
        is_much = self.done - self.reported >= self.total / 10 or since >= self.reported_at - self.started
        if (is_much and since >= SECONDS_BETWEEN_LINES) or self.done == self.total:
            self.reported, self.reported_at = self.done, now
            say(f"{self.title}: {self.done:,}/{self.total:,} {self.unit}, {self._times()}")

    def _times(self) -> str:
        elapsed = time.monotonic() - self.started
        left = elapsed * (self.total - self.done) / (self.done - (self.done_before or 0))
        return ", ".join(
            f"{timedelta(seconds=round(seconds))} {what}"
            for seconds, what in ((elapsed, "elapsed"), (left, "to go"))
            if seconds
        )


def say(message: str) -> None:
    """Print a message on standard error."""
    console.print(message, markup=False, soft_wrap=True)
