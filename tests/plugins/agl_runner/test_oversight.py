"""Rollouts that a runner loses: cancelled, superseded, or timed out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agl_core.errors import AgentCancelledError, AgentTimeoutError
from agl_core.types import RolloutConfig
from agl_store_memory import InMemoryLightningStore

FAST = {"heartbeat_interval": 0.03, "interval_jitter": 0.0}


@pytest.mark.parametrize("kind", ["sync", "coroutine"])
@pytest.mark.parametrize("mode", ["thread", "asyncio"])
async def test_a_cancelled_rollout_stops_its_agent(
    bench: Any, hang: Any, kind: str, mode: str, until: Any
) -> None:
    followed: list[Any] = []

    def sync(task: Any) -> None:
        followed.append(task) if task == "next" else hang.sync(task)

    async def coroutine(task: Any) -> None:
        followed.append(task) if task == "next" else await hang.coroutine(task)

    runner = await bench.runner(
        coroutine if kind == "coroutine" else sync, heartbeat_launch_mode=mode, **FAST
    )
    rollout = await bench.store.enqueue_rollout("hang")
    await bench.store.enqueue_rollout("next")
    running = asyncio.create_task(runner.iter(until_idle=True))
    await until(hang.started.is_set)
    await bench.store.update_rollout(rollout.rollout_id, status="cancelled")
    await asyncio.wait_for(running, 5)
    assert followed == ["next"]
    assert await bench.statuses() == ["cancelled", "succeeded"]
    attempt = await bench.attempt(rollout.rollout_id)
    assert attempt.status == "failed"
    assert attempt.metadata["error_type"] == "AgentCancelledError"
    assert hang.ended.is_set() == (kind == "coroutine")


async def test_a_cancelled_step_raises(bench: Any, hang: Any, until: Any) -> None:
    runner = await bench.runner(hang.coroutine, **FAST)
    step = asyncio.create_task(runner.step({}))
    await until(hang.started.is_set)
    (rollout,) = await bench.store.query_rollouts()
    await bench.store.update_rollout(rollout.rollout_id, status="cancelled")
    with pytest.raises(AgentCancelledError, match="was cancelled"):
        await asyncio.wait_for(step, 5)
    assert (await bench.attempt()).status == "failed"
    assert await bench.statuses() == ["cancelled"]


async def test_heartbeats_do_not_disturb_a_running_agent(bench: Any) -> None:
    async def agent(task: Any) -> float:
        await asyncio.sleep(0.3)
        return 1.0

    runner = await bench.runner(agent, **FAST)
    rollouts = await asyncio.gather(
        *(runner.step(i) for i in range(3))
    )  # one worker, three at once
    assert [rollout.status for rollout in rollouts] == ["succeeded"] * 3


async def test_a_superseded_attempt_is_stopped(bench: Any, hang: Any, until: Any) -> None:
    runner = await bench.runner(hang.coroutine, **FAST)
    step = asyncio.create_task(runner.step({}))
    await until(hang.started.is_set)
    (rollout,) = await bench.store.query_rollouts()
    second = await bench.store.start_attempt(rollout.rollout_id, worker_id="Worker-9")
    # The worker's record still names the first attempt; the watchdog's status clears it.
    first = rollout.attempt
    await bench.store.update_attempt(rollout.rollout_id, first.attempt_id, status="unresponsive")
    with pytest.raises(AgentCancelledError, match="superseded"):
        await asyncio.wait_for(step, 5)
    attempts = await bench.store.query_attempts(rollout.rollout_id)
    assert [attempt.status for attempt in attempts] == ["failed", "preparing"]
    assert attempts[1].attempt_id == second.attempt.attempt_id
    assert await bench.statuses() == ["preparing"], "only the latest attempt decides"


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["sync", "coroutine"])
async def test_the_runner_enforces_the_timeout(bench: Any, hang: Any, kind: str) -> None:
    """It does not wait for the watchdog; the rollout may be retried after the timeout."""
    runner = await bench.runner(hang.coroutine if kind == "coroutine" else hang.sync)
    config = RolloutConfig(timeout_seconds=0.05, max_attempts=2, retry_condition=["timeout"])
    await bench.store.enqueue_rollout({}, config=config)
    started = time.monotonic()
    await asyncio.wait_for(runner.iter(until_idle=True), 5)
    assert time.monotonic() - started < 3
    (rollout,) = await bench.store.query_rollouts()
    attempts = await bench.store.query_attempts(rollout.rollout_id)
    assert [attempt.status for attempt in attempts] == ["timeout", "timeout"]
    assert "timeout of 0.05 s" in attempts[0].metadata["error"]
    assert rollout.status == "failed"


async def test_a_step_that_exceeds_its_timeout_raises(bench: Any, hang: Any) -> None:
    class Hasty(InMemoryLightningStore):
        async def start_rollout(self, input: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["config"] = RolloutConfig(timeout_seconds=0.05)
            return await super().start_rollout(input, *args, **kwargs)

    bench.store = Hasty()
    runner = await bench.runner(hang.coroutine)
    with pytest.raises(AgentTimeoutError):
        await asyncio.wait_for(runner.step({}), 5)
    assert (await bench.attempt()).status == "timeout"
    assert hang.ended.is_set()


async def test_the_watchdogs_verdict_stands(bench: Any, hang: Any, until: Any) -> None:
    """The runner sees it in its heartbeat's reply, and does not overwrite it with ``failed``."""
    runner = await bench.runner(hang.coroutine, **FAST)
    config = RolloutConfig(max_attempts=2, retry_condition=["timeout"])
    rollout = await bench.store.enqueue_rollout({}, config=config)
    running = asyncio.create_task(runner.iter())
    await until(hang.started.is_set)
    first = await bench.attempt()
    await bench.store.update_attempt(rollout.rollout_id, first.attempt_id, status="timeout")
    await until(hang.ended.is_set)
    async with asyncio.timeout(5):
        while (await bench.attempt()).sequence_id < 2:
            await asyncio.sleep(0.002)
    (stood, second) = await bench.store.query_attempts(rollout.rollout_id)
    assert stood.status == "timeout"
    assert stood.metadata["error_type"] in ("AgentTimeoutError", "AgentCancelledError")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert second.sequence_id == 2


