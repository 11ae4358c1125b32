"""Questions that take their time: one thread answers them in order, a few may wait, and all tell how far they are."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from dtrak.errors import DtrakError
from dtrak.noise import stable_hash
from dtrak.progress import watched_by

WAITING = 8  # questions at the most
REMEMBERED = 500  # that have ended
PENDING = ("waiting", "working")

Work = Callable[[], str | None]  # gives the id of what it has made, if that is news


class FullError(Exception):
    """Too many questions wait already."""


class StoppedError(Exception):
    """The server goes down, and the work with it."""


@dataclass(eq=False)
class Question:
    """One piece of work, and how far it is."""

    id: str
    title: str
    work: Work | None  # until it is done: it may hold a picture
    is_bounded: bool = True  # whether it counts among those that wait
    state: Literal["waiting", "working", "done", "failed"] = "waiting"
    stage: str = ""  # what is done now, and how much of it
    done: int = 0
    total: int = 0
    unit: str = ""
    stage_began: float = field(default_factory=time.monotonic)
    result: str | None = None
    error: str | None = None

    def progressed(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage != self.stage or done < self.done:
            self.stage_began = time.monotonic()
        self.stage, self.done, self.total, self.unit = stage, done, total, unit

    def described(self, ahead: int) -> dict[str, Any]:
        """For the page; `ahead` is how many questions come before it."""
        names = ("id", "title", "state", "stage", "done", "total", "unit", "result", "error")
        described = {name: getattr(self, name) for name in names}
        return described | {"ahead": ahead, "seconds": round(time.monotonic() - self.stage_began, 1)}


class Questions:
    """The queue and its thread."""

    def __init__(self, waiting: int = WAITING) -> None:
        self.most_waiting = waiting
        self.by_id: dict[str, Question] = {}
        self._waiting: deque[Question] = deque()
        self._change = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._answer_all, name="questions", daemon=True)
        self._thread.start()

    def ask(self, key: str, title: str, work: Work, *, is_bounded: bool = True) -> Question:
        """Put a question at the end of the queue; the same one, unless it failed, is not asked twice.

        Those that the server asks itself need no bound: there are only so many. It asks them again if it has to, as
        what was made ready may be forgotten.
        """
        id_ = f"{stable_hash(key):016x}"
        with self._change:
            known = self.by_id.get(id_)
            if known is not None and (known.state in PENDING or (known.state == "done" and is_bounded)):
                return known
            if is_bounded and sum(one.is_bounded for one in self._waiting) >= self.most_waiting:
                raise FullError
            question = Question(id_, title, work, is_bounded)
            self.by_id.pop(id_, None)
            self.by_id[id_] = question
            self._forget()
            self._waiting.append(question)
            self._change.notify()
        return question

    def forget(self, result: str) -> None:
        """Answer anew whoever asks for this result, which is no longer there."""
        with self._change:
            for one in [one for one in self.by_id.values() if one.result == result]:
                del self.by_id[one.id]

    def described(self, question: Question) -> dict[str, Any]:
        with self._change:
            ahead = self._waiting.index(question) + 1 if question in self._waiting else 0
        return question.described(ahead)

    def close(self, patience: float = 3) -> bool:
        """End the thread, at the next step of what it does; whether it came to that in so many seconds."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _forget(self) -> None:
        """The oldest that have ended."""
        ended = [one for one in self.by_id.values() if one.state not in PENDING]
        for one in ended[:-REMEMBERED]:
            del self.by_id[one.id]

    def _answer_all(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closing)
                if self._closing:
                    return
                question = self._waiting.popleft()
                question.state = "working"
            with suppress(StoppedError):
                self._answer(question)

    def _answer(self, question: Question) -> None:
        def watcher(stage: str, done: int, total: int, unit: str) -> None:
            if self._closing:
                raise StoppedError
            question.progressed(stage, done, total, unit)

        assert question.work is not None
        try:
            with watched_by(watcher):
                question.result = question.work()
            question.state = "done"
        except StoppedError:
            raise
        except DtrakError as error:
            question.error, question.state = str(error), "failed"
        except Exception as error:  # whatever it is, the next question deserves its answer
            question.error, question.state = f"{type(error).__name__}: {error}", "failed"
        finally:
            question.work = None
