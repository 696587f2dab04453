"""A small load test: prints figures and checks results."""

from __future__ import annotations

import asyncio
import time

import pytest

from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest
from agl_testing.samples import reward_span, span_of
from agl_testing.store.base import StoreTests

__all__ = ["LoadTests"]

ROLLOUTS = 300
"""A second or two of a slow store."""
SPANS = 4
WORKERS = 16


class LoadTests(StoreTests):
    """Sixteen workers go through three hundred rollouts."""

    async def test_load(self, store: LightningStore, capsys: pytest.CaptureFixture[str]):
        start = time.perf_counter()
        requests = [EnqueueRolloutRequest(input=i) for i in range(ROLLOUTS)]
        rollouts = await store.enqueue_many_rollouts(requests)
        enqueued = time.perf_counter()

        async def work(worker: str) -> None:
            while rollout := await store.dequeue_rollout(worker):
                ids = [(rollout.rollout_id, rollout.attempt.attempt_id)] * (SPANS + 1)
                numbers = await store.get_many_span_sequence_ids(ids)
                spans = [span_of(rollout, n, attributes={"k": "v" * 100}) for n in numbers[:-1]]
                await store.add_many_spans([*spans, reward_span(rollout, 0.5, numbers[-1])])
                await store.update_attempt(
                    rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded"
                )
                await store.update_worker(worker, {"cpu": 1})

        await asyncio.gather(*(work(f"w{i}") for i in range(WORKERS)))
        worked = time.perf_counter()
        ids = [rollout.rollout_id for rollout in rollouts]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
        assert [rollout.status for rollout in done] == ["succeeded"] * ROLLOUTS
        for rollout_id in ids:
            assert len(await store.query_spans(rollout_id, "latest")) == SPANS + 1
        read = time.perf_counter()
        with capsys.disabled():
            print(
                f"\n{type(self).__name__}: enqueue {ROLLOUTS / (enqueued - start):,.0f}/s, "
                f"rollouts of {SPANS + 1} spans {ROLLOUTS / (worked - enqueued):,.0f}/s, "
                f"queries {ROLLOUTS / (read - worked):,.0f}/s"
            )