async def test_success_after_a_verdict_counts(bench: Any) -> None:
    async def agent(task: Any) -> float:
        attempt = await bench.attempt()
        await bench.store.update_attempt(
            attempt.rollout_id, attempt.attempt_id, status="unresponsive"
        )
        assert await bench.statuses() == ["failed"]
        return 1.0

    rollout = await (await bench.runner(agent)).step({})
    assert rollout.status == "succeeded"


async def test_a_rollout_that_is_gone_stops_its_agent(bench: Any, hang: Any, until: Any) -> None:
    class Wiped(InMemoryLightningStore):
        wiped = False

        async def query_rollouts(self, **filters: Any) -> Any:
            filters |= {"rollout_id_in": []} if self.wiped else {}
            return await super().query_rollouts(**filters)

        async def update_worker(self, worker_id: str, heartbeat_stats: Any = None) -> Any:
            worker = await super().update_worker(worker_id, heartbeat_stats)
            return worker.model_copy(update={"current_attempt_id": None}) if self.wiped else worker

    bench.store = store = Wiped()
    runner = await bench.runner(hang.coroutine, **FAST)
    step = asyncio.create_task(runner.step({}))
    await until(hang.started.is_set)
    store.wiped = True
    with pytest.raises(AgentCancelledError, match="is gone from the store"):
        await asyncio.wait_for(step, 5)


async def test_a_failed_check_does_not_stop_the_agent(
    bench: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(InMemoryLightningStore):
        away = False

        async def query_rollouts(self, **filters: Any) -> Any:
            if self.away:
                raise OSError("away for now")
            return await super().query_rollouts(**filters)

    bench.store = store = Away()
    proceed = asyncio.Event()

    async def agent(task: Any) -> float:
        # After a second step, the store's record of the worker names that attempt.
        if task == "first":
            await proceed.wait()
        return 1.0

    runner = await bench.runner(agent, **FAST)
    first = asyncio.create_task(runner.step("first"))
    await asyncio.sleep(0)
    await runner.step("second")
    store.away = True
    await until(lambda: "away for now" in caplog.text)
    store.away = False
    proceed.set()
    assert (await first).status == "succeeded"
