"""A Ray cluster: jobs are tasks, and those of a node that dies are run again on another. Nothing else knows Ray."""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dtrak.ending import listen_again
from dtrak.engines import MOST_DEATHS, Context, Job, Result, attempt, cores
from dtrak.engines.this_process import exactly
from dtrak.errors import DtrakError, UsageError

SECONDS_TO_ANSWER = 10.0


class RayCluster:
    is_remote = True

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers  # as many as the cluster has CPUs for if None
        self.address = address  # "auto", host:port, or None for a cluster of its own on this machine
        self.ray = _import_ray(on_this_machine=address is None)

    def run(
        self,
        work: Callable[[Context, Job], Result],
        context: Context,
        jobs: Sequence[Job],
        threads: int = 1,
        gpu: bool = False,
    ) -> Iterator[tuple[Job, Result]]:
        ray = self.ray
        with self._connected(threads, gpu):
            task = ray.put((work, context))
            remote = ray.remote(num_cpus=threads, num_gpus=int(gpu), max_retries=MOST_DEATHS - 1)(_answer)
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
                            answer = pickle.loads(ray.get(done))
                        except ray.exceptions.RayError as error:
                            raise DtrakError(f"{job}: {str(error).strip().splitlines()[-1]}") from error
                        if isinstance(answer, Exception):
                            raise answer
                        yield job, answer[0]
            finally:
                for unfinished in running:
                    ray.cancel(unfinished, force=True)

    @contextmanager
    def _connected(self, threads: int, gpu: bool) -> Iterator[None]:
        """Use the connection there is, or make one and close it again."""
        ray = self.ray
        if ray.is_initialized():
            self._check_fits(threads, gpu)
            yield
            return
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        if self.address is None:
            cpus = (self.workers or max(1, cores() // threads)) * threads
            ray.init("local", num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            try:
                _check_answers(self.address)
                ray.init(self.address, **quiet)
            except (OSError, RuntimeError) as error:
                reason = " ".join(str(error).split())[:200]
                raise UsageError(
                    f"no Ray cluster at {self.address}: `ray start --head` starts one, and says its address ({reason})"
                ) from error
        listen_again()  # Ray would abort the process
        try:
            self._check_fits(threads, gpu)
            yield
        finally:
            ray.shutdown()

    def _check_fits(self, threads: int, gpu: bool) -> None:
        """A job that fits on no node would wait for ever."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        most = max((node.get("CPU", 0) for node in nodes), default=0)
        if most < threads:
            raise UsageError(
                f"a job takes {threads} threads, but no node of the Ray cluster has more than {most:.0f} CPUs"
            )
        if gpu and not any(node.get("GPU", 0) >= 1 for node in nodes):
            raise UsageError("a job takes a GPU, but no node of the Ray cluster has one: give --device cpu")


def _import_ray(on_this_machine: bool) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    if on_this_machine:
        # Read on import. Without it, Ray takes 127.0.0.1 for the machine's address in its network.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError("the engine ray is not installed: pip install 'dtrak[ray]'") from None
    return ray


def _check_answers(address: str) -> None:
    """Ray itself would knock for many minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise UsageError(
            f"address {address!r}: give the host:port of a Ray cluster, or auto for the one on this machine"
        )
    socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()


def _answer(task: tuple[Callable[[Context, Job], Result], Context], job: Job, threads: int) -> bytes:
    """In a worker of the cluster. Arrays as they are would come back as views of memory that goes with the cluster."""
    work, context = task
    with exactly(threads):
        return pickle.dumps(attempt(work, context, job))
