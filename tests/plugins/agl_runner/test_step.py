from __future__ import annotations

import asyncio
import gc
import threading
from contextvars import ContextVar
from typing import Any

import pytest

import agl_core as agl
from agl_core import semconv
from agl_core.emitter import emit_annotation, emit_reward
from agl_core.errors import (
    AgentCancelledError,
    ResourceMissingError,
)
from agl_core.execution import ThreadingEvent
from agl_core.types import LLM, Rollout, Span
from agl_runner import LitAgentRunner
from agl_runner.attempt import AttemptRun
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

REWARD = f"{semconv.REWARD}.0.value"


async def _spans(bench: Any, rollout: Rollout) -> list[Span]:
    return list(await bench.store.query_spans(rollout.rollout_id))


async def test_mode_picks_the_method(bench: Any) -> None:
    runner = await bench.runner(lambda task: None)
    calls: list[str] = []
    agent = runner._agent
    agent.training_rollout = lambda task, resources, rollout: calls.append("train")
    agent.validation_rollout = lambda task, resources, rollout: calls.append("val")
    modes: list[Any] = ["train", "val", "test", None]
    rollouts = [await runner.step({}, mode=mode) for mode in modes]
    assert calls == ["train", "val", "val", "val"]
    assert [rollout.mode for rollout in rollouts] == modes


async def test_the_agent_gets_task_resources_and_attempted_rollout(bench: Any) -> None:
    got: dict[str, Any] = {}
    runner = await bench.runner(lambda task: None)

    def rollout(task: Any, resources: Any, rollout: Any) -> None:
        got.update(task=task, resources=resources, rollout=rollout)

    runner._agent.rollout = rollout
    llm = LLM(endpoint="http://x/v1", model="m")
    finished = await runner.step({"q": [1]}, resources={"m": llm})
    attempt = await bench.attempt()
    assert got["task"] == {"q": [1]}
    assert got["resources"] == {"m": llm}
    assert got["rollout"].rollout_id == finished.rollout_id
    assert got["rollout"].attempt.attempt_id == attempt.attempt_id
    latest = await bench.store.get_latest_resources()
    assert finished.resources_id == latest.resources_id
    assert attempt.worker_id == "Worker-0"
    worker = await bench.store.get_worker_by_id("Worker-0")
    assert (worker.status, worker.current_attempt_id) == ("idle", None)


async def test_sync_agents_run_in_one_thread_with_the_context(bench: Any) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen: list[tuple[threading.Thread, str]] = []
    runner = await bench.runner(
        lambda task: seen.append((threading.current_thread(), variable.get()))
    )
    for value in ("a", "b", "c"):
        variable.set(value)
        await runner.step({})
    assert [value for _, value in seen] == ["a", "b", "c"]
    (thread,) = {thread for thread, _ in seen}
    assert thread is not threading.current_thread()
    assert thread.daemon


async def test_a_blocking_sync_agent_leaves_the_loop_free(bench: Any) -> None:
    release = threading.Event()
    runner = await bench.runner(lambda task: release.wait(10) and None)
    step = asyncio.create_task(runner.step({}))
    while not await bench.statuses():
        await asyncio.sleep(0)
    assert await bench.statuses() == ["preparing"]
    release.set()
    assert (await step).status == "succeeded"


async def test_concurrent_steps_of_one_runner(bench: Any) -> None:
    barrier = threading.Barrier(4)

    def agent(task: Any) -> float:
        barrier.wait(10)
        emit_reward(float(task))
        return task + 0.5

    runner = await bench.runner(agent)
    rollouts = await asyncio.gather(*(runner.step(i) for i in range(4)))
    for i, rollout in enumerate(rollouts):
        rewards = [span.attributes[REWARD] for span in await _spans(bench, rollout)]
        assert rewards == [i, i + 0.5]


# -- errors --------------------------------------------------------------------------------------


async def test_an_agents_error_is_raised_and_stored(bench: Any) -> None:
    def agent(task: Any) -> None:
        emit_reward(0.5)
        raise LookupError("no such room")

    runner = await bench.runner(agent)
    with pytest.raises(LookupError, match="no such room"):
        await runner.step({})
    attempt = await bench.attempt()
    assert attempt.status == "failed"
    assert attempt.metadata == {
        "error": "LookupError: no such room",
        "error_type": "LookupError",
    }
    assert attempt.end_time is not None
    assert await bench.statuses() == ["failed"]
    (span,) = await bench.store.query_spans(attempt.rollout_id)
    assert span.attributes[REWARD] == 0.5, "what was recorded before the error is kept"


