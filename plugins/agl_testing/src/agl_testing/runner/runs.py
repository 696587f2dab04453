"""Runs of a runner: it takes tasks from the queue, stores what became of them, and ends."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from typing import Any

import pytest

from agl_core.emitter import find_final_reward
from agl_core.runner import Runner
from agl_core.store import LightningStore
from agl_core.types import PromptTemplate, RolloutConfig
from agl_store_memory import InMemoryLightningStore
from agl_testing.runner.base import (
    BOUND,
    ENDINGS,
    SOON,
    Agent,
    Hanging,
    Noting,
    RunnerTests,
    ended,
    prepare,
)

__all__ = ["RunTests"]

TASKS: list[Any] = [0, {"q": [1, None], "deep": {"x": 1.5}}, "text \u2603", [1, 2], 7.5]


class RunTests(RunnerTests):
    """A runner runs what is queued."""

    async def test_it_can_be_pickled_before_use(self, runner: Runner[Any]):
        assert type(pickle.loads(pickle.dumps(runner))) is type(runner)

    async def test_the_queue_is_run_in_order_until_it_is_idle(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Agent(lambda task: 1.0)
        await prepare(runner_store)
        ids = [(await runner_store.enqueue_rollout(task)).rollout_id for task in TASKS]
        with runner.run_context(agent=agent, store=runner_store):
            await asyncio.wait_for(runner.iter(until_idle=True), BOUND)
        assert agent.seen == TASKS
        assert list(map(type, agent.seen)) == list(map(type, TASKS))
        assert agent.prompts == ["Answer."] * len(TASKS)
        for rollout_id in ids:
            rollout = await runner_store.get_rollout_by_id(rollout_id)
            attempts = await runner_store.query_attempts(rollout_id)
            assert rollout is not None
            assert (rollout.status, [a.status for a in attempts]) == ("succeeded", ["succeeded"])

    @pytest.mark.parametrize("reward", [0.0, -2.5, 1.0, None])
    async def test_the_reward_is_stored_before_the_attempt_ends(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, reward: float | None
    ):
        agent = Agent(lambda task: reward)
        async with self.running(runner, agent, runner_store):
            rollout_id = (await runner_store.enqueue_rollout("x")).rollout_id
            await ended(runner_store, rollout_id)
            # At once: an algorithm reads the spans as soon as the rollout has ended.
            spans = list(await runner_store.query_spans(rollout_id, "latest"))
        assert find_final_reward(spans) == reward
        assert any("task 'x'" in map(str, span.attributes.values()) for span in spans)

    @pytest.mark.parametrize("ending", ENDINGS, ids=lambda error: type(error).__name__)
    async def test_an_agent_that_fails_has_failed_once_and_the_next_task_runs(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, ending: BaseException
    ):
        def act(task: Any) -> float:
            if task == "bad":
                raise ending
            return 1.0

        agent, hook = Agent(act), Noting()
        async with self.running(runner, agent, runner_store, [hook]):
            bad = (await runner_store.enqueue_rollout("bad")).rollout_id
            good = (await runner_store.enqueue_rollout("good")).rollout_id
            await ended(runner_store, bad)
            await ended(runner_store, good)
        found = {r.rollout_id: r.status for r in await runner_store.query_rollouts()}
        assert found == {bad: "failed", good: "succeeded"}
        assert agent.seen == ["bad", "good"]
        attempt = await runner_store.get_latest_attempt(bad)
        assert attempt is not None
        said = str(attempt.metadata)
        assert type(ending).__name__ in said, "a failed attempt does not name its error"
        assert str(ending) in said
        spans = await runner_store.query_spans(bad)
        assert any("task 'bad'" in map(str, span.attributes.values()) for span in spans)
        assert hook.calls == ["rollout start", "trace start", "trace end", "rollout end"] * 2

    async def test_a_retry_is_an_attempt_of_its_own(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        tries: list[Any] = []

        def act(task: Any) -> float:
            tries.append(task)
            if len(tries) == 1:
                raise ValueError("the first try")
            return 0.5

        async with self.running(runner, Agent(act), runner_store):
            config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
            rollout = await runner_store.enqueue_rollout("x", config=config)
            await ended(runner_store, rollout.rollout_id)
        attempts = await runner_store.query_attempts(rollout.rollout_id)
        assert [attempt.status for attempt in attempts] == ["failed", "succeeded"]
        assert len(tries) == 2

    async def test_new_work_is_claimed_at_once_and_an_idle_runner_stops_at_once(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        start = time.monotonic()
        async with self.running(runner, Agent(lambda task: 1.0), runner_store):
            for task in range(3):
                await asyncio.sleep(0.1)  # it has nothing to do
                before = time.monotonic()
                rollout = await runner_store.enqueue_rollout(task)
                await ended(runner_store, rollout.rollout_id)
                assert time.monotonic() - before < SOON
            start = time.monotonic()
        assert time.monotonic() - start < SOON

    async def test_a_sync_agent_leaves_the_loop_free(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        release = threading.Event()

        def act(task: Any) -> float:
            return float(release.wait(BOUND / 2))

        async with self.running(runner, Agent(act), runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            # A store has no event for a claim, nor for a heartbeat.
            while await runner_store.get_latest_attempt(rollout.rollout_id) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            release.set()  # only a free loop comes here before the agent gives up
            await ended(runner_store, rollout.rollout_id)
            spans = list(await runner_store.query_spans(rollout.rollout_id))
        assert find_final_reward(spans) == 1.0, "the agent ran on the event loop and blocked it"

    async def test_a_worker_is_heard_of_and_learns_of_a_cancellation(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Hanging()
        async with self.running(runner, agent, runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            await asyncio.wait_for(agent.started.wait(), BOUND)
            async with asyncio.timeout(BOUND / 2):
                while not await self._heard(runner_store):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await runner_store.update_rollout(rollout.rollout_id, status="cancelled")
            await asyncio.wait_for(agent.ended.wait(), BOUND / 2)
        found = await runner_store.get_rollout_by_id(rollout.rollout_id)
        assert found is not None
        assert found.status == "cancelled"

    async def _heard(self, store: LightningStore) -> bool:
        return any(worker.last_heartbeat_time for worker in await store.query_workers())

    async def test_a_step_returns_the_finished_rollout(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Agent(lambda task: 0.25)
        prompt = PromptTemplate(template="Own.", engine="f-string")
        with runner.run_context(agent=agent, store=runner_store):
            done = await asyncio.wait_for(
                runner.step({"q": 1}, resources={"prompt": prompt}, mode="val"), BOUND
            )
        assert (done.status, done.input, done.mode) == ("succeeded", {"q": 1}, "val")
        assert done.end_time is not None
        assert agent.prompts == ["Own."]
        assert find_final_reward(list(await runner_store.query_spans(done.rollout_id))) == 0.25

    @pytest.mark.parametrize("ending", [*ENDINGS, ZeroDivisionError("no")], ids=repr)
    async def test_a_step_raises_the_error_of_its_agent(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, ending: BaseException
    ):
        def act(task: Any) -> float:
            raise ending

        seen: list[BaseException] = []
        await prepare(runner_store)
        with runner.run_context(agent=Agent(act), store=runner_store):
            try:
                await runner.step("x")  # in no task: SystemExit of a task ends the loop as well
            except BaseException as error:
                seen.append(error)
        assert seen, "a step whose agent failed returns as if all were well"
        assert (type(seen[0]), str(seen[0])) == (type(ending), str(ending))
        (rollout,) = await runner_store.query_rollouts()
        assert rollout.status == "failed"

    async def test_it_leaves_no_thread_behind(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        before = set(threading.enumerate())
        async with self.running(runner, Agent(lambda task: 1.0), runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            await ended(runner_store, rollout.rollout_id)
        started = [t for t in set(threading.enumerate()) - before if "asyncio" not in t.name]
        for thread in started:
            await asyncio.to_thread(thread.join, 5)
        assert not [thread for thread in started if thread.is_alive()]
