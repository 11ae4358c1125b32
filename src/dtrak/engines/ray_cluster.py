"""Run jobs on a Ray cluster. No other module imports Ray.

There is one actor, a process of the cluster, for each job that runs at a time. It receives the context once, and a job
when the result of its last one has come home: a large result is on the actor's node alone until it is fetched. If an
actor dies, or its node does, it has lost one job, which others run again.
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
from typing import Any

from dtrak.checks import shortened
from dtrak.contracts import Context, Job, Result
from dtrak.engines.jobs import MOST_DEATHS, attempt, cores
from dtrak.engines.pool import THREAD_VARIABLES, VISIBLE_CARDS, chosen_gpus
from dtrak.errors import DtrakError, UsageError

SECONDS_TO_CONNECT = 10.0
START = -1  # stands for the index of a job: an actor is not ready yet
QUIET = {"logging_level": logging.ERROR, "log_to_driver": False}


class RayCluster:
    """An engine that runs jobs on a Ray cluster."""

    is_here = False

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers  # None: as many as the CPUs of the cluster allow
        self.address = address  # "auto", host:port, or None to start a cluster on this machine
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        if address is None:
            # Ray reads this on import. Without it, Ray would use this machine's address in its network, not 127.0.0.1.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        elif address != "auto":
            host, _, port = address.rpartition(":")
            if not host or not re.fullmatch(r"\d{1,5}", port) or int(port) >= 2**16:
                would_do = "give the host:port of a Ray cluster, or auto for the one on this machine"
                raise UsageError(f"address {shortened(address)}: {would_do}")
        try:
            import ray
        except ModuleNotFoundError:
            raise UsageError("the engine ray is not installed: pip install 'dtrak[ray]'") from None
        self.ray: Any = ray

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
        ray = self.ray
        with self._connected(threads, gpu, card) as room:
            make = ray.remote(num_cpus=threads, num_gpus=int(gpu), max_restarts=0)(Actor).remote
            task, left, waiting, deaths = ray.put((work, context)), len(jobs), deque(range(len(jobs))), Counter[int]()
            calls: dict[Any, tuple[Any, int, Any]] = {}  # actors by their replies to come, with the job and its index
            try:
                while left:
                    for _ in range(min(self.workers or room, left) - len(calls)):
                        actor = make([task], threads)
                        calls[actor.ready.remote()] = actor, START, "starting a worker"
                    (done,), _ = ray.wait(list(calls))
                    actor, index, job = calls.pop(done)
                    try:
                        reply = pickle.loads(ray.get(done))
                    except ray.exceptions.RayError as error:
                        ray.kill(actor)  # it may be alive, if only its reply was lost
                        deaths[index] += 1
                        if deaths[index] == MOST_DEATHS:
                            reason = str(error).strip().splitlines()[-1]
                            died = f"{MOST_DEATHS} workers died while running it, the last one so: {reason}"
                            raise DtrakError(f"{job}: {died}") from None
                        if index != START:
                            waiting.appendleft(index)
                        continue
                    if isinstance(reply, Exception):
                        raise reply
                    if waiting:
                        following = waiting.popleft()
                        given = jobs[following]  # a sequence may make its jobs when they are asked for
                        calls[actor.run.remote(given)] = actor, following, given
                    else:
                        ray.kill(actor)  # its place may be needed for one that takes over from a lost one
                    if index == START:
                        deaths[START] = 0
                    else:
                        left -= 1
                        yield job, reply[0]
            finally:
                for actor, *_ in calls.values():
                    ray.kill(actor)

    @contextmanager
    def _connected(self, threads: int, gpu: bool, card: int | None) -> Iterator[int]:
        """Use the open connection to a cluster, or make one for the block; give how many jobs have room at a time."""
        ray = self.ray
        is_open = ray.is_initialized()
        if card is not None and (is_open or self.address is not None):
            raise UsageError(f"device cuda:{card}: a running Ray cluster chooses the GPUs itself: give --device cuda")
        if not is_open:
            before = signal.getsignal(signal.SIGTERM)
            self._connect(threads, chosen_gpus(card) if gpu and self.address is None else [])
            with suppress(ValueError):  # this is not the main thread, and Ray has set no handler
                signal.signal(signal.SIGTERM, before)  # Ray's would abort the process
        try:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            sizes = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in nodes]
            if (most := max((cpus for cpus, _ in sizes), default=0)) < threads:  # jobs would wait for ever
                raise UsageError(
                    f"a job takes {threads} threads, but no node of the Ray cluster has more than {most} CPUs"
                )
            if gpu and not any(gpus for _, gpus in sizes):
                raise UsageError("a job takes a GPU, but no node of the Ray cluster has one: give --device cpu")
            yield max(1, sum(min(cpus // threads, gpus if gpu else cpus) for cpus, gpus in sizes))
        finally:
            if not is_open:
                ray.shutdown()

    def _connect(self, threads: int, cards: list[str]) -> None:
        """Connect to the cluster at the address, or start one on this machine that has these GPUs only."""
        if self.address is not None:
            try:
                if self.address != "auto":  # Ray itself would try for many minutes
                    host, _, port = self.address.rpartition(":")
                    socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()
                self.ray.init(self.address, **QUIET)
            except (OSError, RuntimeError, ValueError) as error:  # ValueError: a host name that is too long
                raise UsageError(
                    f"no Ray cluster at {self.address}: `ray start --head` starts one, and says its address "
                    f"({' '.join(str(error).split())[:200]})"
                ) from error
            return
        cpus = (self.workers or max(1, cores() // threads)) * threads
        visible = os.environ.get(VISIBLE_CARDS)
        try:
            if cards:
                os.environ[VISIBLE_CARDS] = ",".join(cards)
            resources = {"num_cpus": cpus, "num_gpus": len(cards), "include_dashboard": False}
            self.ray.init("local", _node_ip_address="127.0.0.1", **resources, **QUIET)
        finally:
            os.environ.pop(VISIBLE_CARDS, None)
            if visible is not None:
                os.environ[VISIBLE_CARDS] = visible


class Actor:
    """A process of the cluster that runs jobs. Replies are pickled: Ray returns arrays as views of its own memory,
    which is gone after the cluster is closed.
    """

    def __init__(self, task: list[Any], threads: int) -> None:
        import ray

        os.environ |= dict.fromkeys(THREAD_VARIABLES, str(threads))  # before torch is loaded, which comes with the task
        self.work, self.context = ray.get(task[0])

    def ready(self) -> bytes:
        return pickle.dumps(None)

    def run(self, job: Any) -> bytes:
        return pickle.dumps(attempt(self.work, self.context, job))
