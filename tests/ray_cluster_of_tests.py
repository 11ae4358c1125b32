"""A Ray cluster of two nodes, each of its own processes, all of them on 127.0.0.1."""

import logging
import os
import secrets
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from marking import PATHS

TOKEN = secrets.token_hex(32)  # one for all clusters of this process, as Ray reads it once
NODE = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 80 << 20}
NODE |= {"include_log_monitor": False, "no_monitor": True}  # processes that take time to start


@pytest.fixture(scope="module")
def ray_home() -> Iterator[None]:
    # Ray keeps all its files in the folder; tmp_path is too long for the names of sockets.
    with TemporaryDirectory(prefix="ray-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("PYTHONPATH", PATHS, prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def ray_nodes(ray_home: None) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for cpus in (1, 1):
            cluster.add_node(num_cpus=cpus, **NODE)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def extra_node(ray_nodes: Any) -> Any:
    """Another node of the cluster, which a test may kill."""
    return ray_nodes.add_node(num_cpus=1, **NODE)


@pytest.fixture(scope="module")
def ray_connection(ray_nodes: Any) -> Iterator[None]:
    """A connection for all tests that follow, as each new one would start new workers."""
    import ray

    ray.init(ray_nodes.address, logging_level=logging.ERROR, log_to_driver=False)
    yield
    ray.shutdown()
