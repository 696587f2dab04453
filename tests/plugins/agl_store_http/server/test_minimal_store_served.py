"""A store that implements only the methods of version 0.3, behind the store server."""

from __future__ import annotations

import asyncio

from agl_core.types import Span
from agl_store_http import LightningStoreClient, LightningStoreServer
from tests.core.store.minimal_store import MinimalStore


async def test_a_client_works_on_it():
    server = LightningStoreServer(MinimalStore(), port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    try:
        waiting = asyncio.ensure_future(client.dequeue_rollout("w", wait=30))
        await asyncio.sleep(0.05)
        made = await server.enqueue_rollout("task")
        claimed = await asyncio.wait_for(waiting, 10)
        assert claimed is not None
        assert claimed.rollout_id == made.rollout_id
        ids = (claimed.rollout_id, claimed.attempt.attempt_id)
        number = await client.get_next_span_sequence_id(*ids)
        span = Span.from_attributes(
            attributes={"k": "v"}, rollout_id=ids[0], attempt_id=ids[1], sequence_id=number
        )
        assert await client.add_many_spans([span]) == [span]
        assert await client.add_span(span) is None
        page = await client.query_spans(ids[0])
        assert (list(page), page.total) == ([span], 1)
        assert (await client.query_rollouts(limit=0)).total == 1
        await client.update_attempt(*ids, status="succeeded")
        done = await client.wait_for_rollouts(rollout_ids=[ids[0]], timeout=10)
        assert [item.status for item in done] == ["succeeded"]
    finally:
        await client.close()
        await server.close()
