"""What an agent is called with, and what becomes of its result."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from agl_core.agent import LitAgent
from agl_core.emitter import find_final_reward, get_reward_value
from agl_core.runner import Hook, Runner
from agl_core.types import (
    FINISHED_STATUSES,
    Attempt,
    AttemptedRollout,
    PromptTemplate,
    RolloutConfig,
    RolloutMode,
    SpanCoreFields,
    TraceStatus,
)
from agl_store_memory import InMemoryLightningStore
from agl_testing.runner.base import BOUND, Agent, RunnerTests, ended

__all__ = ["CallTests"]


class Number:
    """A number of a library: it can be made a float, and is none."""

    def __float__(self) -> float:
        return 0.25


OK = TraceStatus(status_code="OK")
REWARDS: dict[str, tuple[Any, float]] = {
    "bool": (True, 1.0),
    "int": (3, 3.0),
    "Decimal": (Decimal("0.25"), 0.25),
    "Fraction": (Fraction(1, 4), 0.25),
    "of a library": (Number(), 0.25),
}
"""What agents return, and the reward that it is."""


class Called(LitAgent[Any]):
    """An agent that notes which of its methods was called, and with what."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []

    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> None:
        self.calls.append(("training", rollout))

    def validation_rollout(self, task: Any, resources: Any, rollout: Any) -> None:
        self.calls.append(("validation", rollout))


class Told(Hook):
    """Notes what the callbacks at the end of a rollout are told."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.rewards: list[float | None] = []

    async def on_trace_end(self, *, error: BaseException | None = None, **given: Any) -> None:
        self.error = error

    async def on_rollout_end(self, *, spans: Any, **given: Any) -> None:
        self.rewards.append(find_final_reward(list(spans)))


class NotingEnds(InMemoryLightningStore):
    """A store that notes each status of an attempt that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    async def update_attempt(self, rollout_id: str, attempt_id: Any, **changes: Any) -> Attempt:
        if "status" in changes:
            self.told.append(changes["status"])
        return await super().update_attempt(rollout_id, attempt_id, **changes)


class CallTests(RunnerTests):
    """An agent gets its own rollout as it was queued, and nothing of its result is lost."""

    async def test_a_rollout_runs_with_its_own_resources(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        agent = Agent(lambda task: 1.0)
        for text in ("First.", "Second."):
            prompt = PromptTemplate(template=text, engine="f-string")
            snapshot = await runner_store.add_resources({"prompt": prompt})
            await runner_store.enqueue_rollout(text, resources_id=snapshot.resources_id)
        with runner.run_context(agent=agent, store=runner_store):
            await asyncio.wait_for(runner.iter(until_idle=True), BOUND)
        assert agent.prompts == ["First.", "Second."]

    @pytest.mark.parametrize("mode", ["train", "val", "test", None])
    async def test_the_mode_decides_which_method_is_called(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore, mode: RolloutMode | None
    ):
        agent = Called()
        async with self.running(runner, agent, runner_store):
            queued = await runner_store.enqueue_rollout("x", mode=mode)
            await ended(runner_store, queued.rollout_id)
        ((method, rollout),) = agent.calls
        assert method == ("training" if mode == "train" else "validation")
        assert isinstance(rollout, AttemptedRollout)
        assert (rollout.rollout_id, rollout.mode) == (queued.rollout_id, mode)
        attempt = await runner_store.get_latest_attempt(queued.rollout_id)
        assert attempt is not None
        assert rollout.attempt.attempt_id == attempt.attempt_id

    async def test_a_retry_gets_the_task_as_it_was_queued(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        seen: list[Any] = []

        def act(task: Any) -> float:
            seen.append(list(task["open"]))
            task["open"].pop()
            if len(seen) == 1:
                raise ValueError("the first try")
            return 1.0

        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        async with self.running(runner, Agent(act), runner_store):
            rollout = await runner_store.enqueue_rollout({"open": [1, 2]}, config=config)
            await ended(runner_store, rollout.rollout_id)
        assert seen == [[1, 2], [1, 2]], "a retry sees what the first try did to its task"

    @pytest.mark.parametrize(("returned", "reward"), REWARDS.values(), ids=REWARDS)
    async def test_any_number_is_a_reward_and_stored_once(
        self,
        runner: Runner[Any],
        runner_store: InMemoryLightningStore,
        returned: Any,
        reward: float,
    ):
        async with self.running(runner, Agent(lambda task: returned), runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            await ended(runner_store, rollout.rollout_id)
        spans = await runner_store.query_spans(rollout.rollout_id)
        values = [get_reward_value(span) for span in spans]
        assert [value for value in values if value is not None] == [reward]

    async def test_spans_that_an_agent_returns_are_stored_in_order(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        plain: dict[str, Any] = {"status": OK, "start_time": 1.0, "end_time": 2.0}
        made = [SpanCoreFields(name=f"step {i}", attributes={"i": i}, **plain) for i in range(3)]
        async with self.running(runner, Agent(lambda task: made), runner_store):
            rollout = await runner_store.enqueue_rollout("x")
            await ended(runner_store, rollout.rollout_id)
        attempt = await runner_store.get_latest_attempt(rollout.rollout_id)
        assert attempt is not None
        assert attempt.status == "succeeded"
        spans = await runner_store.query_spans(rollout.rollout_id, attempt.attempt_id)
        steps = [span for span in spans if span.name.startswith("step")]
        assert [(span.name, span.attributes["i"]) for span in steps] == [
            (f"step {i}", i) for i in range(3)
        ]

    @pytest.mark.parametrize("status", ["succeeded", "failed"])
    async def test_the_end_is_written_once(self, runner: Runner[Any], status: str):
        """An attempt that looks failed for a moment is retried, or its reward is not read."""
        store = NotingEnds()

        def act(task: Any) -> float:
            return 1.0 if status == "succeeded" else 1 / 0

        async with self.running(runner, Agent(act), store):
            rollout = await store.enqueue_rollout("x")
            await ended(store, rollout.rollout_id)
        assert [told for told in store.told if told in FINISHED_STATUSES] == [status]

    async def test_hooks_are_told_the_spans_and_the_error(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        failure = ValueError("the agent's own error")

        def act(task: Any) -> float:
            if task == "bad":
                raise failure
            return 0.5

        told: list[Told] = []
        for task in ("good", "bad"):
            hook = Told()
            async with self.running(runner, Agent(act), runner_store, [hook]):
                rollout = await runner_store.enqueue_rollout(task)
                await ended(runner_store, rollout.rollout_id)
            told.append(hook)
        assert [hook.error for hook in told] == [None, failure]
        assert [hook.rewards for hook in told] == [[0.5], [None]]

    async def test_each_worker_has_a_name_of_its_own(
        self, runner: Runner[Any], runner_store: InMemoryLightningStore
    ):
        names: list[str | None] = []
        for worker_id in (1, 7):
            with runner.run_context(
                agent=Agent(lambda task: 1.0), store=runner_store, worker_id=worker_id
            ):
                rollout = await runner_store.enqueue_rollout("x")
                await asyncio.wait_for(runner.iter(until_idle=True), BOUND)
            attempt = await runner_store.get_latest_attempt(rollout.rollout_id)
            assert attempt is not None
            names.append(attempt.worker_id)
        assert len(set(names)) == 2, "two workers cannot be told apart"
        workers = {worker.worker_id for worker in await runner_store.query_workers()}
        assert set(names) <= workers
