"""A store that implements only the methods of version 0.3 works everywhere."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agl_algorithm_kit import run_batch
from agl_core.agent import rollout
from agl_core.algorithm import FastAlgorithm
from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError
from agl_core.store import LightningStore, encode_span
from agl_core.trainer import Trainer
from agl_core.types import AttemptedRollout, PaginatedResult, PromptTemplate, Span
from agl_store_kit import LightningStoreThreaded

from .minimal_store import MinimalStore


@pytest.fixture
def store() -> MinimalStore:
    return MinimalStore()


def span_of(started: AttemptedRollout, number: int = 1) -> Span:
    return Span.from_attributes(
        attributes={"k": "v"},
        rollout_id=started.rollout_id,
        attempt_id=started.attempt.attempt_id,
        sequence_id=number,
        span_id=f"{number:016x}",
    )


@rollout
async def parrot(task: str, prompt_template: PromptTemplate) -> float:
    return float(len(prompt_template.format(task=task)))


class Scores(FastAlgorithm):
    rewards: list[float]

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        batch = await run_batch(
            self.get_store(), train_dataset, resources=self.get_initial_resources(), timeout=60
        )
        self.rewards = batch.rewards()


@pytest.mark.parametrize("n_runners", [1, 2])
def test_the_trainer_runs_on_it(store: MinimalStore, n_runners: int):
    prompt = PromptTemplate(template="{task}!", engine="f-string")
    scores = Scores()
    run = Trainer(
        store=store,
        algorithm=scores,
        n_runners=n_runners,
        initial_resources={"prompt": prompt},
        strategy={"type": "shm", "graceful_delay": 0.2, "join_timeout": 5.0},
    )
    run.fit(parrot, ["a", "bb", "ccc"])
    assert scores.rewards == [2.0, 3.0, 4.0]
    assert [item.status for item in store.rollouts.values()] == ["succeeded"] * 3
    assert all(attempts[-1].status == "succeeded" for attempts in store.attempts.values())


async def test_a_claim_waits_for_work(store: LightningStore):
    for dequeue in (store.dequeue_rollout, store.dequeue_many_rollouts):
        waiting = asyncio.ensure_future(dequeue(worker_id="w", wait=30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        made = await store.enqueue_rollout("x")
        claimed: Any = await asyncio.wait_for(waiting, 5)
        one = claimed[0] if isinstance(claimed, list) else claimed
        assert (one.rollout_id, one.attempt.worker_id) == (made.rollout_id, "w")
    start = time.monotonic()
    assert await store.dequeue_rollout(wait=0.05) is None
    assert time.monotonic() - start >= 0.05


async def test_queries_return_pages(store: LightningStore):
    for number in range(5):
        await store.enqueue_rollout(number)
    page = await store.query_rollouts(limit=2, offset=1)
    assert isinstance(page, PaginatedResult)
    assert [item.input for item in page] == [1, 2]
    assert (page.limit, page.offset, page.total) == (2, 1, 5)
    assert (await store.query_rollouts(limit=0)).total == 5


async def test_spans_are_read_and_written_as_bytes(store: MinimalStore):
    started = await store.start_rollout("x")
    encoded = [encode_span(span_of(started, number)) for number in (1, 2, 2)]
    assert await store.add_encoded_spans(encoded) == encoded[:2]
    assert await store.add_encoded_spans(encoded[:1]) == []
    page = await store.query_encoded_spans(started.rollout_id, "latest", limit=1)
    assert (list(page), page.total) == (encoded[:1], 2)


async def test_a_claim_is_returned(store: MinimalStore):
    made = await store.enqueue_rollout("x")
    claimed = await store.dequeue_rollout("w")
    assert claimed is not None
    await store.return_claim(made.rollout_id, claimed.attempt.attempt_id)
    again = await store.dequeue_rollout("w")
    assert again is not None
    assert (again.rollout_id, again.attempt.sequence_id) == (made.rollout_id, 2)
    await store.add_span(span_of(again))
    await store.return_claim(made.rollout_id, again.attempt.attempt_id)
    assert await store.dequeue_rollout() is None, "somebody has acted on the attempt"
    with pytest.raises(RolloutNotFoundError):
        await store.return_claim("ro-nothing", "at-0")
    with pytest.raises(AttemptNotFoundError):
        await store.return_claim(made.rollout_id, "at-nothing")


async def test_defaults_of_missing_methods(store: MinimalStore):
    assert await store.run_watchdog() == 0
    assert store.draw_span_sequence_id("ro", "at") is None
    assert store.attempt_token("ro", "at") is None
    with pytest.raises(NotImplementedError, match="has no events"):
        store.events()
    await store.close()


async def test_threads_share_it_behind_the_threaded_store(store: MinimalStore):
    shared = LightningStoreThreaded(store)
    waiting = asyncio.ensure_future(shared.dequeue_rollout("w", wait=30))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(lambda: asyncio.run(shared.enqueue_rollout("x")))
    claimed = await asyncio.wait_for(waiting, 5)
    assert claimed is not None
    assert claimed.input == "x"


class FailsLate(MinimalStore):
    """Its third claim fails; batches of claims are the contract's default."""

    dequeue_many_rollouts: Any = LightningStore.dequeue_many_rollouts

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.asked = 0

    async def dequeue_rollout(self, worker_id: str | None = None) -> Any:
        self.asked += 1
        if self.asked == 3:
            raise self.error
        return await super().dequeue_rollout(worker_id)


async def test_a_batch_of_claims_keeps_those_before_a_failure(caplog: Any):
    store = FailsLate(OSError("gone"))
    for number in range(4):
        await store.enqueue_rollout(number)
    claimed = await store.dequeue_many_rollouts(limit=4)
    assert [claim.input for claim in claimed] == [0, 1]
    assert "Claimed 2 of 4 rollouts: gone" in caplog.text
    store.asked = 2
    with pytest.raises(OSError, match="gone"):
        await store.dequeue_many_rollouts(limit=4)


async def test_a_cancelled_batch_of_claims_is_returned(caplog: Any, monkeypatch: Any):
    store = FailsLate(asyncio.CancelledError())
    for number in range(2):
        await store.enqueue_rollout(number)
    with pytest.raises(asyncio.CancelledError):
        await store.dequeue_many_rollouts(limit=4)
    assert len(await store.query_rollouts(status_in=["requeuing"])) == 2

    async def lost(*ids: str) -> None:
        raise OSError("gone")

    monkeypatch.setattr(store, "return_claim", lost)
    store.asked = 0
    with pytest.raises(asyncio.CancelledError):
        await store.dequeue_many_rollouts(limit=4)
    assert caplog.text.count("is lost, cancel or requeue it: gone") == 2
