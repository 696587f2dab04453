"""A runner's claim is cancelled while it waits for work, at the moment at which work arrives."""

from __future__ import annotations

import asyncio

import pytest

from agl_core.errors import RunEndedError
from agl_core.execution import ThreadingEvent
from agl_exec_cs import RunnerClient, RunStore
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("turns", range(8))
async def test_a_claim_that_is_cancelled_as_work_arrives_is_not_lost(
    turns: int, several: bool
) -> None:
    store = RunStore(InMemoryLightningStore())
    name = "dequeue_many_rollouts" if several else "dequeue_rollout"
    waiting = asyncio.ensure_future(getattr(store, name)(worker_id="w", wait=20))
    for _ in range(10):
        await asyncio.sleep(0)
    rollout = await store.enqueue_rollout("task")
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    (claimed,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(claimed, asyncio.CancelledError) == (await status_of(store) == "queuing")
    if isinstance(claimed, BaseException):
        claimed = await store.dequeue_rollout("w", wait=5)
    first = claimed[0] if isinstance(claimed, list) else claimed
    assert first is not None
    assert first.rollout_id == rollout.rollout_id


async def status_of(store: RunStore) -> str:
    (rollout,) = await store.query_rollouts()
    return rollout.status


async def test_a_runner_that_stops_as_work_arrives_leaves_it_in_the_queue() -> None:
    store = RunStore(InMemoryLightningStore())
    server = LightningStoreServer(store, port=0)
    await server.start()
    client = RunnerClient(server.endpoint, ThreadingEvent(), 1)
    try:
        for _ in range(10):
            waiting = asyncio.ensure_future(client.dequeue_rollout("w", wait=20))
            await asyncio.sleep(0.02)  # until the claim waits in the server
            waiting.cancel()
            rollout = await store.enqueue_rollout("task")
            (claimed,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(claimed, BaseException):
                claimed = await store.dequeue_rollout("other", wait=5)
            assert claimed is not None, "the claim was lost"
            assert claimed.rollout_id == rollout.rollout_id
            ids = claimed.rollout_id, claimed.attempt.attempt_id
            await store.update_attempt(*ids, status="succeeded")
    finally:
        await client.close()
        await server.stop()


async def test_a_claim_that_waits_for_nothing_is_cancelled_or_refused() -> None:
    store = RunStore(InMemoryLightningStore())
    cancelled, refused = (
        asyncio.ensure_future(store.dequeue_rollout(name, wait=20)) for name in ("a", "b")
    )
    await asyncio.sleep(0.02)
    cancelled.cancel()
    store.end_run()
    errors = await asyncio.gather(cancelled, refused, return_exceptions=True)
    assert [type(error) for error in errors] == [asyncio.CancelledError, RunEndedError]
