"""A real Ray cluster of three nodes on this machine, for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Read when Ray is imported, and by its processes.
os.environ.update(
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_DEDUP_LOGS="0",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_raylet_start_wait_time_s="120",
)

_SYSTEM = {
    # Seconds until a lost node is noticed; by default about 30.
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # of Ray
        item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head without CPUs and two nodes with CPUs; this process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 2**20}
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": _SYSTEM}
        | small,
    )
    try:
        for _ in range(2):
            made.add_node(num_cpus=4, **small)
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
