"""The end of attempts whose workers are gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agl_core.execution import ClaimTracker
from agl_core.store import InterceptedStore, StoreCall
from agl_store_memory import InMemoryLightningStore


async def test_many_attempts_are_written_at_once_and_one_error_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, claims = InMemoryLightningStore(), ClaimTracker()
    for number in range(10):
        await store.enqueue_rollout(number)
    claimed = await store.dequeue_many_rollouts(limit=10, worker_id="w")
    claims.note_claims(claimed, "w")
    broken = claimed[3].rollout_id
    all_asked = asyncio.Barrier(10)

    async def perform(call: StoreCall) -> Any:
        if call.name == "query_attempts":
            await all_asked.wait()  # one after the other, none would get past
            if call.argument("rollout_id") == broken:
                raise ConnectionError("the store is away")
        return await call.on(store)

    with caplog.at_level(logging.ERROR):
        await claims.fail_open(perform, "the worker died", "w")
    assert "Attempts of this run may be left open" in caplog.text
    assert claims.has_claims("w"), "the one that could not be written"
    left = await store.query_rollouts(status_in=["preparing"])
    assert [rollout.rollout_id for rollout in left] == [broken]


async def test_a_returned_claim_is_not_waited_for() -> None:
    claims = ClaimTracker()
    store = InterceptedStore(InMemoryLightningStore(), innermost=[claims])
    await store.enqueue_rollout(1)
    claimed = await store.dequeue_rollout("w")
    assert claimed is not None
    assert claims.has_claims("w")
    await store.return_claim(claimed.rollout_id, claimed.attempt.attempt_id)
    assert not claims.has_claims()
