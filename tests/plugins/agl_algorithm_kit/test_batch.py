"""Batches: enqueue, wait, read, and leave no open rollout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agl_algorithm_kit import (
    StoredRun,
    batch as batch_module,
    cancel_rollouts,
    read_batch,
    run_batch,
    run_requests,
)
from agl_core.adapter import Adapter
from agl_core.algorithm import RolloutOutcome
from agl_core.errors import ConfigError, InvalidArgumentError, RunFailedError, SpansEvictedError
from agl_core.statistics import estimate_gain, estimate_mean
from agl_core.store import LightningStore
from agl_core.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    PromptTemplate,
    RolloutConfig,
    Span,
)
from agl_store_memory import InMemoryLightningStore

REWARD = {"agentlightning.reward.0.name": "primary"}


async def finish(
    store: LightningStore, claimed: AttemptedRollout, reward: float | None, *, failed: bool = False
) -> None:
    """End an attempt: with a reward, or as a failure, which may have a reward."""
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    if reward is not None:
        span = Span.from_attributes(
            name="agentlightning.annotation",
            attributes={**REWARD, "agentlightning.reward.0.value": reward},
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=await store.get_next_span_sequence_id(rollout_id, attempt_id),
        )
        await store.add_span(span)
    status = "failed" if failed or reward is None else "succeeded"
    await store.update_attempt(rollout_id, attempt_id, status=status)


@asynccontextmanager
async def worker(
    store: LightningStore, reward_of: Callable[[Any], float | None]
) -> AsyncIterator[list[AttemptedRollout]]:
    """Process the queue in a task while the block is open."""
    claims: list[AttemptedRollout] = []

    async def work() -> None:
        while True:
            claimed = await store.dequeue_rollout("Worker-0", wait=10)
            if claimed is not None:
                claims.append(claimed)
                await finish(store, claimed, reward_of(claimed.input))

    task = asyncio.create_task(work())
    try:
        yield claims
    finally:
        task.cancel()
        await asyncio.wait((task,))


class Names(Adapter[Any, Any]):
    def adapt(self, source: Any) -> list[str]:
        return [span.name for span in source]


async def test_outcomes_come_in_the_order_of_the_tasks() -> None:
    store = InMemoryLightningStore()
    async with worker(store, lambda task: task / 4) as claims:
        batch = await run_batch(
            store,
            [0, 1, 2, 3],
            mode="val",
            config=RolloutConfig(max_attempts=2),
            metadata={"round": 7},
            adapter=Names(),
        )
    assert [outcome.rollout.input for outcome in batch] == [0, 1, 2, 3]
    assert [outcome.reward for outcome in batch] == [0.0, 0.25, 0.5, 0.75]
    assert [outcome.adapted for outcome in batch] == [["agentlightning.annotation"]] * 4
    assert [len(outcome.spans) for outcome in batch] == [1] * 4
    assert batch.statuses() == {"succeeded": 4}
    assert batch.rewards() == [0.0, 0.25, 0.5, 0.75]
    assert batch.score().mean == pytest.approx(0.375)
    assert batch[0].rollout.input == 0
    assert [outcome.reward for outcome in batch[1:3]] == [0.25, 0.5]
    assert {claim.mode for claim in claims} == {"val"}
    assert {claim.config.max_attempts for claim in claims} == {2}
    assert claims[0].metadata == {"round": 7}


async def test_the_log_says_that_a_batch_waits_for_a_runner(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_module, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(batch_module, "_PROGRESS_INTERVAL", 0.01)
    caplog.set_level("INFO")
    store = InMemoryLightningStore()
    batch = asyncio.create_task(run_batch(store, [0, 1], description="tasks"))
    async with asyncio.timeout(10):
        while "Waiting for a runner: none has claimed any of 2 tasks yet" not in caplog.text:
            await asyncio.sleep(0.001)
    async with worker(store, lambda task: 1.0):
        assert (await batch).statuses() == {"succeeded": 2}
    assert caplog.text.count("Waiting for a runner") == 1
    caplog.clear()
    batch = asyncio.create_task(run_batch(store, [0], description="tasks", timeout=0.1))
    async with asyncio.timeout(10):
        while await store.dequeue_rollout("Worker-1", wait=1) is None:
            continue
    await batch
    assert "Waiting for a runner" not in caplog.text


async def test_outcomes_are_read_while_other_rollouts_run() -> None:
    store = InMemoryLightningStore()
    adapted = asyncio.Event()

    class Noted(Names):
        def adapt(self, source: Any) -> list[str]:
            adapted.set()
            return super().adapt(source)

    batch = asyncio.create_task(run_batch(store, ["a", "b"], adapter=Noted(), timeout=10))
    first = await store.dequeue_rollout("Worker-0", wait=5)
    assert first is not None
    await finish(store, first, 1.0)
    async with asyncio.timeout(5):
        await adapted.wait()
    second = await store.dequeue_rollout("Worker-0", wait=5)
    assert second is not None
    await finish(store, second, 0.5)
    assert (await batch).rewards() == [1.0, 0.5]


async def test_resources_become_a_snapshot() -> None:
    store = InMemoryLightningStore()
    prompt = PromptTemplate(template="{task}", engine="f-string")
    async with worker(store, lambda task: 1.0) as claims:
        first = await run_batch(store, ["a"], resources={"prompt": prompt})
        again = await run_batch(store, ["b"], resources=first.resources_id)
        latest = await run_batch(store, ["c"])
    assert first.resources_id is not None
    snapshot = await store.get_resources_by_id(first.resources_id)
    assert snapshot is not None
    assert snapshot.resources == {"prompt": prompt}
    assert again.resources_id == latest.resources_id == first.resources_id
    assert [claim.resources_id for claim in claims] == [first.resources_id] * 3


async def test_missing_rewards_count_as_given() -> None:
    store = InMemoryLightningStore()
    async with worker(store, lambda task: task):
        batch = await run_batch(store, [1.0, None, 0.5])
    assert batch.statuses() == {"succeeded": 2, "failed": 1}
    assert batch.rewards() == [1.0, 0.0, 0.5]
    assert batch.rewards(missing=-1.0) == [1.0, -1.0, 0.5]
    assert batch.rewards(missing=None) == [1.0, 0.5]
    assert batch[1].adapted is None
    assert not batch[1].spans


async def test_only_the_latest_attempt_counts() -> None:
    store = InMemoryLightningStore()
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    batch = asyncio.create_task(run_batch(store, ["task"], config=config))
    first = await store.dequeue_rollout(wait=5)
    assert first is not None
    await finish(store, first, 0.25, failed=True)
    second = await store.dequeue_rollout(wait=5)
    if second is None:
        pytest.fail("the failed attempt was not tried again")
    await finish(store, second, 1.0)
    (outcome,) = await batch
    assert (outcome.reward, len(outcome.spans)) == (1.0, 1)


async def test_a_timeout_cancels_the_open_rollouts() -> None:
    store = InMemoryLightningStore()

    async def one_of_three() -> None:
        claimed = await store.dequeue_rollout(wait=5)
        assert claimed is not None
        await finish(store, claimed, 1.0)
        assert await store.dequeue_rollout(wait=5) is not None  # and never ends

    task = asyncio.create_task(one_of_three())
    batch = await run_batch(store, ["a", "b", "c"], timeout=0.3)
    await task
    assert [outcome.rollout.status for outcome in batch] == ["succeeded", "cancelled", "cancelled"]
    assert batch.rewards(missing=None) == [1.0]
    assert [outcome.started for outcome in batch] == [True, True, False]
    assert await store.dequeue_rollout() is None  # nothing is left in the queue


async def test_a_cancelled_batch_cancels_its_rollouts() -> None:
    store = InMemoryLightningStore()
    task = asyncio.create_task(run_batch(store, ["a", "b"]))
    while (await store.query_rollouts()).total < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [rollout.status for rollout in await store.query_rollouts()] == ["cancelled"] * 2


async def test_finished_rollouts_are_not_cancelled() -> None:
    store = InMemoryLightningStore()
    ended, waiting = [await store.enqueue_rollout(name) for name in ("ended", "waiting")]
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    await finish(store, claimed, 1.0)
    rollouts = await cancel_rollouts(store, [waiting.rollout_id, ended.rollout_id])
    assert {r.rollout_id: r.status for r in rollouts} == {
        ended.rollout_id: "succeeded",
        waiting.rollout_id: "cancelled",
    }
    assert await cancel_rollouts(store, []) == []


async def test_the_end_of_a_budget_waits_for_what_runs_and_begins_no_more() -> None:
    """Were the slow rollouts left out, an agent that fails slowly would look better."""
    store = InMemoryLightningStore()
    counted: list[Any] = []

    def is_enough(found: Sequence[RolloutOutcome]) -> bool:
        counted.extend(one.rollout.input for one in found)
        return True

    requests = [EnqueueRolloutRequest(input=index) for index in range(6)]
    running = asyncio.create_task(run_requests(store, requests, is_enough=is_enough))
    claims = [await store.dequeue_rollout(f"w{index}", wait=10) for index in range(3)]
    slow = [one for one in claims if one is not None]
    await finish(store, slow.pop(0), 1.0)
    while (await store.query_rollouts(status_in=["queuing"], limit=0)).total:
        await asyncio.sleep(0.01)
    assert not running.done()
    for one in slow:
        await finish(store, one, None)
    batch = await running
    assert [one.started for one in batch] == [True] * 3 + [False] * 3
    assert [one.rollout.status for one in batch[:3]] == ["succeeded", "failed", "failed"]
    assert sorted(counted) == [0, 1, 2]


async def test_an_empty_batch() -> None:
    batch = await run_batch(InMemoryLightningStore(), [])
    assert len(batch) == 0
    assert batch.resources_id is None
    with pytest.raises(InvalidArgumentError, match="at least one value"):
        batch.score()


async def test_progress_is_logged_in_lines(caplog: pytest.LogCaptureFixture) -> None:
    store = InMemoryLightningStore()
    with caplog.at_level("INFO", logger="agl_core.algorithm"):
        async with worker(store, lambda task: task):
            await run_batch(store, [1.0, None], description="probing")
    assert "probing: 2/2 (1 failed)" in caplog.text


async def test_repeats_of_a_task_are_one_value_of_the_score() -> None:
    store = InMemoryLightningStore()
    rewards = iter([1.0, 0.0, 1.0, 1.0])
    async with worker(store, lambda _: next(rewards)):
        batch = await run_batch(store, [{"a": 1}, {"a": 1}, {"b": 1}, {"b": 1}])
    assert list(batch.task_rewards().values()) == [0.5, 1.0]
    assert batch.score() == estimate_mean([0.5, 1.0])


async def test_a_failure_counts_as_the_lowest_reward_whatever_the_scale() -> None:
    store = InMemoryLightningStore()
    async with worker(store, {1: -0.5, 2: -3.0, 3: None}.get):
        batch = await run_batch(store, [1, 2, 3])
    assert batch.score().mean == pytest.approx((-0.5 - 3 - 3) / 3)
    assert batch.score(reward_range=(-10, 0)).mean == pytest.approx((-0.5 - 3 - 10) / 3)
    assert batch.score(missing=0.0).mean == pytest.approx(-3.5 / 3)
    with pytest.raises(InvalidArgumentError, match="outside the declared range, -1 to 0"):
        batch.score(reward_range=(-1, 0))


async def test_a_gain_is_paired_by_task() -> None:
    store = InMemoryLightningStore()
    async with worker(store, {1: 0.25, 2: 0.5, 3: None}.get):
        before = await run_batch(store, [1, 2, 3])
    async with worker(store, {2: 1.0, 1: 0.5, 4: 1.0}.get):
        after = await run_batch(store, [2, 1, 4])
    assert after.gain_over(before) == estimate_gain([0.25, 0.5], [0.5, 1.0])
    # A crash must not gain over a finished rollout with a negative reward.
    async with worker(store, {1: None, 2: None}.get):
        crashed = await run_batch(store, [1, 2])
    async with worker(store, {1: -1.0, 2: -2.0}.get):
        finished = await run_batch(store, [1, 2])
    assert crashed.gain_over(finished).mean == -0.5


class Evicting(InMemoryLightningStore):
    """A store that has evicted the spans of some rollouts."""

    def __init__(self, *evicted: Any) -> None:
        super().__init__()
        self.evicted = evicted

    async def query_spans(self, rollout_id: str, *args: Any, **options: Any) -> Any:
        rollout = await self.get_rollout_by_id(rollout_id)
        if rollout is not None and rollout.input in self.evicted:
            raise SpansEvictedError(f"spans of {rollout_id} were evicted")
        return await super().query_spans(rollout_id, *args, **options)


async def test_a_reward_that_was_evicted_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    store = Evicting(1.0, "crash")
    async with worker(store, lambda task: task if task != "crash" else None):
        batch = await run_batch(store, [1.0, 0.5, "crash"])
    assert [one.infrastructure for one in batch] == ["eviction of their spans", None, None]
    assert [one.reward for one in batch.scored] == [0.5, None]
    assert "1 of 3 failed by the eviction of their spans and are not scored" in caplog.text
    async with worker(store, lambda task: task):
        with pytest.raises(RunFailedError, match=r"all 1 rollouts .* let the store keep more"):
            await run_batch(store, [1.0])


async def test_rollouts_whose_spans_were_evicted_are_not_read_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Evicting("b")
    run = await StoredRun.open(store, "night")
    async with worker(store, lambda task: 0.5):
        await run_batch(store, ["a", "b", "c"], run=run, name="first")
    batch = await read_batch(store, "night")
    assert [one.rollout.input for one in batch] == ["a", "c"]
    assert "1 of 3 are left out after the eviction of their spans" in caplog.text


async def test_a_failure_that_is_read_again_counts_the_declared_lowest_reward() -> None:
    store = InMemoryLightningStore()
    run = await StoredRun.open(store, "night")
    async with worker(store, lambda task: None if task else 1.0):
        await run_batch(store, [0, 1], run=run, name="a")
    assert (await read_batch(store, "night")).score().mean == 0.5
    assert (await read_batch(store, "night", reward_range=(-1, 1))).score().mean == 0.0
    with pytest.raises(ConfigError, match="reward_range: must be the lowest and the highest"):
        await read_batch(store, "night", reward_range=(1, 1))


async def test_what_an_adapter_raises_comes_as_it_is() -> None:
    class Broken(Names):
        def adapt(self, source: Any) -> list[str]:
            raise LookupError("no such name")

    store = InMemoryLightningStore()
    async with worker(store, lambda task: 1.0):
        with pytest.raises(LookupError, match="no such name"):
            await run_batch(store, ["a", "b"], adapter=Broken())
