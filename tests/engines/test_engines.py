"""Engines: the same results wherever work runs, nothing lost to what dies, and nothing left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrak.engines import ENGINES, Engine, make_engine
from dtrak.errors import DtrakError, UsageError
from dtrak.images.images import load_images
from marking import PATHS, mark, marked, marks, wait_until
from pictures_on_disk import save_image
from processes import children

# What jobs do.


def double(context: int, job: int) -> tuple[int, int]:
    return context, 2 * job


def fail(context: str, job: int) -> None:
    raise UsageError(f"{context} {job}")


class TwoPartsError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def fail_strangely(context: str, job: int) -> None:
    raise TwoPartsError(context, str(job))


def die_at_first(folder: Path, job: int) -> int:
    mark(folder, f"start-{job}")
    if job == 1 and marks(folder, "start-1") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def die(folder: Path, job: int) -> None:
    mark(folder, f"start-{job}")
    os.kill(os.getpid(), signal.SIGKILL)


def compute_for_ever(folder: Path, job: int) -> None:
    mark(folder, "start")
    while True:
        sum(range(1000))


def threads_and_sum(context: int, job: int) -> tuple[int, bytes]:
    """A product of matrices, whose rounding depends on how many threads share it."""
    import torch

    a, b = (torch.randn(300, 300, generator=torch.Generator().manual_seed(seed)) for seed in (job, context))
    return torch.get_num_threads(), (a @ b).sum().numpy().tobytes()


class Counted:
    """A context that leaves a mark wherever it arrives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        mark(self.folder, "arrival")


def rest(context: Counted, job: int) -> int:
    time.sleep(0.1)
    return job


# A node of a Ray cluster, and jobs that are under way when it is killed

JOBS = 10
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


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Callable[[str], Engine]:
    """Engines by name, Ray's on the cluster above."""

    def make_by_name(name: str) -> Engine:
        if name == "ray":
            request.getfixturevalue("ray_connection")
        return make_engine(name)

    return make_by_name


# Ray's own ways, before the tests below stay connected


def test_a_ray_cluster_of_its_own_stays_on_this_machine_and_ends(ray_home: None) -> None:
    """Its jobs have their threads, too."""
    import ray

    before = set(children(os.getpid()))
    running = make_engine("ray", workers=1).run(threads_and_sum, 5, range(3), 2)
    answers = [next(running)]
    (node,) = ray.nodes()
    assert node["NodeManagerAddress"] == "127.0.0.1"
    assert node["Resources"]["CPU"] == 2
    answers += running
    assert not ray.is_initialized()
    wait_until(lambda: set(children(os.getpid())) <= before)
    assert sorted(answers) == sorted(make_engine("process").run(threads_and_sum, 5, range(3), 2))


@pytest.mark.parametrize(
    ("address", "says"),
    [("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: .* refused"), ("here", "'here': give the host:port of a Ray")],
)
def test_a_cluster_that_is_not_there_is_named_at_once(ray_home: None, address: str, says: str) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match=says):
        list(make_engine("ray", address=address).run(double, 1, [1]))
    assert time.monotonic() - began < 5


# a node of a cluster that is killed loses nothing, and costs its worker one job at most


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


# all of them


@pytest.mark.parametrize("name", ENGINES)
def test_every_job_comes_back_with_its_result(name: str, make: Callable[[str], Engine]) -> None:
    results = list(make(name).run(double, 7, range(9)))
    assert sorted(results) == [(job, (7, 2 * job)) for job in range(9)]
    assert list(make(name).run(double, 7, [])) == []


@pytest.mark.parametrize("name", ENGINES)
def test_an_exception_comes_to_the_caller_as_it_was(name: str, make: Callable[[str], Engine]) -> None:
    with pytest.raises(UsageError, match="no digit 3"):
        list(make(name).run(fail, "no digit", [3]))


