"""Every way of stopping a runner fails its attempt and does not delay other runners."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from typing import Any

import anyio
import pytest

from agl_core.emitter import emit_reward
from agl_core.runner import Hook
from agl_core.types import RolloutConfig
from agl_store_memory import InMemoryLightningStore

FAST = {"heartbeat_interval": 0.03, "interval_jitter": 0.0}


# -- the runner is cancelled ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "coroutine"])
@pytest.mark.parametrize("how", ["task", "scope"])
@pytest.mark.parametrize("where", ["step", "iter"])
async def test_a_cancelled_runner_fails_its_attempt(
    bench: Any, hang: Any, kind: str, how: str, where: str, until: Any
) -> None:
    runner = await bench.runner(hang.coroutine if kind == "coroutine" else hang.sync)
    await bench.store.enqueue_rollout({})

    async def run() -> None:
        await (runner.step({}) if where == "step" else runner.iter())

    if how == "task":
        task = asyncio.create_task(run())
        await until(hang.started.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await until(hang.started.is_set)
            group.cancel_scope.cancel()
    attempt = await bench.attempt() if where == "iter" else None
    statuses = await bench.statuses()
    if attempt is not None:
        assert attempt.status == "failed"
        assert attempt.metadata["error"] == "AgentCancelledError: the runner was stopped"
    assert statuses == (["failed"] if where == "iter" else ["queuing", "failed"])
    assert hang.ended.is_set() == (kind == "coroutine")


async def test_cancelled_while_it_waits_for_work(bench: Any) -> None:
    runner = await bench.runner(lambda task: None)
    task = asyncio.create_task(runner.iter())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 2)
    await bench.store.enqueue_rollout({})
    await asyncio.sleep(0.05)
    assert await bench.statuses() == ["queuing"], "a cancelled claim takes nothing"


class _Stages(InMemoryLightningStore):
    """A store that blocks in one of its calls until it is released."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage
        self.reached = asyncio.Event()
        self.release = asyncio.Event()

    async def _at(self, stage: str) -> None:
        if stage == self.stage:
            self.reached.set()
            await self.release.wait()

    async def get_latest_resources(self) -> Any:
        await self._at("resources")
        return await super().get_latest_resources()

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Any:
        await self._at("status")
        return await super().update_attempt(*args, **kwargs)

    async def add_many_spans(self, spans: Any) -> Any:
        await self._at("result")
        return await super().add_many_spans(spans)


class _StageHook(Hook):
    def __init__(self, store: _Stages) -> None:
        self._store = store

    async def on_rollout_start(self, **_: Any) -> None:
        await self._store._at("on_rollout_start")

    async def on_trace_start(self, **_: Any) -> None:
        await self._store._at("on_trace_start")

    async def on_trace_end(self, **_: Any) -> None:
        await self._store._at("on_trace_end")

    async def on_rollout_end(self, **_: Any) -> None:
        await self._store._at("on_rollout_end")


@pytest.mark.parametrize(
    "stage",
    [
        "on_rollout_start", "resources", "on_trace_start", "on_trace_end", "result",
        "on_rollout_end", "status",
    ],
)  # fmt: skip
async def test_cancelled_while_it_hangs_at_any_stage(bench: Any, stage: str) -> None:
    store = _Stages("")
    bench.store = store
    runner = await bench.runner(lambda task: 1.0, hooks=[_StageHook(store)], cancel_grace=0.05)
    rollout = await store.enqueue_rollout({}, resources_id=None)
    await store.update_rollout(rollout.rollout_id, resources_id=None)
    store.stage = stage
    task = asyncio.create_task(runner.iter())
    await asyncio.wait_for(store.reached.wait(), 5)
    task.cancel()
    if stage == "status":
        await asyncio.sleep(0.15)  # until the attempt is cancelled and writes the status again
        store.stage = ""
        store.release.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    store.stage = ""
    attempt = await bench.attempt()
    # At the last stage the agent has returned and its result is stored.
    assert attempt.status == ("succeeded" if stage == "status" else "failed")


async def test_a_result_before_the_stop_is_stored(bench: Any) -> None:
    """Stopped after the agent has returned: its result is stored."""
    store = _Stages("result")
    bench.store = store
    runner = await bench.runner(lambda task: 1.0)
    await store.enqueue_rollout({})
    task = asyncio.create_task(runner.iter())
    await asyncio.wait_for(store.reached.wait(), 5)
    task.cancel()
    await asyncio.sleep(0.02)
    store.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await bench.statuses() == ["succeeded"]


