"""The engine on a backend that awaits, as a database does; idempotency keys; the waiting calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from agl_core.errors import InvalidArgumentError
from agl_core.plugins import add_listener, flush_listeners, hookimpl, remove_listener
from agl_core.store import current_request_key
from agl_core.types import EnqueueRolloutRequest
from agl_store_kit import EngineStore, Notice, StorageBackend
from agl_store_memory import InMemoryLightningStore
from agl_store_memory.backend import MemoryBackend
from agl_store_memory.eviction import MemoryBudget


class AwaitingBackend(MemoryBackend):
    """Lets other tasks run before and after each call, and returns copies of its records."""

    shares_records: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(MemoryBudget(10**9, 10**8, None, 10**10))
        self.silent = False

    async def claim(self, request: Any) -> Any:
        await asyncio.sleep(0)
        claimed = await super().claim(request)
        if claimed:
            return claimed
        await asyncio.sleep(0)
        return claimed

    async def rollout_statuses(self, rollout_ids: Any) -> Any:
        statuses = await super().rollout_statuses(rollout_ids)
        await asyncio.sleep(0)
        return statuses

    def publish(self, notices: Any) -> None:
        if not self.silent:
            super().publish(notices)


@pytest.fixture
def backend() -> AwaitingBackend:
    return AwaitingBackend()


@pytest.fixture
def store(backend: AwaitingBackend) -> EngineStore:
    return EngineStore(backend, scan_debounce_seconds=0)


@contextmanager
def request_key(key: str) -> Iterator[None]:
    token = current_request_key.set(key)
    try:
        yield
    finally:
        current_request_key.reset(token)


async def test_work_that_arrives_during_a_claim_is_not_missed(store: EngineStore):
    for number in range(50):
        waiting = [asyncio.create_task(store.dequeue_rollout(wait=20)) for _ in range(3)]
        for step in range(3):
            for _ in range((number + step) % 5):
                await asyncio.sleep(0)
            await store.enqueue_rollout((number, step))
        claimed = await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert {item.input[1] for item in claimed if item} == set(range(3))


async def test_a_call_cancelled_during_its_claim_passes_the_work_on(store: EngineStore):
    for ticks in range(6):
        first = asyncio.create_task(store.dequeue_rollout("a", wait=20))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(store.dequeue_rollout("b", wait=20))
        await asyncio.sleep(0.01)
        await store.enqueue_rollout(ticks)
        for _ in range(ticks):
            await asyncio.sleep(0)
        first.cancel()
        taken = await asyncio.gather(first, return_exceptions=True)
        if isinstance(taken[0], BaseException):
            claimed = await asyncio.wait_for(second, 5)
            assert claimed is not None
            assert claimed.input == ticks
        else:
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)


async def test_a_rollout_that_finishes_while_statuses_are_read_is_noticed(store: EngineStore):
    for ticks in range(6):
        made = await store.start_rollout("x")
        wait = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[made.rollout_id]))
        for _ in range(ticks):
            await asyncio.sleep(0)
        await store.update_attempt(made.rollout_id, "latest", status="succeeded")
        (done,) = await asyncio.wait_for(wait, 5)
        assert done.status == "succeeded"


async def test_a_backend_that_counts_the_queue_wakes_claims(
    store: EngineStore, backend: AwaitingBackend
):
    waiting = [asyncio.create_task(store.dequeue_rollout(wait=20)) for _ in range(2)]
    await asyncio.sleep(0.02)
    backend.silent = True  # as for a change of another process whose notice was lost
    await store.enqueue_rollout("x")
    await store.enqueue_rollout("y")
    await asyncio.sleep(0.02)
    assert backend._listener is not None
    backend._listener.work_available(2)
    claimed = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert [item.input for item in claimed if item] == ["x", "y"]


async def test_notices_of_other_processes_are_events(store: EngineStore, backend: AwaitingBackend):
    stream = store.events()
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    backend.publish([Notice("rollout", 1.0, "ro-elsewhere", status="failed")])
    event = await asyncio.wait_for(first, 5)
    assert (event.kind, event.rollout_id, event.status, event.time) == (
        "rollout",
        "ro-elsewhere",
        "failed",
        1.0,
    )
    await stream.aclose()


async def test_a_repeated_call_creates_nothing_twice():
    store = InMemoryLightningStore()
    batch = [EnqueueRolloutRequest(input=number) for number in range(3)]
    results: list[Any] = []
    for _ in range(2):
        with request_key("enqueue"):
            results.append(await store.enqueue_many_rollouts(batch))
        with request_key("start"):
            results.append(await store.start_rollout("x", worker_id="w"))
        with request_key("attempt"):
            results.append(await store.start_attempt(results[0][0].rollout_id))
    assert results[3][1:] == results[0][1:]
    assert [item.rollout_id for item in results[3]] == [item.rollout_id for item in results[0]]
    assert results[4] == results[1]
    assert results[5] == results[2]
    statistics = await store.statistics()
    assert (statistics.get("total_rollouts"), statistics.get("total_attempts")) == (4, 2)


def test_the_port_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        StorageBackend()  # pyright: ignore[reportAbstractUsage]


def test_a_key_of_another_call_is_refused():
    async def enqueue(count: int) -> None:
        with request_key("k"):
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1)] * count)

    store = InMemoryLightningStore()
    asyncio.run(enqueue(1))
    with pytest.raises(InvalidArgumentError, match="another call"):
        asyncio.run(enqueue(2))


async def test_listeners_do_not_inherit_the_key_of_a_call():
    """What a listener enqueues is no repetition of the call that ended the rollout."""
    keys: list[str | None] = []

    class Listener:
        @hookimpl
        def rollout_ended(self, rollout: Any) -> None:
            keys.append(current_request_key.get())

    name = add_listener(Listener())
    store = InMemoryLightningStore()
    made = await store.start_rollout("x")
    try:
        with request_key("k"):
            await store.update_attempt(made.rollout_id, "latest", status="succeeded")
        flush_listeners()
    finally:
        remove_listener(name)
    assert keys == [None]


async def test_a_returned_claim_that_is_repeated_is_another_attempt():
    store = InMemoryLightningStore()
    made = await store.enqueue_rollout("x")
    ids: list[str] = []
    for _ in range(2):
        with request_key("k"):
            claimed = await store.dequeue_rollout()
        assert claimed is not None
        ids.append(claimed.attempt.attempt_id)
        await store.return_claim(made.rollout_id, ids[-1])
    attempts = await store.query_attempts(made.rollout_id)
    assert [attempt.attempt_id for attempt in attempts] == ids
