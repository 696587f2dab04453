"""How agents end, async ones too: by an error, a timeout, a cancellation, or Ctrl+C."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.emitter import emit_message, find_final_reward
from agl_core.runner import Runner
from agl_core.types import RolloutConfig
from agl_store_memory import InMemoryLightningStore
from agl_testing.runner.base import (
    BOUND,
    ENDINGS,
    Agent,
    Hanging,
    RunnerTests,
    ended,
    prepare,
)

__all__ = ["EndingTests"]


class AsyncAgent(LitAgent[Any]):
    """An async agent that does what a function says."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        super().__init__()
        self.act = act

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        await asyncio.sleep(0)
        emit_message(f"task {task!r}")
        return self.act(task)


class EndingTests(RunnerTests):
    """An attempt has succeeded only if its agent returned, and none stays open."""

    @pytest.mark.parametrize("ending", ENDINGS, ids=lambda error: type(error).__name__)
    async def test_an_async_agent_that_fails_has_failed_and_the_next_task_runs(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, ending: BaseException
    ):
        def act(task: Any) -> float:
            if task == "bad":
                raise ending
            return 0.5

        async with self.running(runner, AsyncAgent(act), runner_store):
            bad = (await runner_store.enqueue_rollout("bad")).rollout_id
            good = (await runner_store.enqueue_rollout("good")).rollout_id
            await ended(runner_store, bad)
            await ended(runner_store, good)
        found = {r.rollout_id: r.status for r in await runner_store.query_rollouts()}
        assert found == {bad: "failed", good: "succeeded"}
        attempt = await runner_store.get_latest_attempt(bad)
        assert attempt is not None
        assert type(ending).__name__ in str(attempt.metadata)
        assert find_final_reward(list(await runner_store.query_spans(good))) == 0.5

    async def test_an_agent_is_stopped_at_its_timeout(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Hanging()
        async with self.running(runner, agent, runner_store):
            config = RolloutConfig(timeout_seconds=0.2)
            rollout = await runner_store.enqueue_rollout("x", config=config)
            await ended(runner_store, rollout.rollout_id)
            await asyncio.wait_for(agent.ended.wait(), BOUND)
        attempt = await runner_store.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        assert attempt.status == "timeout"

    async def test_a_runner_that_is_cancelled_leaves_no_attempt_open(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Hanging()
        await prepare(runner_store)
        rollout = await runner_store.enqueue_rollout("x")
        with runner.run_context(agent=agent, store=runner_store):
            work = asyncio.ensure_future(runner.iter())
            await asyncio.wait_for(agent.started.wait(), BOUND)
            work.cancel()
            await asyncio.wait({work}, timeout=BOUND)
            assert work.cancelled(), "a cancelled runner returns as if it had finished, or hangs"
        attempt = await runner_store.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        assert attempt.status == "failed"
        assert agent.ended.is_set()

    @pytest.mark.parametrize("kind", [Agent, AsyncAgent], ids=["sync", "async"])
    async def test_ctrl_c_in_an_agent_ends_the_runner(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, kind: type[Any]
    ):
        """A library may turn a signal into a KeyboardInterrupt wherever the agent is."""

        def act(task: Any) -> float:
            raise KeyboardInterrupt

        await prepare(runner_store)
        first = (await runner_store.enqueue_rollout("first")).rollout_id
        second = (await runner_store.enqueue_rollout("second")).rollout_id
        seen: list[BaseException] = []
        with runner.run_context(agent=kind(act), store=runner_store):
            try:
                await runner.iter(until_idle=True)  # in no task, which would end the loop
            except BaseException as error:
                seen.append(error)
        assert [type(error) for error in seen] == [KeyboardInterrupt]
        found = {r.rollout_id: r.status for r in await runner_store.query_rollouts()}
        assert found == {first: "failed", second: "queuing"}
