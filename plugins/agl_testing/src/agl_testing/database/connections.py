"""Connections that break in the middle of a call."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from agl_core.store import LightningStore, encode_span
from agl_core.types import EnqueueRolloutRequest
from agl_testing.database.base import DatabaseFaultTests, DatabaseServer, opened
from agl_testing.relay import FaultyRelay
from agl_testing.samples import named_resources, span_of

__all__ = ["ConnectionFaultTests"]

T = TypeVar("T")
ROUNDS = 4
"""Each over a connection that the last round broke."""
SPANS = 5


@asynccontextmanager
async def relayed(database: DatabaseServer) -> AsyncIterator[tuple[FaultyRelay, LightningStore]]:
    """Open a store whose connections go through a relay."""
    async with (
        FaultyRelay(database.port) as relay,
        opened(database.connect(port=relay.port)) as store,
    ):
        yield relay, store


class ConnectionFaultTests(DatabaseFaultTests):
    """A call whose connection breaks is made again, and its effects happen once."""

    async def test_calls_survive_a_broken_connection_and_happen_once(
        self, database: DatabaseServer
    ):
        randomness = random.Random(7)
        async with relayed(database) as (relay, store):
            await store.enqueue_rollout("first")  # the tables are made
            await store.dequeue_rollout()

            async def cut_somewhere(call: Awaitable[T]) -> T:
                # Connections of background tasks take some of the cuts, the call takes the rest.
                randomness.choice([relay.cut_replies, relay.cut_requests])(
                    after_bytes=randomness.choice([0, 0, 0, 100, 300, 900])
                )
                return await call

            worker = "w"
            for round_number in range(1, ROUNDS + 1):
                batch = await cut_somewhere(
                    store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
                )
                claims = [await cut_somewhere(store.dequeue_rollout(worker)) for _ in batch]
                claimed = [claim for claim in claims if claim is not None]
                # In any order: the server holds a cut claim's row until it notices the cut.
                assert {r.rollout_id for r in claimed} == {r.rollout_id for r in batch}
                assert len(claimed) == len(batch)
                assert {r.attempt.sequence_id for r in claimed} == {1}
                first = claimed[0]
                spans = [encode_span(span_of(first, n)) for n in range(1, SPANS + 1)]
                stored = await cut_somewhere(store.add_encoded_spans(spans))
                assert [id(span) for span in stored] == [id(span) for span in spans]
                assert len(await store.query_spans(first.rollout_id)) == SPANS
                ids = (first.rollout_id, first.attempt.attempt_id)
                done = await cut_somewhere(store.update_attempt(*ids, status="succeeded"))
                assert done.status == "succeeded"
                again = await cut_somewhere(store.start_attempt(ids[0], worker_id=worker))
                assert again.attempt.sequence_id == 2
                busy = await store.get_worker_by_id(worker)
                assert busy is not None
                assert busy.current_attempt_id == again.attempt.attempt_id
                snapshot = await cut_somewhere(store.add_resources(named_resources()))
                assert snapshot.version == 1
                statistics = await store.statistics()
                assert statistics.get("total_rollouts") == 1 + 3 * round_number
                assert statistics.get("total_attempts") == 1 + 4 * round_number
                assert statistics.get("total_spans") == SPANS * round_number
                assert statistics.get("total_resources") == round_number
            assert relay.connections > 10

    async def test_a_broken_connection_does_not_return_duplicates_as_stored(
        self, database: DatabaseServer
    ):
        async with relayed(database) as (relay, store):
            claimed = await store.start_rollout("x")
            old = span_of(claimed, 1)
            assert await store.add_span(old) is not None
            for number in range(2, 12):
                relay.cut_replies(after_bytes=0)
                new = span_of(claimed, number)
                assert list(await store.add_many_spans([old, new, new])) == [new]
            assert len(await store.query_spans(claimed.rollout_id)) == 11
