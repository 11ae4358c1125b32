"""Engines run the work: in this process, in a pool of processes on this machine, or on a Ray cluster.

To add an engine, write a class as `contracts.Engine` describes it, and add a line to `ENGINES`.
"""

from collections.abc import Callable

from dtrak.checks import check_number
from dtrak.contracts import Engine
from dtrak.engines.jobs import cores, device_of_worker, gpu_of
from dtrak.errors import UsageError
from dtrak.registry import Registry

__all__ = ["ENGINES", "Engine", "cores", "device_of_worker", "gpu_of", "make_engine"]

# Each takes the number of jobs that run at a time and the address of a cluster, or None for either.
ENGINES: Registry[Callable[[int | None, str | None], Engine]] = Registry(
    "engine",
    "dtrak.engines",
    {
        "process": "dtrak.engines.jobs:ThisProcess",
        "pool": "dtrak.engines.pool:Pool",
        "ray": "dtrak.engines.ray_cluster:RayCluster",
    },
)


def make_engine(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """Make the engine of this name; it runs `workers` jobs at a time, on the Ray cluster at `address`, if given."""
    make = ENGINES.choose(name)
    if workers is not None:
        check_number("workers", workers)
    if name == "process" and workers is not None and workers > 1:
        raise UsageError(f"workers {workers}: the engine {name} runs one job at a time; choose pool or ray for more")
    if address is not None and name in ("process", "pool"):
        raise UsageError(f"address {address}: only the engine ray has one, not {name}")
    return make(workers, address)
