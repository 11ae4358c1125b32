"""Run jobs as tasks of a Ray cluster, which repeats those of a node that dies. No other module imports Ray."""

import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dtrak.engines.engine import MOST_DEATHS, Context, Job, Result, attempt, cores
from dtrak.engines.pool import VISIBLE_CARDS, chosen_gpus
from dtrak.engines.this_process import torch_threads
from dtrak.errors import DtrakError, UsageError
from dtrak.limits import MOST, shortened
from dtrak.sigterm import restore_handler

SECONDS_TO_CONNECT = 10.0


class RayCluster:
    """An engine that runs jobs on a Ray cluster."""

    is_here = False
    is_remote = True

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
        ray = self.ray
        with self._connected(threads, gpu, card):
            task = ray.put((work, context))
            remote = ray.remote(num_cpus=threads, num_gpus=int(gpu), max_retries=MOST_DEATHS - 1)(_run_job)
            waiting = list(range(len(jobs)))[::-1]
            running: dict[Any, int] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < (self.workers or len(jobs)):
                        index = waiting.pop()
                        running[remote.remote(task, jobs[index], threads)] = index
                    for done in ray.wait(list(running))[0]:
                        job = jobs[running.pop(done)]
                        try:
                            reply = pickle.loads(ray.get(done))
                        except ray.exceptions.RayError as error:
                            raise DtrakError(f"{job}: {str(error).strip().splitlines()[-1]}") from error
                        if isinstance(reply, Exception):
                            raise reply
                        yield job, reply[0]
            finally:
                for unfinished in running:
                    ray.cancel(unfinished, force=True)

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
        restore_handler()  # at SIGTERM, Ray's handler would abort the process
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


def _run_job(task: tuple[Callable[[Context, Job], Result], Context], job: Job, threads: int) -> bytes:
    """Run a job in a worker of the cluster, and return the pickled result.

    Ray would return plain arrays as views of its own memory, which is gone after the cluster is closed.
    """
    work, context = task
    with torch_threads(threads):
        return pickle.dumps(attempt(work, context, job))
