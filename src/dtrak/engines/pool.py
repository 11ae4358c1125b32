"""A pool of processes on this machine, each of which runs `worker.py` and gets one job at a time.

If a worker dies, only its own job is lost, and another worker runs that job again. Workers end with the process that
started them, even if it is killed: each watches a pipe that is closed when that process ends.
"""

import os
import pickle
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from signal import Signals

from dtrak.contracts import Context, Job, Result
from dtrak.engines.engine import MOST_DEATHS, cores
from dtrak.errors import DtrakError, UsageError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
VISIBLE_CARDS = "CUDA_VISIBLE_DEVICES"
SECONDS_TO_DIE = 5.0


def gpus() -> list[str]:
    """Return the system's names of the GPUs that this process may use."""
    import torch

    chosen = os.environ.get(VISIBLE_CARDS, "")
    return chosen.split(",") if chosen else [str(index) for index in range(torch.cuda.device_count())]


def chosen_gpus(card: int | None) -> list[str]:
    """Return the names of all GPUs, or only of the one that this process calls `cuda:card`."""
    found = gpus()
    if card is not None and card >= len(found):
        raise UsageError(f"device cuda:{card}: there are {len(found)} GPUs, counted from 0")
    return found if card is None else [found[card]]


class Pool:
    """An engine that runs jobs in processes on this machine."""

    is_here = False

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers  # None: as many as the cores or GPUs allow

    def run(
        self,
        work: Callable[[Context, Job], Result],
        context: Context,
        jobs: Sequence[Job],
        threads: int = 1,
        gpu: bool = False,
        card: int | None = None,
    ) -> Iterator[tuple[Job, Result]]:
        task = pickle.dumps((work, context))
        cards = chosen_gpus(card) if gpu else []
        wanted = min(self.workers or len(cards) or max(1, cores() // threads), len(jobs))
        waiting, deaths = deque(range(len(jobs))), Counter[int]()
        idle: list[Worker] = []
        busy: dict[Connection, tuple[Worker, int, Job]] = {}
        try:
            while waiting or busy:
                missing = wanted - len(idle) - len(busy)
                started: list[Worker] = []
                for _ in range(missing):
                    taken = Counter(one.card for one in [*idle, *started, *(one for one, *_ in busy.values())])
                    started.append(Worker(threads, min(cards, key=taken.__getitem__, default=None)))
                idle += started
                for worker in started:  # a second loop, so that all workers start up at the same time
                    worker.send(task)
                while waiting and idle:
                    worker, index = idle.pop(), waiting.popleft()
                    job = jobs[index]  # a sequence may make its jobs when they are asked for
                    busy[worker.connection] = worker, index, job
                    worker.send(pickle.dumps(job))
                for connection in wait(list(busy)):
                    assert isinstance(connection, Connection)
                    worker, index, job = busy.pop(connection)
                    try:
                        reply = connection.recv()
                    except (EOFError, OSError):
                        deaths[index] += 1
                        cause = worker.cause_of_death()
                        if deaths[index] == MOST_DEATHS:
                            died = f"{MOST_DEATHS} workers died while running it, the last one {cause}"
                            raise DtrakError(f"{job}: {died}") from None
                        waiting.appendleft(index)
                        continue
                    idle.append(worker)
                    if isinstance(reply, Exception):
                        raise reply
                    yield job, reply[0]
        finally:
            for worker in [*idle, *(worker for worker, *_ in busy.values())]:
                worker.end()


class Worker:
    """A process that runs `worker.py`, with the connection to it."""

    def __init__(self, threads: int, card: str | None = None) -> None:
        self.card = card  # the only GPU that the process sees
        self.connection, far_end = Pipe()
        settings = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        settings |= {VISIBLE_CARDS: card} if card is not None else {}
        with far_end:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dtrak.engines.worker", str(far_end.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[far_end.fileno()],
                env=os.environ | settings,
                process_group=0,  # Ctrl-C goes to the parent only, which then ends its workers
            )

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # that a worker is dead is noticed when its reply is read
            self.connection.send_bytes(message)

    def cause_of_death(self) -> str:
        """Wait for the process to end, and say why it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_DIE)
        code = self.end()
        return f"killed by {Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def end(self) -> int:
        """Kill the process, and return its exit code."""
        self.connection.close()
        self.process.kill()
        code = self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code
