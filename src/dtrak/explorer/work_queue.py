"""A queue for work that takes long: one thread does it in order, few items may wait, and each reports its progress."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dtrak.errors import DtrakError
from dtrak.noise import stable_hash
from dtrak.progress import watched_by

MAX_WAITING = 8  # items
MAX_ENDED = 500  # items that have ended and can still be looked up
SECONDS_TO_CLOSE = 3
PENDING = ("waiting", "working")

Work = Callable[[], str | None]  # may return the id of the picture that it has added


class FullError(Exception):
    """Too many items are waiting."""


class StoppedError(Exception):
    """The server is being shut down, which ends the work."""


@dataclass(eq=False)
class WorkItem:
    """One piece of work and its progress."""

    id: str
    title: str
    work: Work | None  # None when it is done, as it may hold a picture
    is_bounded: bool = True  # whether it counts for `MAX_WAITING`
    state: Literal["waiting", "working", "done", "failed"] = "waiting"
    stage: str = ""  # the part that is being done; `done` of its `total` units are
    done: int = 0
    total: int = 0
    unit: str = ""
    stage_began: float = field(default_factory=time.monotonic)
    result: str | None = None
    error: str | None = None

    def described(self, ahead: int) -> dict[str, Any]:
        """Return the item as JSON for the page; `ahead` is the number of items before it."""
        names = ("id", "title", "state", "stage", "done", "total", "unit", "result", "error")
        described = {name: getattr(self, name) for name in names}
        return described | {"ahead": ahead, "seconds": round(time.monotonic() - self.stage_began, 1)}


class NotReadyError(Exception):
    """What was asked for is not computed yet, but the work has been queued."""

    def __init__(self, item: WorkItem) -> None:
        super().__init__(item.title)
        self.item = item


class WorkQueue:
    """The queue and its thread."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self.max_waiting = max_waiting
        self.by_id: dict[str, WorkItem] = {}
        self._waiting: deque[WorkItem] = deque()
        self._change = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="work queue", daemon=True)
        self._thread.start()

    def add(self, key: str, title: str, work: Work, *, is_bounded: bool = True) -> WorkItem:
        """Put work at the end of the queue, and return its item; work with the same key is not done twice.

        Work that failed is done again when it is added again. So is work with `is_bounded=False`, which the server adds
        for itself when it needs scores that it no longer has; there is little of it, so it needs no limit.
        """
        id_ = f"{stable_hash(key):016x}"
        with self._change:
            known = self.by_id.get(id_)
            if known is not None and (known.state in PENDING or (known.state == "done" and is_bounded)):
                return known
            if is_bounded and sum(one.is_bounded for one in self._waiting) >= self.max_waiting:
                raise FullError
            item = WorkItem(id_, title, work, is_bounded)
            self.by_id.pop(id_, None)
            self.by_id[id_] = item
            ended = [one for one in self.by_id.values() if one.state not in PENDING]
            for one in ended[:-MAX_ENDED]:
                del self.by_id[one.id]
            self._waiting.append(item)
            self._change.notify()
        return item

    def forget(self, result: str) -> None:
        """Forget items with this result, which no longer exists, so that the same work can be done again."""
        with self._change:
            self.by_id = {id_: one for id_, one in self.by_id.items() if one.result != result}

    def described(self, item: WorkItem) -> dict[str, Any]:
        """Return an item as JSON for the page."""
        with self._change:
            ahead = self._waiting.index(item) + 1 if item in self._waiting else 0
        return item.described(ahead)

    def close(self) -> bool:
        """Tell the thread to end when its work next reports progress; return whether it ended in time."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(SECONDS_TO_CLOSE)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Do the work in order, until the queue is closed."""

        def watcher(stage: str, done: int, total: int, unit: str) -> None:
            if self._closing:
                raise StoppedError
            if stage != item.stage or done < item.done:
                item.stage_began = time.monotonic()
            item.stage, item.done, item.total, item.unit = stage, done, total, unit

        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closing)
                if self._closing:
                    return
                item = self._waiting.popleft()
                item.state = "working"
            assert item.work is not None
            try:
                with watched_by(watcher):
                    item.result = item.work()
                item.state = "done"
            except StoppedError:
                return
            except Exception as error:  # no error may end the thread
                item.error = str(error) if isinstance(error, DtrakError) else f"{type(error).__name__}: {error}"
                item.state = "failed"
            finally:
                item.work = None
