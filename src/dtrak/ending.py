"""SIGTERM ends a command as Ctrl-C does: what is under way is given up, what is written is whole, and one line says so.

Python hears a signal only between two steps of its own, and a long computation is one step. So a thread waits beside
the work, and ends the process if it has not ended by itself in time: what was being written is then not there, as after
any kill.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM  # what shells call a process that SIGTERM has ended
MESSAGE = "terminated; the same command goes on where this one stopped"
SECONDS_TO_END = 8.0  # those who send SIGTERM often kill ten seconds later

_came, _heard = threading.Event(), threading.Event()  # to this process; to the work
_listening = threading.Event()  # whether SIGTERM is ours to hear
_said = threading.Lock()  # taken for good by the thread that says the one line


class TerminatedError(BaseException):
    """SIGTERM has come. Like KeyboardInterrupt, no error that someone may catch and go on."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block by a TerminatedError, or else the process."""
    if threading.current_thread() is not threading.main_thread():  # no other thread hears signals
        yield
        return
    _listening.set()
    near, far = socket.socketpair()
    far.setblocking(False)
    threading.Thread(target=_watch, args=[near], daemon=True).start()
    before = signal.signal(signal.SIGTERM, _hear)
    wakeup = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        _listening.clear()
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        far.close()  # which ends the thread


def listen_again() -> None:
    """After a library has taken SIGTERM for itself."""
    if _listening.is_set() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _hear)


def has_come() -> bool:
    return _came.is_set()


def say_once() -> None:
    """Print the one line, unless another thread has."""
    if _said.acquire(blocking=False):
        print(f"dtrak: {MESSAGE}", file=sys.stderr, flush=True)


def leave(code: int) -> None:
    """End the process now, in the midst of whatever it does; what it has written is whole, as after any kill."""
    if has_come():
        code = TERMINATED
        say_once()
    os._exit(code)


def _hear(number: int, frame: FrameType | None) -> None:
    _came.set()
    if not _heard.is_set():  # once is enough
        _heard.set()
        raise TerminatedError


def _watch(signals: socket.socket) -> None:
    """Every signal arrives here as a byte, even in the midst of a long computation."""
    while came := signals.recv(1):
        if came[0] == signal.SIGTERM:
            _came.set()
            time.sleep(SECONDS_TO_END)
            leave(TERMINATED)
