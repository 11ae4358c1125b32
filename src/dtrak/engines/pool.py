"""A pool of processes on this machine. Each receives the work and its context, then one job at a time.

    python -m dtrak.engines.pool DESCRIPTOR

is such a process, a worker; DESCRIPTOR is its end of the connection to the pool. If a worker dies, only its own job is
lost, and another worker runs that job again. Workers end with the process that started them, even if it is killed: that
closes their standard input, which is used for nothing else.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from signal import Signals

from dtrak.contracts import Context, Job, Result
from dtrak.engines.jobs import MOST_DEATHS, attempt, cores, sendable
from dtrak.errors import DtrakError, UsageError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
VISIBLE_CARDS = "CUDA_VISIBLE_DEVICES"
SECONDS_TO_DIE = 5.0


class Pool:
    """An engine that runs jobs in processes on this machine."""

    is_here = False

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
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
        workers: dict[int, Worker] = {}  # by their places in the pool; who works at a place has its GPU
        busy: dict[Connection, tuple[int, int, Job]] = {}  # the worker's place, the job's index and the job
        try:
            while waiting or busy:
                missing = [place for place in range(wanted) if place not in workers]
                for place in missing:
                    workers[place] = Worker(threads, cards[place % len(cards)] if cards else None)
                for place in missing:  # a second loop, so that all workers start up at the same time
                    workers[place].send(task)
                for place in workers.keys() - {place for place, *_ in busy.values()}:
                    if waiting:
                        index = waiting.popleft()
                        job = jobs[index]  # a sequence may make its jobs when they are asked for
                        busy[workers[place].connection] = place, index, job
                        workers[place].send(pickle.dumps(job))
                for connection in wait(list(busy)):
                    assert isinstance(connection, Connection)
                    place, index, job = busy.pop(connection)
                    try:
                        reply = connection.recv()
                    except (EOFError, OSError):
                        deaths[index] += 1
                        cause = workers.pop(place).cause_of_death()
                        if deaths[index] == MOST_DEATHS:
                            died = f"{MOST_DEATHS} workers died while running it, the last one {cause}"
                            raise DtrakError(f"{job}: {died}") from None
                        waiting.appendleft(index)
                        continue
                    if isinstance(reply, Exception):
                        raise reply
                    yield job, reply[0]
        finally:
            for worker in workers.values():
                worker.end()


def chosen_gpus(card: int | None) -> list[str]:
    """Return the names of all GPUs, or only of the one that this process calls `cuda:card`."""
    found = gpus()
    if card is not None and card >= len(found):
        raise UsageError(f"device cuda:{card}: there are {len(found)} GPUs, counted from 0")
    return found if card is None else [found[card]]


def gpus() -> list[str]:
    """Return the system's names of the GPUs that this process may use."""
    import torch  # which workers load with the work

    chosen = os.environ.get(VISIBLE_CARDS, "")
    return chosen.split(",") if chosen else [str(index) for index in range(torch.cuda.device_count())]


class Worker:
    """A worker's process, as the pool sees it."""

    def __init__(self, threads: int, card: str | None) -> None:
        self.connection, far_end = Pipe()
        settings = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        settings |= {} if card is None else {VISIBLE_CARDS: card}  # the only GPU that the process sees
        with far_end:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dtrak.engines.pool", str(far_end.fileno())],
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


def work_for(connection: Connection) -> None:
    """Run the jobs that come through the connection, and send back their results."""
    try:
        work, context = pickle.loads(connection.recv_bytes())
        while True:
            connection.send(attempt(work, context, pickle.loads(connection.recv_bytes())))
    except (EOFError, BrokenPipeError):  # the pool has closed the connection
        return
    except Exception as error:  # a job or a result cannot be pickled
        connection.send(sendable(error))


def end_with_the_pool() -> None:
    os.read(0, 1)  # nothing is ever written there
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_pool, daemon=True).start()
    work_for(Connection(int(sys.argv[1])))
