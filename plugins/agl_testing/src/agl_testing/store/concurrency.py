"""Concurrent callers: tasks, threads, processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agl_core.store import LightningStore
from agl_testing.samples import named_resources, span_of
from agl_testing.store.base import StoreTests, claim, statuses
from agl_testing.suite import requires

__all__ = ["ConcurrencyTests"]

TASKS = 200
"""More than any pool of threads or connections has."""


class ConcurrencyTests(StoreTests):
    """Each call is atomic under concurrent calls."""

    async def test_tasks_never_claim_the_same_rollout(self, store: LightningStore):
        ids = {(await store.enqueue_rollout(i)).rollout_id for i in range(TASKS)}
        claimed = await asyncio.gather(*(store.dequeue_rollout(f"w{i}") for i in range(TASKS)))
        assert {rollout.rollout_id for rollout in claimed if rollout} == ids
        assert await store.dequeue_rollout() is None

    async def test_tasks_never_draw_the_same_sequence_id(self, store: LightningStore):
        drawn = await asyncio.gather(
            *(store.get_next_span_sequence_id("ro", f"at-{i}") for i in range(TASKS))
        )
        assert sorted(drawn) == list(range(1, TASKS + 1))

    async def test_one_of_many_duplicates_is_stored(self, store: LightningStore):
        claimed = await claim(store)
        span = span_of(claimed)
        results = await asyncio.gather(*(store.add_span(span) for _ in range(50)))
        assert sum(result is not None for result in results) == 1
        assert len(await store.query_spans(claimed.rollout_id)) == 1

    async def test_attempts_started_at_once_have_ordinals_of_their_own(self, store: LightningStore):
        rollout = await store.enqueue_rollout("x")
        started = await asyncio.gather(
            *(store.start_attempt(rollout.rollout_id) for _ in range(20))
        )
        assert sorted(item.attempt.sequence_id for item in started) == list(range(1, 21))

    async def test_updates_of_one_snapshot_are_all_counted(self, store: LightningStore):
        updated = await asyncio.gather(*(store.update_resources("r", {}) for _ in range(20)))
        assert sorted(update.version for update in updated) == list(range(1, 21))

    @requires("thread_safe")
    async def test_threads_share_one_queue(self, store: LightningStore):
        ids = {(await store.enqueue_rollout(i)).rollout_id for i in range(TASKS)}
        claimed: list[str] = []
        failures: list[BaseException] = []

        async def work(worker: str) -> None:
            while rollout := await store.dequeue_rollout(worker):
                await store.add_span(span_of(rollout))
                await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
                claimed.append(rollout.rollout_id)

        def thread(worker: str) -> None:
            try:
                asyncio.run(work(worker))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=thread, args=(f"w{i}",)) for i in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            await asyncio.to_thread(each.join, 60)
        assert not failures
        assert len(claimed) == TASKS
        assert set(claimed) == ids
        assert (await store.query_rollouts(status_in=["succeeded"])).total == TASKS
        assert (await store.statistics()).get("total_spans") == TASKS

    @requires("thread_safe")
    async def test_a_waiting_claim_wakes_for_work_from_another_thread(self, store: LightningStore):
        waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=20))
        await asyncio.sleep(0.05)
        rollout = await asyncio.to_thread(lambda: asyncio.run(store.enqueue_rollout("x")))
        claimed = await asyncio.wait_for(waiting, 10)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id

    @requires("processes")
    async def test_processes_share_one_queue(self, store: LightningStore):
        ids = {(await store.enqueue_rollout(i)).rollout_id for i in range(TASKS)}
        connect = pickle.dumps(self.connection(store))
        loop = asyncio.get_running_loop()
        with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = await asyncio.gather(
                *(loop.run_in_executor(pool, _drain, connect, f"w{i}") for i in range(3))
            )
        claimed = [rollout_id for result in results for rollout_id in result]
        assert len(claimed) == TASKS
        assert set(claimed) == ids
        assert (await store.statistics()).get("total_spans") == TASKS
        for rollout_id in list(ids)[:5]:
            assert await statuses(store, rollout_id) == ("succeeded", ["succeeded"])

    @requires("processes")
    async def test_two_stores_draw_the_ids_of_one_counter(self, store: LightningStore):
        claimed = await claim(store)
        pair = (claimed.rollout_id, claimed.attempt.attempt_id)
        async with _another(self.connection(store)) as other:
            drawn: list[int] = []
            for _ in range(3):
                drawn += await store.get_many_span_sequence_ids([pair, pair])
                drawn.append(await other.get_next_span_sequence_id(*pair))
            drawn += await asyncio.gather(
                *(each.get_next_span_sequence_id(*pair) for each in [store, other] * 5)
            )
        assert sorted(drawn) == list(range(1, 20))

    @requires("processes")
    async def test_resources_of_one_store_are_the_latest_of_another(self, store: LightningStore):
        async with _another(self.connection(store)) as other:
            for text in ("first", "second"):
                # Each has read the latest snapshot, and may remember it.
                await store.get_latest_resources()
                await store.enqueue_rollout("x")
                written = await other.update_resources(text, named_resources(text))
                assert await store.get_latest_resources() == written
                assert (await store.enqueue_rollout("x")).resources_id == text
                assert (await store.start_rollout("x")).resources_id == text

    @requires("processes")
    async def test_of_swaps_in_two_stores_one_succeeds(self, store: LightningStore):
        if not store.capabilities.get("compare_and_set"):
            pytest.skip("the store does not compare and set")
        async with _another(self.connection(store)) as other:
            for version in range(4):
                done = await asyncio.gather(
                    *(
                        each.swap_resources("live", named_resources(str(n)), version=version)
                        for n, each in enumerate([store, other] * 4)
                    )
                )
                (swapped,) = [update for update in done if update is not None]
                assert swapped.version == version + 1
                for each in (store, other):
                    read = await each.get_resources_by_id("live")
                    assert read is not None
                    assert (read.version, read.resources) == (version + 1, swapped.resources)

    @requires("processes")
    async def test_a_waiting_claim_wakes_for_work_from_another_process(self, store: LightningStore):
        connect = pickle.dumps(self.connection(store))
        loop = asyncio.get_running_loop()
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=60))
            rollout_id = await loop.run_in_executor(pool, _enqueue, connect)
            claimed = await asyncio.wait_for(waiting, 30)
        assert claimed is not None
        assert claimed.rollout_id == rollout_id


@asynccontextmanager
async def _another(connection: Callable[[], LightningStore]) -> AsyncIterator[LightningStore]:
    """Open the same data once more, with connections of its own."""
    store: LightningStore = pickle.loads(pickle.dumps(connection))()
    try:
        yield store
    finally:
        await store.close()


async def _with(connect: bytes, work: Callable[[LightningStore], Any]) -> Any:
    store: LightningStore = pickle.loads(connect)()
    try:
        return await work(store)
    finally:
        await store.close()


def _drain(connect: bytes, worker: str) -> list[str]:
    async def drain(store: LightningStore) -> list[str]:
        done: list[str] = []
        while rollout := await store.dequeue_rollout(worker):
            await store.add_span(span_of(rollout))
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            done.append(rollout.rollout_id)
        return done

    return asyncio.run(_with(connect, drain))


def _enqueue(connect: bytes) -> str:
    async def enqueue(store: LightningStore) -> str:
        return (await store.enqueue_rollout("x")).rollout_id

    return asyncio.run(_with(connect, enqueue))
