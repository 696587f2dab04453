"""The threaded facade over a store that is not thread-safe, and the lock it uses."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agl_core.types import EnqueueRolloutRequest
from agl_store_kit import LightningStoreThreaded
from agl_store_kit.mutex import CrossLoopLock
from agl_store_kit.threaded import OneCallAtATime
from agl_store_memory import InMemoryLightningStore
from tests.core.store.fragile_store import FragileStore


@pytest.fixture
def inner() -> FragileStore:
    return FragileStore()


@pytest.fixture
def store(inner: FragileStore) -> LightningStoreThreaded:
    return LightningStoreThreaded(inner)


def guard_of(store: LightningStoreThreaded) -> OneCallAtATime:
    (guard,) = store.interceptors
    assert isinstance(guard, OneCallAtATime)
    return guard


async def test_capabilities_and_statistics(store: LightningStoreThreaded, inner: FragileStore):
    assert store.capabilities == {
        **dict.fromkeys(("thread_safe", "async_safe", "events", "compare_and_set"), True),
        **dict.fromkeys(("zero_copy", "otlp_traces"), False),
    }
    assert store.otlp_traces_endpoint() == inner.otlp_traces_endpoint()
    assert (await store.statistics()).get("name") == "InMemoryLightningStore"
    assert store.draw_span_sequence_id("ro-1", "at-1") is None, "it would not wait for its turn"
    stream = store.events()
    event = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await store.add_resources({})
    assert (await event).kind == "resources"
    await store.close()


async def test_arguments_reach_the_store(store: LightningStoreThreaded):
    await store.update_worker("a")
    await store.dequeue_rollout("b")
    found = await store.query_workers(
        status_in=["idle"], worker_id_contains="a", filter_logic="or", sort_by="worker_id"
    )
    assert [worker.worker_id for worker in found] == ["a", "b"]


async def test_coroutines_of_one_loop_do_not_block_each_other(store: LightningStoreThreaded):
    await asyncio.wait_for(asyncio.gather(*(store.enqueue_rollout(i) for i in range(50))), 10)
    found = await store.query_rollouts()
    assert sorted(item.input for item in found) == list(range(50))


async def test_a_waiting_call_does_not_block_the_others(
    store: LightningStoreThreaded, inner: FragileStore
):
    work = asyncio.create_task(store.dequeue_rollout("w", wait=30))
    many = asyncio.create_task(store.dequeue_many_rollouts(limit=5, wait=30))
    await asyncio.sleep(0.05)
    looks = inner.calls.count("dequeue_many_rollouts")
    assert looks == 2, "each looked once and sleeps"
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(2)])
    one = await asyncio.wait_for(work, 5)
    assert one is not None
    assert one.input == 0
    assert [item.input for item in await asyncio.wait_for(many, 5)] == [1]
    ids = [one.rollout_id, "ro-unknown"]
    done = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=30))
    await asyncio.sleep(0.02)
    assert not done.done()
    await store.update_attempt(one.rollout_id, "latest", status="succeeded")
    assert [item.rollout_id for item in await asyncio.wait_for(done, 5)] == ids[:1]
    assert guard_of(store)._waiting == {}


async def test_waits_end_in_time(store: LightningStoreThreaded):
    made = await store.start_rollout(1)
    start = time.monotonic()
    assert await store.dequeue_rollout("w", wait=0.05) is None
    assert await store.dequeue_rollout("w") is None
    assert await store.dequeue_many_rollouts(limit=0, wait=30) == []
    ids = [made.rollout_id]
    assert await store.wait_for_rollouts(rollout_ids=ids, timeout=0.05) == []
    assert await store.wait_for_rollouts(rollout_ids=ids, timeout=0) == []
    assert 0.1 <= time.monotonic() - start < 5


async def test_a_wait_ends_in_time_while_another_call_keeps_the_store_busy(
    store: LightningStoreThreaded,
):
    made = await store.start_rollout(1)
    async with guard_of(store)._lock:
        start = time.monotonic()
        waiting = store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=0.1)
        assert await asyncio.wait_for(waiting, 2) == []
        assert 0.1 <= time.monotonic() - start < 1
    assert len(await store.query_rollouts()) == 1  # the lock is free again


def test_threads_share_a_store_that_is_not_thread_safe(store: LightningStoreThreaded):
    total = 200

    async def work(name: str) -> int:
        done = 0
        while claimed := await store.dequeue_rollout(name, wait=0.3):
            await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
            done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda at=at: asyncio.run(work(f"w{at}"))) for at in range(4)]
        for number in range(total):
            asyncio.run(store.enqueue_rollout(number))
        assert sum(job.result() for job in jobs) == total
    finished = asyncio.run(store.query_rollouts(status_in=["succeeded"], limit=0))
    assert finished.total == total


async def test_a_thread_safe_store_is_called_directly():
    inner = InMemoryLightningStore()
    store = LightningStoreThreaded(inner)
    task = asyncio.create_task(store.dequeue_rollout("w", wait=30))
    while inner._waiters.waiting_claims == 0:
        await asyncio.sleep(0)
    await inner.enqueue_rollout("behind the facade's back")
    claimed = await asyncio.wait_for(task, 5)
    assert claimed is not None
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
    await asyncio.sleep(0)
    await inner.update_attempt(claimed.rollout_id, "latest", status="failed")
    assert [item.status for item in await asyncio.wait_for(waiting, 5)] == ["failed"]


class TestCrossLoopLock:
    async def test_it_is_fair(self):
        lock, order = CrossLoopLock(), list[int]()

        async def enter(number: int) -> None:
            async with lock:
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(enter(number) for number in range(10)))
        assert order == list(range(10))

    async def test_a_cancelled_waiter_is_passed_over(self):
        lock = CrossLoopLock()

        async def enter() -> str:
            async with lock:
                return "in"

        async with lock:
            tasks = [asyncio.create_task(enter()) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.sleep(0)
        # The lock was handed to the second task, which is cancelled before it runs.
        tasks[1].cancel()
        assert await asyncio.wait_for(tasks[2], 5) == "in"
        for task in tasks[:2]:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.wait_for(enter(), 5) == "in"

    async def test_an_error_inside_releases_it(self):
        lock = CrossLoopLock()
        with pytest.raises(KeyError):
            async with lock:
                raise KeyError
        async with lock:
            pass

    def test_threads_exclude_each_other(self):
        lock, inside, most = CrossLoopLock(), [0], [0]

        async def work() -> None:
            for _ in range(100):
                async with lock:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    await asyncio.sleep(0)
                    inside[0] -= 1

        threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert (inside, most) == ([0], [1])
