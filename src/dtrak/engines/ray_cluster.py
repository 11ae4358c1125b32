"""Run jobs on a Ray cluster. No other module imports Ray.

There is one actor for each job that runs at a time. It receives the context once, and never has more than two jobs, of
which the second begins when the result of the first has come home. If a node dies, each of its actors loses at most one
job that had begun, and others run it again.
"""

import logging
import os
import pickle
import re
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Semaphore
from typing import Any, Generic

from dtrak.checks import MOST, shortened
from dtrak.contracts import Context, Job, Result
from dtrak.engines.engine import MOST_DEATHS, attempt, cores
from dtrak.engines.pool import VISIBLE_CARDS, chosen_gpus
from dtrak.engines.this_process import torch_threads
from dtrak.errors import DtrakError, UsageError

SECONDS_TO_CONNECT = 10.0
GIVEN = 2  # jobs that an actor has: one runs, and the other is there when it may begin
HEARING = "hearing"  # the thread in which an actor hears from the caller while it runs a job


class RayCluster:
    """An engine that runs jobs on a Ray cluster."""

    is_here = False

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers  # None: as many as the CPUs of the cluster allow
        self.address = address  # "auto", host:port, or None to start a cluster on this machine
        if address is not None:
            _check_address(address)
        self.ray = _import_ray(on_this_machine=address is None)

    def run(
        self,
        work: Callable[[Context, Job], Result],
        context: Context,
        jobs: Sequence[Job],
        threads: int = 1,
        gpu: bool = False,
        card: int | None = None,
    ) -> Iterator[tuple[Job, Result]]:
        if not jobs:
            return
        with self._connected(threads, gpu, card):
            crew: Crew[Job] = Crew(self.ray, (work, context), threads, gpu)
            waiting, deaths = deque(range(len(jobs))), Counter[int | None]()
            try:
                crew.start(min(self.workers or self._room(threads, gpu), len(jobs)))
                while waiting or crew.at_work:
                    actor, given, reply = crew.reply()
                    if isinstance(reply, LostError):
                        index = None if given is None else given.index  # None: it died before its first job
                        deaths[index] += 1
                        if deaths[index] == MOST_DEATHS:
                            raise _given_up(given, reply)
                        waiting.extendleft(one.index for one in crew.replace(actor)[::-1])
                        continue
                    if isinstance(reply, Exception):
                        raise reply
                    while waiting and crew.has_room(actor, len(waiting)):
                        index = waiting.popleft()
                        crew.give(actor, Given(index, jobs[index]))
                    if given is None:
                        deaths[None] = 0
                    else:
                        yield given.job, reply[0]
            finally:
                crew.end()

    def _room(self, threads: int, gpu: bool) -> int:
        """Return how many jobs have room on the nodes of the cluster at a time."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        rooms = [(int(one.get("CPU", 0)) // threads, int(one.get("GPU", 0))) for one in nodes]
        return max(1, sum(min(cpus, gpus) if gpu else cpus for cpus, gpus in rooms))

    @contextmanager
    def _connected(self, threads: int, gpu: bool, card: int | None) -> Iterator[None]:
        """Use the open connection to a cluster, or make one and close it after the block."""
        ray = self.ray
        if card is not None and (self.address is not None or ray.is_initialized()):
            raise UsageError(f"device cuda:{card}: a running Ray cluster chooses the GPUs itself: give --device cuda")
        if ray.is_initialized():
            self._check_fits(threads, gpu)
            yield
            return
        before = signal.getsignal(signal.SIGTERM)
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        if self.address is None:
            cpus = (self.workers or max(1, cores() // threads)) * threads
            cards = chosen_gpus(card) if gpu else []
            resources = {"num_cpus": cpus, "num_gpus": len(cards), "include_dashboard": False}
            with _visible(cards):
                ray.init("local", _node_ip_address="127.0.0.1", **resources, **quiet)
        else:
            try:
                _check_reachable(self.address)
                ray.init(self.address, **quiet)
            except (OSError, RuntimeError, ValueError) as error:  # ValueError: a host name that is too long
                reason = " ".join(str(error).split())[:200]
                raise UsageError(
                    f"no Ray cluster at {self.address}: `ray start --head` starts one, and says its address ({reason})"
                ) from error
        with suppress(ValueError):  # this is not the main thread, and Ray has set no handler
            signal.signal(signal.SIGTERM, before)  # Ray's would abort the process
        try:
            self._check_fits(threads, gpu)
            yield
        finally:
            ray.shutdown()

    def _check_fits(self, threads: int, gpu: bool) -> None:
        """Refuse jobs that fit on no node: they would wait for ever."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        most = max((node.get("CPU", 0) for node in nodes), default=0)
        if most < threads:
            raise UsageError(
                f"a job takes {threads} threads, but no node of the Ray cluster has more than {most:.0f} CPUs"
            )
        if gpu and not any(node.get("GPU", 0) >= 1 for node in nodes):
            raise UsageError("a job takes a GPU, but no node of the Ray cluster has one: give --device cpu")


