"""Jobs: what workers do with them, the devices that they get, and the engine that runs them in this process."""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

from dtrak.contracts import Context, Engine, Job, Result
from dtrak.errors import DtrakError

MOST_DEATHS = 3  # after so many workers have died while running a job, it is given up


class ThisProcess:
    """An engine that runs jobs in this process, one after the other."""

    is_here = True

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        pass  # there is nothing to choose

    def run(
        self,
        work: Callable[[Context, Job], Result],
        context: Context,
        jobs: Sequence[Job],
        threads: int = 1,
        gpu: bool = False,
        card: int | None = None,
    ) -> Iterator[tuple[Job, Result]]:
        from dtrak.devices import torch_threads  # workers start without torch

        for job in jobs:
            with torch_threads(threads):
                result = work(context, job)
            yield job, result


def gpu_of(device: str) -> tuple[bool, int | None]:
    """Return whether a device is a GPU that engines can give to jobs, and its number if the device names one."""
    kind, _, index = device.partition(":")
    return kind == "cuda", int(index) if index else None


def device_of_worker(engine: Engine, device: str) -> str:
    """Return the name that a job has for this device: a worker sees only its own GPU, as `cuda`."""
    return device if engine.is_here or not gpu_of(device)[0] else "cuda"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def attempt(work: Callable[[Context, Job], Result], context: Context, job: Job) -> tuple[Result] | Exception:
    """Run a job; return (result,), or the exception that it raised, so that no error of a job ends its worker."""
    try:
        return (work(context, job),)
    except Exception as error:
        return sendable(error)


def sendable(error: Exception) -> Exception:
    """Return the exception with its traceback as a note; if it cannot be pickled, a DtrakError with its message."""
    trace = traceback.format_exc()
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = DtrakError(f"{type(error).__name__}: {error}")
    copy.add_note(trace)
    return copy
