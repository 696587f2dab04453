"""Waiting for work, for rollouts and for events: woken by the change, across threads and loops."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agl_core.store import StoreEvent
from agl_core.types import EnqueueRolloutRequest, RolloutConfig
from agl_store_kit import Notice
from agl_store_kit.events import EventBus
from agl_store_memory import InMemoryLightningStore


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore(scan_debounce_seconds=0)


async def queued(store: InMemoryLightningStore, count: int) -> None:
    """Let tasks run until this many callers wait for work."""
    while store._waiters.waiting_claims < count:
        await asyncio.sleep(0)


class TestDequeue:
    async def test_waiters_are_served_in_order(self, store: InMemoryLightningStore):
        waiting: list[Any] = []
        for number in range(5):
            waiting.append(asyncio.create_task(store.dequeue_rollout(f"w{number}", wait=30)))
            await queued(store, number + 1)
        for number in range(5):
            await store.enqueue_rollout(number)
        claimed = await asyncio.gather(*waiting)
        assert [item.input for item in claimed] == [0, 1, 2, 3, 4]
        assert store._waiters.waiting_claims == 0

    async def test_a_waiting_worker_is_idle_until_it_has_work(self, store: InMemoryLightningStore):
        task = asyncio.create_task(store.dequeue_rollout("w", wait=30))
        await queued(store, 1)
        worker = await store.get_worker_by_id("w")
        assert worker is not None
        assert worker.status == "idle"
        await store.enqueue_rollout(1)
        claimed = await task
        worker = await store.get_worker_by_id("w")
        assert claimed is not None and worker is not None
        assert worker.status == "busy"
        assert worker.current_attempt_id == claimed.attempt.attempt_id

    async def test_a_waiter_returns_a_partial_batch(self, store: InMemoryLightningStore):
        task = asyncio.create_task(store.dequeue_many_rollouts(limit=3, wait=30))
        await queued(store, 1)
        await store.enqueue_rollout(1)
        await store.enqueue_rollout(2)
        assert [item.input for item in await task] == [1, 2]

    async def test_a_cancelled_waiter_wakes_the_next(self, store: InMemoryLightningStore):
        first = asyncio.create_task(store.dequeue_rollout("a", wait=30))
        await queued(store, 1)
        second = asyncio.create_task(store.dequeue_rollout("b", wait=30))
        await queued(store, 2)
        made = await store.enqueue_rollout("x")  # wakes the first waiter, which has not run yet
        first.cancel()
        claimed = await second
        assert claimed is not None
        assert claimed.rollout_id == made.rollout_id
        assert claimed.attempt.sequence_id == 1
        with pytest.raises(asyncio.CancelledError):
            await first

    async def test_a_cancelled_sleeper_eats_no_later_wakeup(self):
        store = InMemoryLightningStore()  # it looks again by itself after 10 s only
        tasks: list[Any] = []
        for name in "ab":
            tasks.append(asyncio.create_task(store.dequeue_rollout(name, wait=30)))
            await queued(store, len(tasks))
        tasks[1].cancel()
        await asyncio.wait(tasks[1:])
        tasks[1] = asyncio.create_task(store.dequeue_rollout("c", wait=30))
        await queued(store, 2)
        await store.enqueue_rollout(1)
        await store.enqueue_rollout(2)
        claimed = await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert [item.input for item in claimed] == [1, 2]
        assert store._waiters._asleep == []

    async def test_a_woken_waiter_that_comes_too_late_keeps_its_place(
        self, store: InMemoryLightningStore
    ):
        tasks: list[Any] = []
        for name in "abc":
            tasks.append(asyncio.create_task(store.dequeue_rollout(name, wait=30)))
            await queued(store, len(tasks))
        await store.enqueue_many_rollouts([_request(1), _request(2)])
        taken = await store.dequeue_many_rollouts(limit=2)  # before the woken ones ran
        assert [item.input for item in taken] == [1, 2]
        await asyncio.sleep(0.01)
        for number in (3, 4, 5):
            await store.enqueue_rollout(number)
        assert [item.input for item in await asyncio.gather(*tasks)] == [3, 4, 5]

    async def test_a_waiter_of_a_closed_loop_is_passed_over(self, store: InMemoryLightningStore):
        loop = asyncio.new_event_loop()
        task = loop.create_task(store.dequeue_rollout("gone", wait=30))

        def begin() -> None:
            loop.run_until_complete(asyncio.sleep(0.01))

        await asyncio.to_thread(begin)
        loop.close()  # without cancelling its task, as a crashing thread would
        alive = asyncio.create_task(store.dequeue_rollout("alive", wait=30))
        await queued(store, 2)
        await store.enqueue_rollout(1)
        claimed = await alive
        assert claimed is not None
        assert claimed.attempt.worker_id == "alive"
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
        del task

    @pytest.mark.parametrize("wait", [0, -1])
    async def test_without_a_wait_it_answers_at_once(
        self, store: InMemoryLightningStore, wait: float
    ):
        assert await store.dequeue_rollout(wait=wait) is None

    async def test_the_wait_ends_in_time(self, store: InMemoryLightningStore):
        start = time.monotonic()
        assert await store.dequeue_rollout("w", wait=0.1) is None
        assert 0.1 <= time.monotonic() - start < 5
        assert store._waiters.waiting_claims == 0

    async def test_a_timeout_verdict_brings_work(self, store: InMemoryLightningStore):
        config = RolloutConfig(timeout_seconds=0.1, max_attempts=2, retry_condition=["timeout"])
        await store.start_rollout("x", config=config, worker_id="lost")
        claimed = await store.dequeue_rollout("w", wait=30)
        assert claimed is not None
        assert claimed.attempt.sequence_id == 2

    async def test_threads_claim_everything_once(self, store: InMemoryLightningStore):
        total, consumers, batch = 2000, 6, 50
        seen: list[str] = []
        lock = threading.Lock()

        def consume(name: str) -> None:
            async def run() -> None:
                while claimed := await store.dequeue_rollout(name, wait=0.5):
                    with lock:
                        seen.append(claimed.rollout_id)
                        if len(seen) == total:
                            everything.set()
                    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")

            asyncio.run(run())

        def produce() -> None:
            async def run() -> None:
                for start in range(0, total // 2, batch):
                    await store.enqueue_many_rollouts([_request(start)] * batch)

            asyncio.run(run())

        everything = threading.Event()
        with ThreadPoolExecutor(consumers + 2) as pool:
            jobs = [pool.submit(consume, f"w{i}") for i in range(consumers)]
            jobs += [pool.submit(produce) for _ in range(2)]
            assert await asyncio.to_thread(everything.wait, 60)
            for job in jobs:
                await asyncio.wrap_future(job)
        assert len(seen) == len(set(seen)) == total
        done = await store.query_rollouts(status_in=["succeeded"], limit=0)
        assert done.total == total
        assert store._waiters.waiting_claims == 0

    def test_work_from_another_thread_wakes_within_milliseconds(
        self, store: InMemoryLightningStore
    ):
        delays: list[float] = []

        async def consume() -> None:
            for _ in range(20):
                claimed = await store.dequeue_rollout("w", wait=10)
                assert claimed is not None
                delays.append(time.monotonic() - claimed.input)
                ready.set()

        ready = threading.Event()
        consumer = threading.Thread(target=lambda: asyncio.run(consume()))
        consumer.start()
        for _ in range(20):
            while store._waiters.waiting_claims == 0:
                time.sleep(0.0005)
            ready.clear()
            asyncio.run(store.enqueue_rollout(time.monotonic()))
            assert ready.wait(5)
        consumer.join(5)
        assert sorted(delays)[10] < 0.05


class TestWaitForRollouts:
    async def test_several_waiters_on_one_rollout_all_wake(self, store: InMemoryLightningStore):
        made = await store.start_rollout(1)
        ids = [made.rollout_id]
        waits = [asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids)) for _ in range(9)]
        await asyncio.sleep(0)
        await store.update_attempt(made.rollout_id, "latest", status="succeeded")
        for found in await asyncio.gather(*waits):
            assert [(item.rollout_id, item.status) for item in found] == [(ids[0], "succeeded")]
        assert not store._waiters.awaited_rollouts

    async def test_order_unknown_ids_and_duplicates(self, store: InMemoryLightningStore):
        made = [(await store.start_rollout(i)).rollout_id for i in range(3)]
        for rollout_id in made:
            await store.update_rollout(rollout_id, status="cancelled")
        ids = [made[2], "ro-unknown", made[0], made[2]]
        found = await store.wait_for_rollouts(rollout_ids=ids)
        assert [item.rollout_id for item in found] == [made[2], made[0]]

    async def test_a_requeued_rollout_is_waited_for_again(self, store: InMemoryLightningStore):
        one, two = [(await store.start_rollout(i)).rollout_id for i in range(2)]
        task = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[one, two], timeout=30))
        await asyncio.sleep(0)
        await store.update_attempt(one, "latest", status="failed")
        await store.update_rollout(one, status="requeuing")
        await store.update_attempt(two, "latest", status="succeeded")
        await asyncio.sleep(0.01)
        assert not task.done()
        await store.dequeue_rollout()
        await store.update_attempt(one, "latest", status="succeeded")
        assert [item.status for item in await task] == ["succeeded", "succeeded"]

    async def test_finished_and_reopened_before_the_waiter_ran(self, store: InMemoryLightningStore):
        one = (await store.start_rollout(1)).rollout_id
        task = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[one], timeout=30))
        await asyncio.sleep(0)
        await store.update_attempt(one, "latest", status="failed")
        await store.start_attempt(one)
        await asyncio.sleep(0.01)
        assert not task.done()
        await store.update_attempt(one, "latest", status="succeeded")
        assert [item.status for item in await task] == ["succeeded"]

    async def test_a_timeout_is_noticed_while_waiting(self, store: InMemoryLightningStore):
        made = await store.start_rollout(1, config=RolloutConfig(timeout_seconds=0.1))
        found = await store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=30)
        assert [item.status for item in found] == ["failed"]

    async def test_cancelling_leaves_nothing_behind(self, store: InMemoryLightningStore):
        made = await store.start_rollout(1)
        task = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[made.rollout_id]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not store._waiters.awaited_rollouts

    def test_a_rollout_finished_in_another_thread_wakes(self, store: InMemoryLightningStore):
        made = asyncio.run(store.start_rollout(1))
        found: list[Any] = []

        def wait() -> None:
            ids = [made.rollout_id]
            found.extend(asyncio.run(store.wait_for_rollouts(rollout_ids=ids, timeout=30)))

        thread = threading.Thread(target=wait)
        thread.start()
        while not store._waiters.awaited_rollouts:
            time.sleep(0.001)
        asyncio.run(store.update_attempt(made.rollout_id, "latest", status="succeeded"))
        thread.join(10)
        assert [item.status for item in found] == ["succeeded"]


class TestEvents:
    async def test_changes_are_events_with_their_ids(self, store: InMemoryLightningStore):
        stream = store.events()
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        made = await store.enqueue_rollout(1)
        claimed = await store.dequeue_rollout("w")
        assert claimed is not None
        await store.update_worker("w")
        snapshot = await store.add_resources({})
        await store.close()
        events = [await first, *[event async for event in stream]]
        ids = (made.rollout_id, claimed.attempt.attempt_id)
        assert [(e.kind, e.status, e.rollout_id, e.attempt_id, e.worker_id) for e in events] == [
            ("rollout", "queuing", ids[0], None, None),
            ("attempt", "preparing", *ids, "w"),
            ("rollout", "preparing", ids[0], None, None),
            ("worker", "busy", *ids, "w"),
            ("worker", "busy", *ids, "w"),
            ("resources", None, None, None, None),
        ]
        assert events[-1].resources_id == snapshot.resources_id
        numbers = [event.event_id for event in events]
        assert numbers == list(range(numbers[0], numbers[0] + 6))
        assert store._waiters._bus._subscriptions == set()

    async def test_a_slow_listener_loses_the_oldest_events_and_sees_the_gap(self):
        bus = EventBus()
        subscription = bus.subscribe()
        for number in range(5000):
            bus.publish([Notice("rollout", float(number), "r", status="running")])
        kept: list[StoreEvent] = subscription.take()
        assert [kept[0].event_id, kept[-1].event_id, len(kept)] == [905, 5000, 4096]
        assert subscription.take() == []

    async def test_numbers_go_on_without_listeners(self, store: InMemoryLightningStore):
        await store.add_resources({})
        stream = store.events()
        event = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await store.add_resources({})
        assert (await event).event_id == 2
        await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]
        assert store._waiters._bus._subscriptions == set()

    async def test_heartbeats_of_spans_and_polls_are_not_events(
        self, store: InMemoryLightningStore
    ):
        await store.dequeue_rollout("w")
        number = store._waiters._bus._number
        await store.dequeue_rollout("w")
        assert store._waiters._bus._number == number


def _request(value: Any) -> EnqueueRolloutRequest:
    return EnqueueRolloutRequest(input=value)
