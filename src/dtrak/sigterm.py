"""SIGTERM ends a command as Ctrl-C does: the work stops, files that were written stay complete, and one line says so.

Python handles a signal only between two of its instructions, and a long computation in torch is one instruction. So a
second thread waits for the signal as well, and ends the process if the work has not ended in time. A file that was
being written is then missing, as after any kill.
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

TERMINATED = 128 + signal.SIGTERM  # the exit code that shells give to a process ended by SIGTERM
MESSAGE = "terminated; the same command goes on where this one stopped"
SECONDS_TO_END = 8.0  # schedulers often send SIGKILL ten seconds after SIGTERM

_received = threading.Event()  # whether SIGTERM has come to this process
_raised = threading.Event()  # whether TerminatedError was raised in the work
_handling = threading.Event()  # whether the block of `ended_by_sigterm` is running
_printing = threading.Lock()  # taken by the first thread that prints the message, and never released


class TerminatedError(BaseException):
    """SIGTERM has come. Like KeyboardInterrupt it is no Exception, so that `except Exception` does not catch it."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise a TerminatedError in the block, or end the process if the block does not end in time."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main thread only
        yield
        return
    _handling.set()
    near, far = socket.socketpair()
    far.setblocking(False)
    threading.Thread(target=_watch, args=[near], daemon=True).start()
    before = signal.signal(signal.SIGTERM, _handle)
    wakeup = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        _handling.clear()
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        far.close()  # this ends the thread


def restore_handler() -> None:
    """Handle SIGTERM here again, after a library has installed its own handler."""
    if _handling.is_set() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _handle)


def was_received() -> bool:
    """Tell whether SIGTERM has come to this process."""
    return _received.is_set()


def print_message_once() -> None:
    """Print the message, unless another thread has printed it."""
    if _printing.acquire(blocking=False):
        print(f"dtrak: {MESSAGE}", file=sys.stderr, flush=True)


def exit_now(code: int) -> None:
    """End the process at once; the files that it has written are complete, as after any kill."""
    if was_received():
        code = TERMINATED
        print_message_once()
    os._exit(code)


def _handle(number: int, frame: FrameType | None) -> None:
    _received.set()
    if not _raised.is_set():  # a second SIGTERM must not interrupt the cleaning up after the first
        _raised.set()
        raise TerminatedError


def _watch(signals: socket.socket) -> None:
    """Wait for signals, each of which arrives as a byte, even during a long computation."""
    while received := signals.recv(1):
        if received[0] == signal.SIGTERM:
            _received.set()
            time.sleep(SECONDS_TO_END)
            exit_now(TERMINATED)
