"""Durable stores: reopening, and kills."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from multiprocessing.connection import Connection

from agl_core.store import LightningStore
from agl_testing.samples import full_span, named_resources, span_of
from agl_testing.store.base import StoreTests, claim
from agl_testing.suite import requires

__all__ = ["DurabilityTests"]


class DurabilityTests(StoreTests):
    """Data that a returned call wrote is still stored after a restart or a kill."""

    @requires("durable")
    async def test_a_reopened_store_has_everything(self, store: LightningStore):
        snapshot = await store.add_resources(named_resources())
        queued = await store.enqueue_rollout({"q": [1, None]}, mode="val", metadata={"m": 1})
        await store.enqueue_rollout("second")
        started = await store.start_rollout("started", worker_id="w")
        span = full_span(started, 7)
        await store.add_span(span)
        rollout = await store.get_rollout_by_id(started.rollout_id)
        worker = await store.get_worker_by_id("w")
        statistics = await store.statistics()
        await store.close()

        again = await self.reopen(store)
        try:
            assert await again.get_latest_resources() == snapshot
            assert await again.get_rollout_by_id(queued.rollout_id) == queued
            assert await again.get_rollout_by_id(started.rollout_id) == rollout
            assert await again.get_worker_by_id("w") == worker
            assert list(await again.query_spans(started.rollout_id)) == [span]
            ids = (started.rollout_id, started.attempt.attempt_id)
            assert await again.get_next_span_sequence_id(*ids) == 8
            reopened = await again.statistics()
            assert {k: v for k, v in reopened.items() if k.startswith("total_")} == {
                k: v for k, v in statistics.items() if k.startswith("total_")
            }
            claimed = await again.dequeue_many_rollouts(limit=5)
            assert [r.input for r in claimed] == [{"q": [1, None]}, "second"]
        finally:
            await again.close()

    @requires("durable", "processes")
    async def test_a_killed_process_loses_no_call_that_returned(self, store: LightningStore):
        connect = pickle.dumps(self.connection(store))
        context = multiprocessing.get_context("spawn")
        for calls in (1, 25, 60):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_write_until_killed, args=(connect, theirs))
            process.start()
            theirs.close()
            acknowledged: list[tuple[str, str]] = []
            while len(acknowledged) < calls:
                acknowledged.append(await asyncio.to_thread(ours.recv))
            process.kill()
            await asyncio.to_thread(process.join, 30)
            while ours.poll():
                try:
                    acknowledged.append(ours.recv())
                except EOFError:
                    break
            ours.close()
            for rollout_id, span_id in acknowledged:
                rollout = await store.get_rollout_by_id(rollout_id)
                assert rollout is not None
                page = await store.query_spans(rollout_id)
                assert [span.span_id for span in page] == [span_id]
        claimed = await claim(store, "after")
        assert claimed.attempt.sequence_id == 1


def _write_until_killed(connect: bytes, told: Connection) -> None:
    async def write() -> None:
        store: LightningStore = pickle.loads(connect)()
        while True:
            started = await store.start_rollout("x")
            span = span_of(started)
            await store.add_span(span)
            told.send((started.rollout_id, span.span_id))

    asyncio.run(write())