async def test_metadata_of_the_attempt_is_kept(bench: Any) -> None:
    async def agent(task: Any) -> None:
        attempt = await bench.attempt()
        await bench.store.update_attempt(
            attempt.rollout_id, attempt.attempt_id, metadata={"node": "n1"}
        )
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await (await bench.runner(agent)).step({})
    assert (await bench.attempt()).metadata == {
        "node": "n1",
        "error": "ValueError: x",
        "error_type": "ValueError",
    }


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (SystemExit(3), SystemExit),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (StopIteration("s"), RuntimeError),  # as in every coroutine (PEP 479)
        (asyncio.CancelledError(), AgentCancelledError),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_odd_errors(
    bench: Any, error: BaseException, raised: type[BaseException], is_async: bool
) -> None:
    async def async_agent(task: Any) -> None:
        raise error

    def agent(task: Any) -> None:
        raise error

    runner = await bench.runner(async_agent if is_async else agent)
    with pytest.raises(raised):
        await runner.step({})
    assert (await bench.attempt()).status == "failed"
    assert (await bench.attempt()).metadata["error_type"] == raised.__name__


async def test_agent_that_asks_for_no_resource_runs_without_any() -> None:
    @agl.rollout
    def agent(task: float) -> float:
        return task

    runner = LitAgentRunner[Any](OtelTracer())
    store = InMemoryLightningStore()
    with runner.run_context(agent=agent, store=store):
        done = await runner.step(0.5)
    assert done.status == "succeeded"
    spans = await store.query_spans(done.rollout_id)
    assert agl.find_final_reward(spans.items) == 0.5


async def test_missing_resource_fails_the_attempt() -> None:
    class Agent(agl.LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any) -> None:
            resources["prompt"]

    runner = LitAgentRunner[Any](OtelTracer())
    store = InMemoryLightningStore()
    with (
        runner.run_context(agent=Agent(), store=store),
        pytest.raises(ResourceMissingError, match="'prompt', and the store has none; add it"),
    ):
        await runner.step({})
    (rollout,) = await store.query_rollouts()
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    assert attempt.status == "failed"
    assert "'prompt', and the store has none" in (attempt.metadata or {})["error"]


async def test_unknown_resources_are_named(bench: Any) -> None:
    runner = await bench.runner(lambda task: None)
    await bench.store.enqueue_rollout({}, resources_id="rs-gone")
    await runner.iter(until_idle=True)
    assert "'rs-gone'" in (await bench.attempt()).metadata["error"]
    assert await bench.statuses() == ["failed"]


async def test_a_rollout_that_is_gone(bench: Any) -> None:
    class Forgetful(InMemoryLightningStore):
        async def get_rollout_by_id(self, rollout_id: str) -> None:
            return None

    store = Forgetful()
    await store.add_resources({})
    runner = await bench.runner(lambda task: None, store=store)
    with pytest.raises(RuntimeError, match="gone from the store"):
        await runner.step({})


async def test_the_event_stops_a_step(bench: Any) -> None:
    event = ThreadingEvent()
    cancelled = asyncio.Event()

    async def agent(task: Any) -> None:
        event.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    runner = await bench.runner(agent)
    with pytest.raises(AgentCancelledError, match="event was set"):
        await runner.step({}, event=event)
    assert cancelled.is_set()
    assert (await bench.attempt()).status == "failed"
    with pytest.raises(AgentCancelledError):
        await runner.step({}, event=event)  # it never starts
    assert await bench.statuses() == ["failed", "failed"]


async def test_a_finished_rollout_is_gone_without_the_garbage_collector(bench: Any) -> None:
    async def agent(task: Any) -> float:
        emit_annotation({"text": "x"})
        return 1.0

    runner = await bench.runner(agent)
    gc.disable()
    try:
        for _ in range(4):
            await runner.step("gone")
        every = [each for each in gc.get_objects() if type(each) is AttemptRun]
    finally:
        gc.enable()
    left = [run for run in every if run.rollout.input == "gone"]
    assert not left, "each keeps the spans of its rollout"
