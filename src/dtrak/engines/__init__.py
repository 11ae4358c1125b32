"""Where work runs: in this process, in a pool of processes on this machine, or on a Ray cluster.

An engine calls `work(context, job)` for every job. What it returns comes home to the caller, so no file system has to
be shared. A job has the same number of threads wherever it runs, so its sums are the same, bit for bit. Adding an
engine is a class and a line in `make_engine`.
"""

import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from dtrak.errors import DtrakError, UsageError, choose
from dtrak.limits import check_number

Context = TypeVar("Context")
Job = TypeVar("Job")
Result = TypeVar("Result")

ENGINES = ("process", "pool", "ray")
MOST_DEATHS = 3  # of workers, over one job


class Engine(Protocol):
    is_here: bool  # whether jobs run in this process, and call its GPUs as it does
    is_remote: bool  # whether its workers may see other files than this process

    def run(
        self,
        work: Callable[[Context, Job], Result],
        context: Context,
        jobs: Sequence[Job],
        threads: int = 1,
        gpu: bool = False,
        card: int | None = None,
    ) -> Iterator[tuple[Job, Result]]:
        """Yield every job with its result when it is done, in any order.

        `work` is a function at the top of a module; each worker is sent the context once. A job has so many `threads`,
        and with `gpu` one of the GPUs to itself, which it sees as the only one: any of them, or the one that this
        process calls `cuda:card`.
        """
        ...


def make_engine(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of that name; `workers` jobs at a time if given, on the Ray cluster at `address` if given."""
    choose("engine", name, ENGINES)
    if workers is not None:
        check_number("workers", workers)
    if address is not None and name != "ray":
        raise UsageError(f"address {address}: only the engine ray has one, not {name}")
    if name == "ray":
        from dtrak.engines.ray_cluster import RayCluster

        return RayCluster(workers, address)
    if name == "pool":
        from dtrak.engines.pool import Pool

        return Pool(workers)
    if workers is not None and workers > 1:
        raise UsageError(f"workers {workers}: the engine process is a single one; choose pool or ray for more")
    from dtrak.engines.this_process import ThisProcess

    return ThisProcess()


def gpu_of(device: str) -> tuple[bool, int | None]:
    """Whether a device is a GPU of the kind that engines give to jobs, and which one if it is not any of them."""
    kind, _, index = device.partition(":")
    return kind == "cuda", int(index) if index else None


def device_of_worker(engine: Engine, device: str) -> str:
    """What a job that was given this device calls it: a worker sees one GPU only."""
    return device if engine.is_here or not gpu_of(device)[0] else "cuda"


def attempt(work: Callable[[Context, Job], Result], context: Context, job: Job) -> tuple[Result] | Exception:
    """The answer of a worker that must not die of a job: (result,), or the exception that came instead."""
    try:
        return (work(context, job),)
    except Exception as error:
        return sendable(error)


def sendable(error: Exception) -> Exception:
    """The exception with its traceback as a note; a plain one with the same message if it cannot be pickled."""
    story = traceback.format_exc()
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = DtrakError(f"{type(error).__name__}: {error}")
    copy.add_note(story)
    return copy


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