@contextmanager
def _visible(cards: list[str]) -> Iterator[None]:
    """Let processes that start during the block see only these GPUs; with an empty list, change nothing."""
    before = os.environ.get(VISIBLE_CARDS)
    if cards:
        os.environ[VISIBLE_CARDS] = ",".join(cards)
    try:
        yield
    finally:
        os.environ.pop(VISIBLE_CARDS, None)
        if before is not None:
            os.environ[VISIBLE_CARDS] = before


def _import_ray(on_this_machine: bool) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    if on_this_machine:
        # Ray reads this on import. Without it, Ray would use 127.0.0.1 as this machine's address in its network.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError("the engine ray is not installed: pip install 'dtrak[ray]'") from None
    return ray


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if address == "auto" or (host and re.fullmatch("[0-9]{1,5}", port) and int(port) <= MOST["port"]):
        return
    raise UsageError(
        f"address {shortened(address)}: give the host:port of a Ray cluster, or auto for the one on this machine"
    )


def _check_reachable(address: str) -> None:
    """Raise an OSError if nothing listens at the address; Ray itself would try for many minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()


class LostError(Exception):
    """An actor has died, or its node has."""


@dataclass(frozen=True)
class Given(Generic[Job]):
    """A job that an actor has, with its place among the jobs."""

    index: int
    job: Job


def _given_up(given: Given[Job] | None, last: LostError) -> DtrakError:
    if given is None:
        return DtrakError(f"{MOST_DEATHS} workers of the Ray cluster died while they started, the last one so: {last}")
    return DtrakError(f"{given.job}: {MOST_DEATHS} workers died while running it, the last one so: {last}")


class Crew(Generic[Job]):
    """The actors of a cluster, by number. Each runs one job, and may have another one that waits."""

    def __init__(self, ray: Any, task: tuple[Callable[[Any, Any], Any], Any], threads: int, gpu: bool) -> None:
        self.ray = ray
        needs = {"num_cpus": threads, "num_gpus": int(gpu)}
        remote = ray.remote(**needs, max_restarts=0, concurrency_groups={HEARING: 1})(Actor)
        self._make = partial(remote.remote, ray.put(task), threads)
        self._actors: dict[int, Any] = {}
        self._replies: dict[Any, tuple[int, Given[Job] | None]] = {}  # what is waited for; None for the first reply

    @property
    def at_work(self) -> bool:
        return any(given is not None for _, given in self._replies.values())

    def start(self, count: int) -> None:
        """Start actors. Each gives a first reply when it has the context; before, it may wait for room on a node."""
        for number in range(count):
            self.replace(number)

    def replace(self, number: int) -> list[Given[Job]]:
        """Start an actor in place of one that was lost; return the jobs that were given to the lost one."""
        lost = [reply for reply, (one, _) in self._replies.items() if one == number]
        given = [self._replies.pop(reply)[1] for reply in lost]
        if number in self._actors:
            self.ray.kill(self._actors[number])  # if only a reply was lost, its next job would wait for ever
        self._actors[number] = self._make()
        self._replies[self._actors[number].ready.remote()] = number, None
        return [one for one in given if one is not None]

    def has_room(self, number: int, waiting: int) -> bool:
        """Tell whether an actor may have another job; the last jobs are left to those that have none."""
        most = GIVEN if waiting > len(self._actors) else 1
        return sum(one == number for one, _ in self._replies.values()) < most

    def give(self, number: int, given: Given[Job]) -> None:
        self._replies[self._actors[number].run.remote(given.job)] = number, given

    def reply(self) -> tuple[int, Given[Job] | None, Any]:
        """Wait for any actor; return its number, the job that it had, and its reply or a LostError."""
        (done, *_), _ = self.ray.wait(list(self._replies))
        number, given = self._replies[done]
        try:
            reply = pickle.loads(self.ray.get(done))
        except self.ray.exceptions.RayError as error:
            return number, given, LostError(str(error).strip().splitlines()[-1])
        del self._replies[done]
        if given is not None:
            self._actors[number].go_on.options(concurrency_group=HEARING).remote()
        return number, given, reply

    def end(self) -> None:
        for actor in self._actors.values():
            self.ray.kill(actor)


class Actor:
    """A process of the cluster that runs jobs. Replies are pickled.

    Ray would return plain arrays as views of its own memory, which is gone after the cluster is closed. A large reply
    is on the node of the actor alone until the caller fetches it. So a job begins only when the last reply is home.
    """

    def __init__(self, task: tuple[Callable[[Any, Any], Any], Any], threads: int) -> None:
        self.work, self.context = task
        self.threads = threads
        self.may_begin = Semaphore()

    def ready(self) -> bytes:
        return pickle.dumps(None)

    def go_on(self) -> None:
        """Hear that the last reply is home."""
        self.may_begin.release()

    def run(self, job: Any) -> bytes:
        self.may_begin.acquire()
        with torch_threads(self.threads):
            return pickle.dumps(attempt(self.work, self.context, job))
