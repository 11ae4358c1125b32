"""Engines run the work: in this process, in a pool of processes on this machine, or on a Ray cluster.

To add an engine, write a function that makes it, and add a line to `ENGINES`.
"""

from collections.abc import Callable

from dtrak.checks import check_number
from dtrak.contracts import Engine
from dtrak.engines.engine import cores, device_of_worker, gpu_of
from dtrak.errors import UsageError
from dtrak.registry import Registry

__all__ = ["ENGINES", "Engine", "cores", "device_of_worker", "gpu_of", "make_engine"]


def _process(workers: int | None, address: str | None) -> Engine:
    if workers is not None and workers > 1:
        raise UsageError(f"workers {workers}: the engine process runs one job at a time; choose pool or ray for more")
    from dtrak.engines.this_process import ThisProcess

    return ThisProcess()


def _pool(workers: int | None, address: str | None) -> Engine:
    from dtrak.engines.pool import Pool

    return Pool(workers)


def _ray(workers: int | None, address: str | None) -> Engine:
    from dtrak.engines.ray_cluster import RayCluster

    return RayCluster(workers, address)


# Each function takes the number of jobs that run at a time and the address of a cluster, or None for either.
ENGINES: Registry[Callable[[int | None, str | None], Engine]] = Registry(
    "engine", "dtrak.engines", {"process": _process, "pool": _pool, "ray": _ray}
)


def make_engine(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """Make the engine of this name; it runs `workers` jobs at a time, on the Ray cluster at `address`, if given."""
    make = ENGINES.choose(name)
    if workers is not None:
        check_number("workers", workers)
    if address is not None and name in ("process", "pool"):
        raise UsageError(f"address {address}: only the engine ray has one, not {name}")
    return make(workers, address)
