"""Features by the workers of a Ray cluster of three nodes on this machine: how fast, and what a killed node costs.

    OMP_NUM_THREADS=1 python benchmarks/workers.py            # a few minutes

The images are digits in a folder, which each worker reads for itself. Throughput is counted from the moment when every
worker has finished its first shard to the last shard, so that the start of workers is left out. One worker and two take
turns, and the best of each counts, as other programs may run on the machine. If workers compute nearly all the time,
and two of them need no more CPU for an image than one, only the cores limit them. Then three workers compute the same
features while one of their nodes is killed. Everything has to have the bytes of one process alone.
"""

import argparse
import os
import pickle
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

import dtrak
from dtrak.engines import Engine, make_engine
from dtrak.features.featurizing import featurize
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.gradients.objectives import OBJECTIVES

MODEL = Path(__file__).parent / "digits" / "model"
KILL_AFTER = 6  # shards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000, help="how many digits")
    parser.add_argument("--rounds", type=int, default=3, help="how often one worker and two workers take turns")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder, cluster_of(3) as cluster:
        home = Path(folder)
        write_digits(home / "images", arguments.images)
        expected = features(home, "here", None)
        rates: dict[int, list[float]] = {1: [], 2: []}
        for turn, workers in enumerate([1, 2] * arguments.rounds):
            timed = Timed(make_engine("ray", workers, cluster.address))
            check(features(home, f"{turn}", timed) == expected, f"{workers} workers")
            rate, busy, of_cpu = timed.rate(workers)
            rates[workers].append(rate)
            print(
                f"{workers} workers: {rate:.1f} images per second, {of_cpu:.1f} per second of a worker's CPU; "
                f"each computes {busy:.0%} of the time",
                flush=True,
            )
        print(f"a job has at most {timed.job_bytes:,} bytes", flush=True)
        print(f"2 workers are {max(rates[2]) / max(rates[1]):.2f} × as fast as 1, by the best of each", flush=True)
        killing = Killing(make_engine("ray", 3, cluster.address), cluster)
        check(features(home, "killed", killing) == expected, "with a node killed")
        print(f"a node was killed after {KILL_AFTER} shards: the same bytes", flush=True)


@contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """Start a Ray cluster of nodes with one CPU each, all of them on 127.0.0.1."""
    with TemporaryDirectory(prefix="ray-") as folder:
        os.environ |= {
            "RAY_TMPDIR": folder,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_health_check_period_ms": "500",
        }
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            for _ in range(nodes):
                cluster.add_node(
                    num_cpus=1, node_ip_address="127.0.0.1", include_dashboard=False, object_store_memory=80 << 20
                )
            yield cluster
        finally:
            cluster.shutdown()


def write_digits(folder: Path, count: int) -> None:
    folder.mkdir()
    for row, pixels in enumerate(dtrak.load_images("digits:train").first(count).pixels(range(count))):
        Image.fromarray(pixels[..., 0]).save(folder / f"{row:04d}.png")


def features(home: Path, name: str, engine: Engine | None) -> bytes:
    """Compute the features of every copy in a folder of their own; return their bytes."""
    model, images = dtrak.load_model(str(MODEL)), dtrak.load_images(str(home / "images"))
    spec = Spec("final", "apart", "visible:10", "later", "factored", 1024)
    objectives = {one: OBJECTIVES[one] for one in ("simple", "square")}
    places = {one: (home / name / one, {}) for one in objectives}
    stores = featurize(model, model_inputs(model, images), spec, objectives, places, engine=engine)
    return b"".join(store.numpy().tobytes() for store in stores.values())


class Timed:
    """An engine that notes when shards are done."""

    is_here = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # for each shard: the time, the number of images, the seconds that they took, and the CPU seconds of all workers
        self.done: list[tuple[float, int, float, float]] = []
        self.job_bytes = 0

    def run(self, *arguments: Any) -> Iterator[Any]:
        for job, result in self.engine.run(*arguments):
            cost = result.cost
            self.done.append((time.monotonic(), len(job.rows), cost.gradients + cost.projection, cpu_seconds()))
            self.job_bytes = max(self.job_bytes, len(pickle.dumps(job)))
            yield job, result

    def rate(self, workers: int) -> tuple[float, float, float]:
        """Return images per second, the share of its time that a worker computes, and images per second of its CPU.

        All are counted after every worker has begun.
        """
        first = 2 * workers  # each has had a shard that began while others started
        seconds = self.done[-1][0] - self.done[first - 1][0]
        _, counts, busy, _ = zip(*self.done[first:], strict=True)
        cpu = self.done[-1][3] - self.done[first - 1][3]
        return sum(counts) / seconds, sum(busy) / seconds / workers, sum(counts) / cpu


class Killing(Timed):
    """An engine on a cluster, one of whose nodes is killed."""

    def __init__(self, engine: Engine, cluster: Any) -> None:
        super().__init__(engine)
        self.cluster = cluster

    def run(self, *arguments: Any) -> Iterator[Any]:
        for done in super().run(*arguments):
            if len(self.done) == KILL_AFTER:
                self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)
            yield done


def cpu_seconds() -> float:
    """Return the CPU seconds that all actors of Ray on this machine have taken."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended
            if (process / "cmdline").read_bytes().startswith(b"ray::Actor"):
                ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def check(is_same: bool, what: str) -> None:
    if not is_same:
        raise SystemExit(f"{what}: other bytes than in one process")


if __name__ == "__main__":
    main()
