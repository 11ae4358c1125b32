"""A Ray cluster: jobs are tasks, and those of a node that dies are run again on another. Nothing else knows Ray."""

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
from dtrak.engines.this_process import exactly
from dtrak.errors import DtrakError, UsageError
from dtrak.limits import MOST, shortened
from dtrak.sigterm import restore_handler

SECONDS_TO_ANSWER = 10.0


class RayCluster:
    is_here = False
    is_remote = True

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers  # as many as the cluster has CPUs for if None
        self.address = address  # "auto", host:port, or None for a cluster of its own on this machine
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
    def _connected(self, threads: int, gpu: bool, card: int | None) -> Iterator[None]:
        """Use the connection there is, or make one and close it again."""
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
            own = {"num_cpus": cpus, "num_gpus": len(cards), "include_dashboard": False}
            with _visible(cards):
                ray.init("local", _node_ip_address="127.0.0.1", **own, **quiet)
        else:
            try:
                _check_answers(self.address)
                ray.init(self.address, **quiet)
            except (OSError, RuntimeError, ValueError) as error:  # a name that is too long for one is a ValueError
                reason = " ".join(str(error).split())[:200]
                raise UsageError(
                    f"no Ray cluster at {self.address}: `ray start --head` starts one, and says its address ({reason})"
                ) from error
        restore_handler()  # Ray would abort the process
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


@contextmanager
def _visible(cards: list[str]) -> Iterator[None]:
    """Let what is started meanwhile see these GPUs only; whatever is visible if there are none."""
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
        # Read on import. Without it, Ray takes 127.0.0.1 for the machine's address in its network.
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


def _check_answers(address: str) -> None:
    """Ray itself would knock for many minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()


def _answer(task: tuple[Callable[[Context, Job], Result], Context], job: Job, threads: int) -> bytes:
    """In a worker of the cluster. Arrays as they are would come back as views of memory that goes with the cluster."""
    work, context = task
    with exactly(threads):
        return pickle.dumps(attempt(work, context, job))
