"""Store, algorithm and runners on hosts whose network is slow, lossy, and cut in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agl_serving import mint_token
from agl_store_sqlite import SqliteLightningStore
from tests.e2e.networks import Network, missing

PARTITION = float(os.environ.get("AGL_TEST_PARTITION_SECONDS", "8"))
SECRET = secrets.token_urlsafe(32)
TASKS = 20

AGENT = """
import time
import agl_core as agl

@agl.prompt_rollout
def wait(task, prompt_template):
    time.sleep(0.5)
    return task / 100
"""
TRAIN = f"""
agent = "agent.py:wait"
train_dataset = {list(range(TASKS))}

[algorithm]
type = "patient:Patient"

[resources.prompt]
type = "prompt_template"
engine = "f-string"
template = "x"

[trainer]
concurrency = 4

[runner]
heartbeat_interval = 1

[strategy]
type = "cs"
reconnect_timeout = {PARTITION * 3}
graceful_timeout = 30

[store]
type = "http"
server_address = "http://10.93.0.1:4747"
health_retry_delays = {[0.5] * round(PARTITION * 4)}
"""
ALGORITHM = """
from agl_core.algorithm import Algorithm
from agl_core.types import EnqueueRolloutRequest, RolloutConfig

CONFIG = RolloutConfig(
    unresponsive_seconds=4, max_attempts=5, retry_condition=["unresponsive", "failed"]
)

class Patient(Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        await store.add_resources(self.get_initial_resources())
        rollouts = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=task, config=CONFIG) for task in train_dataset]
        )
        ids = [rollout.rollout_id for rollout in rollouts]
        done = await store.wait_for_rollouts(rollout_ids=ids)
        assert {rollout.status for rollout in done} == {"succeeded"}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 + round(PARTITION * 4))]


@contextmanager
def started(
    network: Network, host: str, folder: Path, *command: str, token: str = SECRET
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{host}.log").open("w") as log:
        process = subprocess.Popen(
            [*network.command(host), str(Path(sys.executable).with_name("agl")), *command],
            cwd=folder,
            env=os.environ | {"AGL_AUTH_TOKEN": token, "PYTHONPATH": str(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise


def far_runs_something(folder: Path) -> bool:
    """Tell whether both runners have claimed rollouts, read from the store's file."""

    async def look() -> bool:
        store = SqliteLightningStore(folder / "runs.db")
        try:
            running = await store.query_rollouts(status_in=["preparing", "running"])
            return len({getattr(each, "attempt").worker_id for each in running}) == 2  # noqa: B009
        finally:
            await store.close()

    return asyncio.run(look())


def test_a_run_outlasts_a_partition_loss_and_delay(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "patient.py").write_text(ALGORITHM)
    (tmp_path / "train.toml").write_text(TRAIN)
    network = Network(["store", "algorithm", "near", "far"])
    network.loss = 0.1
    network.delay |= {"store": 0.05, "algorithm": 0.2, "near": 0.05, "far": 0.2}
    runner_token = mint_token(SECRET, "runner", lifetime=3600)

    def logs() -> str:
        return "\n".join(f"{p.name}:\n{p.read_text()}" for p in sorted(tmp_path.glob("*.log")))

    with (
        network.up(),
        started(
            network,
            *("store", tmp_path, "store", "--host", "10.93.0.1"),
            *("--backend", "sqlite", "--path", "runs.db", "--set", "scan_debounce_seconds=0.5"),
        ),
    ):
        wait_until(lambda: "Serving store" in (tmp_path / "store.log").read_text(), logs)
        join = ("runner", "train.toml", "--server", "http://10.93.0.1:4747", "-n", "1")
        with (
            started(network, "near", tmp_path, *join, token=runner_token),
            started(network, "far", tmp_path, *join, token=runner_token),
            started(network, "algorithm", tmp_path, "algorithm", "train.toml", "--json") as lead,
        ):
            wait_until(lambda: far_runs_something(tmp_path), logs)
            network.cut.add("far")
            time.sleep(PARTITION)  # the length of the fault
            network.cut.clear()
            assert lead.wait(60 + PARTITION) == 0, logs()
    assert network.dropped > 0
    statuses, retried = asyncio.run(outcome(tmp_path))
    assert statuses == {"succeeded": TASKS}
    assert sum(retried.values()) > 0, logs()
    report = json.loads((tmp_path / "algorithm.log").read_text().splitlines()[-1])
    assert report["status"] == "succeeded"
    assert report["metrics"]["succeeded"] == TASKS
    # The far runner may have finished a replaced attempt after the report.
    assert sum(report["retried"].values()) == sum(retried.values())


def wait_until(condition: Callable[[], bool], logs: Callable[[], str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, logs()
        time.sleep(0.1)  # what other processes do cannot be awaited


async def outcome(folder: Path) -> tuple[dict[str, int], Counter[str]]:
    """Return the statuses of the rollouts, and those of the attempts before the last ones."""
    store = SqliteLightningStore(folder / "runs.db")
    try:
        rollouts = await store.query_rollouts()
        earlier: Counter[str] = Counter()
        for rollout in rollouts:
            attempts = await store.query_attempts(rollout.rollout_id)
            assert attempts[-1].status == "succeeded"
            earlier.update(attempt.status for attempt in attempts[:-1])
        return dict(Counter(rollout.status for rollout in rollouts)), earlier
    finally:
        await store.close()
