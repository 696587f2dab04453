"""Rollouts are cancelled unless they end meanwhile, also by a store that is slow or away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_algorithm_kit import cancel_rollouts, run_batch, run_requests
from agl_algorithm_kit.cancelling import cancel_all_rollouts
from agl_core.errors import StoreUnavailableError
from agl_core.types import AttemptedRollout, EnqueueRolloutRequest, Rollout
from agl_store_memory import InMemoryLightningStore


class Store(InMemoryLightningStore):
    """A store in which something happens before each cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[Any] = []

    async def update_rollout(self, rollout_id: str, *args: Any, **changes: Any) -> Rollout:
        if changes.get("status") == "cancelled":
            rollout = await self.get_rollout_by_id(rollout_id)
            assert rollout is not None
            await self.before_cancelling(rollout)
            self.cancelled.append(rollout.input)
        return await super().update_rollout(rollout_id, *args, **changes)

    async def before_cancelling(self, rollout: Rollout) -> None:
        """Do nothing."""


class SlowStore(Store):
    """A store that answers one cancellation of a round, and not the next one."""

    def __init__(self, answers: int = 1) -> None:
        super().__init__()
        self.answers = answers

    async def wait_for_rollouts(self, **options: Any) -> Any:
        self.left = self.answers
        return await super().wait_for_rollouts(**options)

    async def before_cancelling(self, rollout: Rollout) -> None:
        self.left -= 1
        if self.left < 0:
            await asyncio.Event().wait()


async def enqueued(store: Store, count: int) -> list[str]:
    return [(await store.enqueue_rollout(index)).rollout_id for index in range(count)]


async def claim(store: Store) -> AttemptedRollout:
    claimed = await store.dequeue_rollout("Worker-0")
    assert claimed is not None
    return claimed


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a round of cancellations end soon."""
    monkeypatch.setattr("agl_algorithm_kit.cancelling._TIMEOUT", 0.1)


async def test_the_end_of_the_queue_is_cancelled_first() -> None:
    store = Store()
    rollouts = await cancel_rollouts(store, await enqueued(store, 3))
    assert store.cancelled == [2, 1, 0]
    assert [rollout.input for rollout in rollouts] == [0, 1, 2]


async def test_what_succeeds_meanwhile_stays_succeeded() -> None:
    class Ending(Store):
        async def before_cancelling(self, rollout: Rollout) -> None:
            assert isinstance(rollout, AttemptedRollout)
            attempt_id = rollout.attempt.attempt_id
            await self.update_attempt(rollout.rollout_id, attempt_id, status="succeeded")

    store = Ending()
    ids = await enqueued(store, 1)
    await claim(store)
    (rollout,) = await cancel_rollouts(store, ids)
    assert rollout.status == "succeeded"
    assert [one.status for one in await store.query_rollouts()] == ["succeeded"]


async def test_what_succeeds_after_the_cancellation_stays_cancelled() -> None:
    class Late(Store):
        async def query_rollouts(self, **options: Any) -> Any:
            await self.update_attempt(options["rollout_id_in"][0], "latest", status="succeeded")
            return await super().query_rollouts(**options)

    store = Late()
    ids = await enqueued(store, 1)
    await claim(store)
    (rollout,) = await cancel_rollouts(store, ids)
    assert rollout.status == "cancelled"


@pytest.mark.usefixtures("short")
async def test_what_a_slow_store_did_not_answer_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SlowStore()
    rollouts = await cancel_rollouts(store, await enqueued(store, 3))
    assert [rollout.input for rollout in rollouts] == [2]
    assert "2 rollouts could not be cancelled" in caplog.text


@pytest.mark.usefixtures("short")
async def test_a_slow_store_is_asked_until_none_is_open() -> None:
    store = SlowStore()
    batch = await run_batch(store, [0, 1, 2], timeout=0.01)
    assert [outcome.rollout.status for outcome in batch] == ["cancelled"] * 3
    assert await store.dequeue_rollout() is None


@pytest.mark.usefixtures("short")
async def test_a_store_that_is_away_is_not_asked_for_ever() -> None:
    store = SlowStore(answers=0)
    with pytest.raises(StoreUnavailableError, match="2 rollouts are still open"):
        await cancel_all_rollouts(store, await enqueued(store, 2))


async def test_a_rollout_that_is_claimed_at_the_end_of_a_budget_runs_again() -> None:
    """It has begun, so whether it is measured must not depend on the moment."""

    claimed = asyncio.Event()

    class Claiming(Store):
        async def before_cancelling(self, rollout: Rollout) -> None:
            if rollout.input == 1:
                assert (await claim(self)).rollout_id == rollout.rollout_id
                claimed.set()

    store = Claiming()
    requests = [EnqueueRolloutRequest(input=index) for index in range(3)]
    running = asyncio.create_task(run_requests(store, requests, is_enough=lambda found: True))
    first = await store.dequeue_rollout("Worker-0", wait=5)
    assert first is not None
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
    await claimed.wait()
    again = await store.dequeue_rollout("Worker-1", wait=5)
    assert again is not None
    assert (again.input, again.attempt.sequence_id) == (1, 2)
    await store.update_attempt(again.rollout_id, again.attempt.attempt_id, status="succeeded")
    batch = await running
    assert [one.rollout.status for one in batch] == ["succeeded", "succeeded", "cancelled"]
    assert [one.started for one in batch] == [True, True, False]


async def test_a_caller_that_is_cancelled_while_it_cancels_leaves_none_open() -> None:
    reached = asyncio.Event()

    class Held(Store):
        async def before_cancelling(self, rollout: Rollout) -> None:
            if not reached.is_set():
                reached.set()
                await asyncio.Event().wait()

    store = Held()
    task = asyncio.create_task(run_batch(store, ["a", "b"], timeout=0.01))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [rollout.status for rollout in await store.query_rollouts()] == ["cancelled"] * 2


async def test_the_warning_counts_what_did_not_end(caplog: pytest.LogCaptureFixture) -> None:
    class Ending(Store):
        async def before_cancelling(self, rollout: Rollout) -> None:
            if isinstance(rollout, AttemptedRollout):
                await self.update_attempt(rollout.rollout_id, "latest", status="succeeded")

    store = Ending()
    task = asyncio.create_task(run_batch(store, ["a", "b"], timeout=0.2))
    assert await store.dequeue_rollout(wait=5) is not None
    await task
    assert "1 of 2 did not end in time" in caplog.text
    caplog.clear()
    task = asyncio.create_task(run_batch(store, ["a"], timeout=0.2))
    assert await store.dequeue_rollout(wait=5) is not None
    await task
    assert "did not end" not in caplog.text
