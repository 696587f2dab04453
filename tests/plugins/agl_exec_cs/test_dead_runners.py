"""Workers that die while a server elsewhere keeps the store."""

from __future__ import annotations

import asyncio

from agl_exec_cs import DeadRunners, StoreAccess
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore


async def test_deaths_without_a_finished_attempt_are_told_from_others() -> None:
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0)
    await server.start()
    dead = DeadRunners(StoreAccess.over_http(server.endpoint, 0.0))

    async def work(*ends: bool) -> bool:
        """Claim rollouts, of which some are finished, and die; return whether that is progress."""
        await store.dequeue_rollout("w")  # an empty queue
        for finished in ends:
            await store.enqueue_rollout("task")
            claimed = await store.dequeue_rollout("w")
            assert claimed is not None
            ids = claimed.rollout_id, claimed.attempt.attempt_id
            if finished:
                await store.update_attempt(*ids, status="succeeded")
        return await asyncio.to_thread(dead.release, "w", "its runner died")

    try:
        assert not await asyncio.to_thread(dead.release, "nobody", "its runner died")
        assert not await work(False)
        assert not await work(False)
        assert not await work()
        assert await work(True, False)
        assert not await work(False)
        assert await work(True)
    finally:
        await server.stop()
    statuses = [each.status for each in await store.query_rollouts()]
    assert statuses == ["failed"] * 2 + ["succeeded"] + ["failed"] * 2 + ["succeeded"]
