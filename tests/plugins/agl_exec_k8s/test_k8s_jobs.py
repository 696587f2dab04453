"""Runs whose rollout attempts are Jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agl_core.store import LightningStore
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_exec_k8s.cluster import Cluster
from tests.plugins.agl_exec_k8s.parts import make_batch, outcome, permissions, working_pod


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


def test_each_rollout_has_a_job(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    most = 0
    pods: set[str] = set()

    def count() -> None:
        def look() -> bool:
            nonlocal most
            most = max(most, len(cluster.running()))
            pods.update(each["metadata"]["name"] for each in cluster.found("pods"))
            return len(pods) == 3

        cluster.wait_until(look)

    strategy = make_strategy(2, runners="jobs")
    strategy.execute(make_batch([{"n": i} for i in range(3)], count), None, store)
    statuses, errors, rewards = asyncio.run(outcome(store))
    assert statuses == ["succeeded"] * 3
    assert errors == []
    assert sorted(reward or 0 for reward in rewards) == pytest.approx([0, 0.1, 0.2])
    assert most <= 2
    assert cluster.calls() <= permissions()
    assert cluster.left() == []


def test_a_killed_job_is_followed_by_another(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    def kill() -> None:
        cluster.kill(working_pod(cluster), "OOMKilled")

    strategy = make_strategy(1, runners="jobs")
    strategy.execute(make_batch([{"n": 7, "hold": 1}], kill), None, store)
    statuses, errors, _ = asyncio.run(outcome(store))
    assert statuses == ["succeeded"]
    (error,) = errors
    assert error.startswith("its runner died: OOMKilled (exit code 137)")
    assert "works on 7" in error
    assert cluster.left() == []


def test_a_job_past_its_deadline_is_ended(
    cluster: Cluster, make_strategy: Any, store: LightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    # Its runner must have claimed by then, also on a machine that others keep busy.
    strategy = make_strategy(1, runners="jobs", job_timeout=15, graceful_timeout=0.2)
    strategy.execute(make_batch([{"n": 1, "hold": 100}], config=None), None, store)
    statuses, errors, _ = asyncio.run(outcome(store))
    assert statuses == ["failed"]
    (error,) = errors
    assert error.count("DeadlineExceeded: Job was ended") == 1
    assert "AgentCancelledError" in error or "its runner died" in error
    assert "DeadlineExceeded" in caplog.text
    assert cluster.left() == []


def test_jobs_wait_for_a_quota(
    cluster: Cluster, make_strategy: Any, store: LightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.limit("jobs", 1)
    strategy = make_strategy(2, runners="jobs", job_ttl=0)
    strategy.execute(make_batch([{"n": 1}, {"n": 2}]), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"] * 2
    assert "exceeded quota" in caplog.text
    assert cluster.left() == []


def test_a_quota_on_pods_is_reported_once(
    cluster: Cluster, make_strategy: Any, store: LightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.limit("pods", 1)

    def wait() -> None:
        cluster.wait_until(lambda: "exceeded quota" in caplog.text)

    strategy = make_strategy(3, runners="jobs", job_ttl=0)
    strategy.execute(make_batch([{"n": 1, "hold": 2}, {"n": 2}, {"n": 3}], wait), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"] * 3
    lines = [line for line in caplog.text.splitlines() if "exceeded quota" in line]
    assert len(lines) == 1
    assert "does not start: Error creating: pods" in lines[0]
    assert cluster.calls() <= permissions()
    assert cluster.left() == []


def test_jobs_whose_pods_a_quota_refuses_end_the_run_with_the_reason(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    cluster.limit("pods", 0)
    strategy = make_strategy(1, runners="jobs", start_timeout=7)
    with pytest.raises(RuntimeError, match=r"within 7 s: .*exceeded quota"):
        strategy.execute(make_batch([{"n": 1}]), None, store)
    assert cluster.left() == []


def test_jobs_go_on_when_the_api_server_is_back(
    cluster: Cluster, make_strategy: Any, store: LightningStore
) -> None:
    def go_away() -> None:
        cluster.go_away()
        threading.Timer(1.0, cluster.come_back).start()

    strategy = make_strategy(1, runners="jobs")
    strategy.execute(make_batch([{"n": 1}, {"n": 2}], go_away), None, store)
    assert asyncio.run(outcome(store))[0] == ["succeeded"] * 2
    assert cluster.left() == []


async def test_the_store_can_have_a_server_already(cluster: Cluster, make_strategy: Any) -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    try:
        client = LightningStoreClient(server.endpoint)
        execute = make_strategy(1, runners="jobs").execute
        await asyncio.to_thread(execute, make_batch([{"n": 1}]), None, client)
        assert [each.status for each in await server.query_rollouts()] == ["succeeded"]
        await client.close()
    finally:
        await server.stop()
    assert cluster.left() == []