@pytest.mark.parametrize("name", ["pool", "ray"])
def test_an_exception_that_cannot_be_sent_keeps_its_message(name: str, make: Callable[[str], Engine]) -> None:
    with pytest.raises(DtrakError, match="TwoPartsError: one and 2") as caught:
        list(make(name).run(fail_strangely, "one", [2]))
    assert "in fail_strangely" in caught.value.__notes__[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_has_its_threads_wherever_it_runs(threads: int) -> None:
    import torch

    before = torch.get_num_threads()
    answers = {}
    for name in ("process", "pool"):
        answers[name] = sorted(make_engine(name, workers=1).run(threads_and_sum, 5, range(3), threads))
    assert torch.get_num_threads() == before
    assert answers["process"] == answers["pool"]
    assert {found for _, (found, _) in answers["pool"]} == {threads}


def test_retrained_models_are_the_same_on_a_cluster_bit_for_bit(
    make: Callable[[str], Engine], finished_run: Path
) -> None:
    from dtrak.evaluation.training_jobs import Outputs, Retraining, TrainingJob, random_subsets, retrain
    from dtrak.features.model_inputs import ModelInputs
    from dtrak.runs.run import Run

    run = Run.open(finished_run)
    queries = {"validation": ModelInputs(run.query_images("digits:validation").select(range(3)).in_memory())}
    images, masks = ModelInputs(run.train_images.in_memory()), random_subsets(2, 1000)
    context = Retraining(run.recipe, images, masks, queries, Outputs((0, 500)), keep_weights=True)
    job = TrainingJob(1, draw=(4,))
    here, there = (dict(make(name).run(retrain, context, [job]))[job] for name in ("process", "ray"))
    assert here.keys() == there.keys()
    assert all(there[key].tobytes() == array.tobytes() for key, array in here.items() if key != "seconds")


# Where models are retrained on a cluster, above, features find nothing new there.
@pytest.mark.parametrize("name", ["process", "pool", pytest.param("ray", marks=pytest.mark.slow)])
def test_features_are_the_same_on_every_engine_bit_for_bit(
    name: str, make: Callable[[str], Engine], finished_run: Path, tmp_path: Path
) -> None:
    from dtrak.features.spec import Spec
    from dtrak.runs.run import Run
    from featurized import featurize

    run = Run.open(finished_run)
    for row, pixels in enumerate(run.train_images.pixels(range(70))):
        save_image(tmp_path / "images" / f"{row:02d}.png", pixels[..., 0])
    model, images = run.model(), load_images(str(tmp_path / "images"))
    settings = Spec(timesteps="uniform:2", projection_dim=64)
    here = featurize(model, images, ["simple", "square"], settings, tmp_path / "here", "train")
    featurize(model, images, ["square"], settings, tmp_path / "there", "train")
    next(tmp_path.glob("there/train-square-*/shard-00001.safetensors")).unlink()  # found by whoever goes on
    engine = make_engine("pool", workers=1) if name == "pool" else make(name)  # one is enough, and takes seconds
    there = featurize(model, images, ["simple", "square"], settings, tmp_path / "there", "train", engine)
    for objective, store in here.items():
        assert there[objective].numpy().tobytes() == store.numpy().tobytes()
        assert there[objective].cost.gradients > 0


# a pool


def test_a_killed_worker_loses_its_own_job_only_which_is_done_again(tmp_path: Path) -> None:
    results = list(make_engine("pool", workers=2).run(die_at_first, tmp_path, range(6)))
    assert sorted(results) == [(job, job) for job in range(6)]
    assert [marks(tmp_path, f"start-{job}") for job in range(6)] == [1, 2, 1, 1, 1, 1]


def test_a_job_that_kills_three_workers_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(DtrakError, match=r"^5: 3 workers died while running it, the last one killed by SIGKILL$"):
        list(make_engine("pool").run(die, tmp_path, [5]))
    assert marks(tmp_path, "start-5") == 3


def test_a_context_is_sent_to_each_worker_once(tmp_path: Path) -> None:
    assert len(list(make_engine("pool", workers=2).run(rest, Counted(tmp_path), range(8)))) == 8
    assert marks(tmp_path, "arrival") == 2


def test_what_is_not_waited_for_is_not_left_running(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    running = make_engine("pool", workers=2).run(marked, tmp_path, range(50))
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert set(children(os.getpid())) <= before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(number: int, tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\nfrom dtrak.engines import make_engine\nimport test_engines\n"
        f"list(make_engine('pool', workers=2).run(test_engines.compute_for_ever, Path({str(tmp_path)!r}), [1, 2]))"
    )
    environment = {**os.environ, "PYTHONPATH": PATHS}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: marks(tmp_path, "start") == 2)
        workers = children(parent.pid)
        assert len(workers) == 2
        parent.send_signal(number)
        assert parent.wait(5) == -number
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 5)
    finally:
        parent.kill()
        parent.communicate()


# what cannot be


@pytest.mark.parametrize(
    ("name", "workers", "address", "says"),
    [
        ("cluster", None, None, "unknown engine 'cluster': choose from process, pool, ray"),
        ("pool", 0, None, "workers 0: it must be at least 1"),
        ("process", 2, None, "workers 2: the engine process runs one job at a time; choose pool or ray for more"),
        ("pool", None, "auto", "address auto: only the engine ray has one, not pool"),
    ],
)
def test_wrong_engines_are_refused(name: str, workers: int | None, address: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_engine(name, workers, address)


def test_without_ray_its_engine_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "dtrak.engines.ray_cluster", raising=False)
    with pytest.raises(UsageError, match=r"the engine ray is not installed: pip install 'dtrak\[ray\]'"):
        make_engine("ray")


def test_a_job_that_fits_on_no_node_is_refused(make: Callable[[str], Engine]) -> None:
    with pytest.raises(UsageError, match="a job takes 64 threads, but no node of the Ray cluster has more than 1 CPUs"):
        list(make("ray").run(double, 1, [1], 64))


def seen_card(pause: float, job: int) -> tuple[int, str | None]:
    time.sleep(pause)
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


def test_each_worker_of_a_pool_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their number is made up: the workers are real, and see one each."""
    monkeypatch.setattr("dtrak.engines.pool.gpus", lambda: ["3", "5"])
    found = [result for _, result in make_engine("pool").run(seen_card, 0.5, range(6), gpu=True)]
    assert {card for _, card in found} == {"3", "5"}
    assert len(set(found)) == 2
    assert all(card is None for _, (_, card) in make_engine("pool", 1).run(seen_card, 0.0, range(2)))


def test_gpus_are_those_that_the_user_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrak.engines.pool import gpus

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,4")
    assert gpus() == ["2", "4"]


def test_a_cluster_without_gpus_refuses_jobs_that_need_one(make: Callable[[str], Engine]) -> None:
    with pytest.raises(UsageError, match="no node of the Ray cluster has one"):
        list(make("ray").run(seen_card, 0.0, range(1), gpu=True))
