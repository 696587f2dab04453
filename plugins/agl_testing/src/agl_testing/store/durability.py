"""Durable stores: reopening, and kills."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from agl_core.store import LightningStore, current_request_key
from agl_core.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
)
from agl_testing.samples import full_span, named_resources, span_of
from agl_testing.store.base import StoreTests, claim
from agl_testing.suite import requires

__all__ = ["DurabilityTests"]

KILLED_WITHIN = 60.0
"""Seconds in which a process starts, imports a store and makes one call, on a busy machine."""


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

    @requires("durable")
    async def test_what_a_call_wrote_is_stored_when_it_returns(self, store: LightningStore):
        async def stored_at_once() -> None:
            """Read the data as after a kill: the store that wrote them is still open."""
            again = await self.reopen(store)
            try:
                found = await _records(again)
            finally:
                await again.close()
            assert found == await _records(store)

        queued = await store.enqueue_rollout({"q": 1}, metadata={"m": 1})
        await stored_at_once()
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(2)])
        await stored_at_once()
        claimed = await store.dequeue_rollout("w")
        assert claimed is not None
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        await stored_at_once()
        await store.update_rollout(
            queued.rollout_id,
            input={"q": 2},
            mode="val",
            resources_id="rs-1",
            config=RolloutConfig(max_attempts=3, retry_condition=["failed"]),
            metadata={"m": 2},
        )
        await stored_at_once()
        await store.add_span(full_span(claimed, 7))
        await stored_at_once()
        await store.update_attempt(*ids, status="failed", metadata={"why": "x"})
        await stored_at_once()
        await store.start_attempt(ids[0], worker_id="w")
        await stored_at_once()
        await store.start_rollout("started", worker_id="v")
        await stored_at_once()
        await store.update_worker("w", {"cpu": 0.5})
        await stored_at_once()
        for text in ("first", "second"):
            await store.update_resources("mine", named_resources(text))
            await stored_at_once()
        await store.add_resources(named_resources("third"))
        await stored_at_once()
        assert await store.get_next_span_sequence_id(*ids) == 8
        again = await self.reopen(store)
        try:
            assert await again.get_next_span_sequence_id(*ids) == 9
        finally:
            await again.close()

    @requires("durable")
    async def test_a_call_repeated_after_a_restart_happens_once(self, store: LightningStore):
        batch = [EnqueueRolloutRequest(input=n) for n in range(4)]

        async def begin_the_last(store: LightningStore) -> AttemptedRollout:
            last = list(await store.query_rollouts(limit=4))[-1]
            return await store.start_attempt(last.rollout_id, "w")

        calls: list[Callable[[LightningStore], Awaitable[Any]]] = [
            lambda store: store.enqueue_many_rollouts(batch),
            lambda store: store.dequeue_rollout("w"),
            lambda store: store.dequeue_many_rollouts(limit=2),
            begin_the_last,
            lambda store: store.start_rollout("x", worker_id="v"),
            lambda store: store.add_resources(named_resources()),
            lambda store: store.update_resources("mine", named_resources()),
        ]

        async def make(store: LightningStore) -> list[Any]:
            made = [await _with_key(f"key-{n}", store, call) for n, call in enumerate(calls)]
            return [_named(result) for result in made]

        first = await make(store)
        written = await asyncio.gather(
            *(
                _with_key("same", store, lambda store: store.update_resources("other", {}))
                for _ in range(8)
            )
        )
        assert {update.version for update in written} == {1}
        await store.close()
        again = await self.reopen(store)
        try:
            assert await make(again) == first
            statistics = await again.statistics()
        finally:
            await again.close()
        assert (statistics.get("total_rollouts"), statistics.get("total_attempts")) == (5, 5)

    @requires("durable", "processes")
    async def test_a_killed_process_loses_no_call_that_returned(self, store: LightningStore):
        connect = pickle.dumps(self.connection(store))
        context = multiprocessing.get_context("spawn")
        for calls in (1, 25, 60):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_write_until_killed, args=(connect, theirs), daemon=True
            )
            process.start()
            theirs.close()
            acknowledged: list[tuple[str, str]] = []
            try:
                while len(acknowledged) < calls:
                    said = await asyncio.to_thread(ours.poll, KILLED_WITHIN)
                    assert said, f"a process has made no call in {KILLED_WITHIN:g} s"
                    acknowledged.append(ours.recv())
            finally:
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


async def _records(store: LightningStore) -> dict[str, Any]:
    """Return all that a store holds."""
    rollouts = list(await store.query_rollouts())
    ids = [rollout.rollout_id for rollout in rollouts]
    return {
        "rollouts": rollouts,
        "attempts": [list(await store.query_attempts(rollout_id)) for rollout_id in ids],
        "spans": [list(await store.query_spans(rollout_id)) for rollout_id in ids],
        "workers": list(await store.query_workers()),
        "resources": list(await store.query_resources()),
        "latest resources": await store.get_latest_resources(),
    }


def _named(result: Any) -> Any:
    """Return the names of what a call made, which stay when others change it."""
    if isinstance(result, AttemptedRollout):
        return result.rollout_id, result.attempt.attempt_id
    if isinstance(result, Rollout):
        return result.rollout_id
    if isinstance(result, ResourcesUpdate):
        return result.resources_id, result.version
    if result is None:  # a claim that found no work
        return None
    return [_named(one) for one in result]


async def _with_key(
    key: str, store: LightningStore, call: Callable[[LightningStore], Awaitable[Any]]
) -> Any:
    """Make a call under an idempotency key."""
    reset = current_request_key.set(key)
    try:
        return await call(store)
    finally:
        current_request_key.reset(reset)


def _write_until_killed(connect: bytes, told: Connection) -> None:
    async def write() -> None:
        store: LightningStore = pickle.loads(connect)()
        while True:
            started = await store.start_rollout("x")
            span = span_of(started)
            await store.add_span(span)
            told.send((started.rollout_id, span.span_id))

    asyncio.run(write())
