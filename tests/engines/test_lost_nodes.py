"""A node of a Ray cluster that is killed loses nothing, and costs its worker one job at most."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from dtrak.engines import make_engine
from marking import mark, marks, wait_until
from processes import children

JOBS = 20
WORKERS = 3  # one on each node that has a CPU
LARGE = 1 << 20  # bytes of a result that stays on its node until it is fetched


class Node:
    """A node of the cluster, with the jobs that have left marks in a folder."""

    def __init__(self, node: Any, folder: Path) -> None:
        self.raylet, self.folder = node.all_processes["raylet"][0].process.pid, folder

    def jobs(self, what: str) -> set[int]:
        """The jobs that the processes of this node have started, or ended."""
        workers = {str(pid) for pid in children(self.raylet)}
        found = (path.name.split("-") for path in self.folder.glob(f"{what}-*"))
        return {int(job) for _, job, pid, _ in found if pid in workers}

    def running(self) -> set[int]:
        ended = self.jobs("end")  # first, so that a job which ends meanwhile counts as running
        return self.jobs("start") - ended

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def kill_running(self) -> set[int]:
        """Kill the node if it is in the middle of a job, and return that job."""
        self._send(signal.SIGSTOP)  # so that the job does not end meanwhile
        running = self.running()
        self._send(signal.SIGKILL if running else signal.SIGCONT)
        return running

    def _send(self, what: signal.Signals) -> None:
        for pid in (self.raylet, *children(self.raylet)):
            os.kill(pid, what)


def starts(folder: Path) -> list[int]:
    return [marks(folder, f"start-{job}") for job in range(JOBS)]


def together(folder: Path, job: int) -> int:
    """A job that waits for every worker to begin one, as a slow machine may start the victim's last."""
    mark(folder, f"start-{job}")
    wait_until(lambda: len({path.name.split("-")[2] for path in folder.glob("start-*")}) >= WORKERS, seconds=120)
    time.sleep(0.5)
    mark(folder, f"end-{job}")
    return job


def large(folder: Path, job: int) -> bytes:
    return bytes([together(folder, job)]) * LARGE


def test_nothing_is_lost_and_nothing_finished_is_done_again(ray_nodes: Any, extra_node: Any, tmp_path: Path) -> None:
    victim, results, lost = Node(extra_node, tmp_path), [], set[int]()
    for job, result in make_engine("ray", address=ray_nodes.address).run(together, tmp_path, range(JOBS)):
        results.append((job, result))
        lost = lost or victim.kill_running()
    assert len(lost) == 1
    assert sorted(results) == [(job, job) for job in range(JOBS)]
    assert [marks(tmp_path, f"end-{job}") for job in range(JOBS)] == [1] * JOBS
    assert starts(tmp_path) == [2 if job in lost else 1 for job in range(JOBS)]


def test_a_worker_begins_no_job_before_its_last_result_is_safe(ray_nodes: Any, extra_node: Any, tmp_path: Path) -> None:
    """The caller does something else when the victim has a result, which is lost with it. The next job is not begun."""
    victim, results, lost = Node(extra_node, tmp_path), {}, set[int]()
    for job, result in make_engine("ray", address=ray_nodes.address).run(large, tmp_path, range(JOBS)):
        results[job] = result
        if not lost and (lost := victim.running()):
            wait_until(lambda lost=lost: lost <= victim.jobs("end"))  # type: ignore[misc]
            time.sleep(1)  # in which another job could begin, and end
            victim.kill()
    assert len(lost) == 1
    assert results == {job: bytes([job]) * LARGE for job in range(JOBS)}
    assert starts(tmp_path) == [2 if job in lost else 1 for job in range(JOBS)]