async def test_an_async_agent_that_ignores_cancellation_is_abandoned(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    async def stubborn(task: Any) -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    runner = await bench.runner(stubborn, cancel_grace=0.05)
    await bench.store.enqueue_rollout({})
    task = asyncio.create_task(runner.iter())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert (await bench.attempt()).status == "failed"
    assert "it is abandoned" in caplog.text
    release.set()
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["sync", "coroutine"])
def test_the_loop_is_torn_down_during_an_attempt(bench: Any, hang: Any, kind: str) -> None:
    """As after a second Ctrl+C: all tasks are cancelled, not only the runner's."""

    async def main() -> str:
        runner = await bench.runner(hang.sync if kind == "sync" else hang.coroutine)
        await bench.store.enqueue_rollout({})
        running = asyncio.create_task(runner.iter())
        while not hang.started.is_set():
            await asyncio.sleep(0.002)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait_for(asyncio.wait(tasks), 5)
        assert running.cancelled()
        return (await bench.attempt()).status

    assert asyncio.run(main()) == "failed"


# -- siblings, threads, exit ---------------------------------------------------------------------


async def test_hanging_sync_agents_do_not_stop_their_siblings(
    bench: Any, hang: Any, until: Any
) -> None:
    done: list[int] = []
    runners = [
        await bench.runner(
            lambda task: hang.sync(task) if task < 0 else done.append(task), worker_id=i, **FAST
        )
        for i in range(3)
    ]
    hung = [await bench.store.enqueue_rollout(-1) for _ in range(2)]
    for i in range(30):
        await bench.store.enqueue_rollout(i)
    running = [asyncio.create_task(runner.iter(until_idle=True)) for runner in runners]
    await until(lambda: len(done) == 30)
    for rollout in hung:
        assert (await bench.store.get_rollout_by_id(rollout.rollout_id)).status == "preparing"
        await bench.store.update_rollout(rollout.rollout_id, status="cancelled")
    await asyncio.wait_for(asyncio.gather(*running), 5)
    assert sorted(await bench.statuses()) == ["cancelled"] * 2 + ["succeeded"] * 30


async def test_an_abandoned_agents_later_result_is_ignored(
    bench: Any, hang: Any, until: Any
) -> None:
    def agent(task: Any) -> float:
        hang.sync(task)
        return 1.0

    runner = await bench.runner(agent)
    config = RolloutConfig(timeout_seconds=0.05)
    await bench.store.enqueue_rollout({}, config=config)
    await asyncio.wait_for(runner.iter(until_idle=True), 5)
    hang.release.set()
    await until(hang.ended.is_set)
    await asyncio.sleep(0.02)
    assert (await bench.attempt()).status == "timeout"
    assert await bench.statuses() == ["failed"]
    assert (await runner.step({})).status == "succeeded", "its thread can be used again"


async def test_spans_before_the_end_are_kept(bench: Any, hang: Any) -> None:
    def agent(task: Any) -> None:
        emit_reward(0.5)
        hang.sync(task)

    runner = await bench.runner(agent)
    await bench.store.enqueue_rollout({}, config=RolloutConfig(timeout_seconds=0.1))
    await asyncio.wait_for(runner.iter(until_idle=True), 5)
    attempt = await bench.attempt()
    assert attempt.status == "timeout"
    assert len(await bench.store.query_spans(attempt.rollout_id)) == 1


SCRIPT = """
import asyncio, threading, time
from agl_core.agent import LitAgent
from agl_core.execution import ThreadingEvent, supervise
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

started = threading.Event()

class Agent(LitAgent):
    def rollout(self, task, resources, rollout):
        started.set()
        time.sleep(600)

async def main():
    store = InMemoryLightningStore()
    await store.add_resources({})
    rollout = await store.enqueue_rollout({})
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=Agent(), store=store):
        task = asyncio.create_task(runner.iter())
        while not started.is_set():
            await asyncio.sleep(0.01)
        print("started", flush=True)
        try:
            await task
        finally:
            print((await store.get_latest_attempt(rollout.rollout_id)).status, flush=True)

asyncio.run(supervise(main, ThreadingEvent(), grace=30))  # loses no Ctrl+C
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
def test_ctrl_c_with_a_hung_sync_agent_ends_the_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out == "failed\n"
    assert "KeyboardInterrupt" in err
