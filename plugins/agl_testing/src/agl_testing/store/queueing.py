"""Enqueueing and claiming."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError
from agl_core.status import infrastructure_failures
from agl_core.store import LightningStore
from agl_core.types import (
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    ReplayConfig,
    RolloutConfig,
)
from agl_testing.samples import span_of
from agl_testing.store.base import StoreTests, claim, on_attempt, statuses

__all__ = ["ClaimTests", "QueueTests"]

VALUES: list[Any] = [None, "", 0, 0.0, 1.5, True, False, [], {}, [None], [""], "x" * 100_000]
VALUES += [{"nested": [{"a": None}, "\u2603\x00"]}]
"""Tasks of every type of JSON, the empty ones too."""


class QueueTests(StoreTests):
    """Creating work."""

    async def test_an_enqueued_rollout_is_queuing_and_has_no_attempt(self, store: LightningStore):
        before = await store.now()
        rollout = await store.enqueue_rollout({"q": 1}, mode="val", metadata={"k": "v"})
        assert rollout.status == "queuing"
        assert rollout.input == {"q": 1}
        assert rollout.mode == "val"
        assert rollout.metadata == {"k": "v"}
        assert rollout.end_time is None
        assert before - 1 <= rollout.start_time <= await store.now() + 1
        assert await store.get_latest_attempt(rollout.rollout_id) is None
        assert await store.get_rollout_by_id(rollout.rollout_id) == rollout

    async def test_absent_config_and_metadata_get_their_defaults(self, store: LightningStore):
        rollout = await store.enqueue_rollout("x")
        assert rollout.config == RolloutConfig()
        assert rollout.metadata == {}
        assert rollout.mode is None
        assert rollout.resources_id is None

    async def test_a_config_is_kept_whole(self, store: LightningStore):
        config = RolloutConfig(
            timeout_seconds=1.5,
            unresponsive_seconds=0.5,
            max_attempts=3,
            infrastructure_retries=0,
            retry_condition=["timeout", "failed"],
            replay=ReplayConfig(rollout_id="ro-1", attempt_id="at-1", until=2, then="live"),
        )
        default = RolloutConfig()
        for field in RolloutConfig.model_fields:  # a value that a forgetful store cannot guess
            assert getattr(config, field) != getattr(default, field), field
        rollout = await store.enqueue_rollout("x", config=config)
        read = await store.get_rollout_by_id(rollout.rollout_id)
        assert read is not None
        assert read.config == config
        (claimed,) = await store.dequeue_many_rollouts(limit=1)
        assert claimed.config.replay == config.replay

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
    async def test_any_json_value_can_be_a_task(self, store: LightningStore, value: object):
        claimed = await claim(store, value)
        assert claimed.input == value
        assert type(claimed.input) is type(value)

    async def test_a_batch_takes_any_json_value(self, store: LightningStore):
        made = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=v) for v in VALUES])
        claimed = await store.dequeue_many_rollouts(limit=len(VALUES))
        for rollouts in (made, claimed, await store.query_rollouts()):
            found = [rollout.input for rollout in rollouts]
            assert found == VALUES
            assert list(map(type, found)) == list(map(type, VALUES))

    async def test_a_batch_keeps_its_order(self, store: LightningStore):
        requests = [EnqueueRolloutRequest(input=i, metadata={"i": i}) for i in range(20)]
        rollouts = await store.enqueue_many_rollouts(requests)
        assert [rollout.input for rollout in rollouts] == list(range(20))
        assert [rollout.metadata for rollout in rollouts] == [{"i": i} for i in range(20)]
        claimed = await store.dequeue_many_rollouts(limit=20)
        assert [rollout.input for rollout in claimed] == list(range(20))

    async def test_an_empty_batch_enqueues_nothing(self, store: LightningStore):
        assert list(await store.enqueue_many_rollouts([])) == []
        assert await store.dequeue_rollout() is None

    async def test_rollout_ids_do_not_repeat(self, store: LightningStore):
        requests = [EnqueueRolloutRequest(input=i) for i in range(100)]
        rollouts = await store.enqueue_many_rollouts(requests)
        assert len({rollout.rollout_id for rollout in rollouts}) == 100

    async def test_the_latest_resources_are_inherited_when_work_is_created(
        self, store: LightningStore
    ):
        prompt: NamedResources = {"p": PromptTemplate(template="1", engine="f-string")}
        first = await store.add_resources(prompt)
        early = await store.enqueue_rollout("early")
        second = await store.update_resources("mine", prompt)
        late = await store.enqueue_rollout("late")
        explicit = await store.enqueue_rollout("explicit", resources_id=first.resources_id)
        started = await store.start_rollout("started")
        assert early.resources_id == first.resources_id
        assert late.resources_id == second.resources_id == "mine"
        assert explicit.resources_id == first.resources_id
        assert started.resources_id == "mine"

    async def test_start_rollout_bypasses_the_queue(self, store: LightningStore):
        queued = await store.enqueue_rollout("queued")
        started = await store.start_rollout("now", mode="train", worker_id="w")
        assert started.status == "preparing"
        assert started.attempt.status == "preparing"
        assert started.attempt.sequence_id == 1
        assert started.attempt.worker_id == "w"
        assert started.attempt.start_time == started.start_time
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.rollout_id == queued.rollout_id


class ClaimTests(StoreTests):
    """Claiming work."""

    async def test_an_empty_queue_gives_none_at_once(self, store: LightningStore):
        await store.statistics()  # the first call connects
        start = time.monotonic()
        assert await store.dequeue_rollout() is None
        assert list(await store.dequeue_many_rollouts(limit=5)) == []
        assert time.monotonic() - start < 1

    async def test_claims_are_first_in_first_out(self, store: LightningStore):
        ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(10)]
        claimed = [await store.dequeue_rollout() for _ in range(10)]
        assert [rollout.rollout_id for rollout in claimed if rollout] == ids
        assert await store.dequeue_rollout() is None

    async def test_a_claim_starts_an_attempt(self, store: LightningStore):
        claimed = await claim(store, worker_id="w")
        assert claimed.status == "preparing"
        assert claimed.attempt.rollout_id == claimed.rollout_id
        assert claimed.attempt.status == "preparing"
        assert claimed.attempt.sequence_id == 1
        assert claimed.attempt.worker_id == "w"
        assert claimed.attempt.end_time is None
        assert await store.get_rollout_by_id(claimed.rollout_id) == claimed
        assert await store.get_latest_attempt(claimed.rollout_id) == claimed.attempt

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_a_limit_of_nothing_claims_nothing(self, store: LightningStore, limit: int):
        await store.enqueue_rollout("x")
        assert list(await store.dequeue_many_rollouts(limit=limit)) == []
        assert await store.dequeue_rollout() is not None

    async def test_a_batch_claims_up_to_its_limit(self, store: LightningStore):
        for i in range(5):
            await store.enqueue_rollout(i)
        first = await store.dequeue_many_rollouts(limit=3, worker_id="w")
        second = await store.dequeue_many_rollouts(limit=3, worker_id="w")
        assert [rollout.input for rollout in first] == [0, 1, 2]
        assert [rollout.input for rollout in second] == [3, 4]
        assert {rollout.attempt.worker_id for rollout in [*first, *second]} == {"w"}

    @pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "running"])
    async def test_a_rollout_that_left_the_queue_is_not_claimed(
        self, store: LightningStore, status: str
    ):
        gone = await store.enqueue_rollout("gone")
        kept = await store.enqueue_rollout("kept")
        await store.update_rollout(gone.rollout_id, status=status)  # pyright: ignore[reportArgumentType]
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.rollout_id == kept.rollout_id
        assert await store.dequeue_rollout() is None
        assert (await statuses(store, gone.rollout_id))[0] == status

    async def test_a_requeued_rollout_goes_to_the_tail(self, store: LightningStore):
        first = await claim(store, "first", max_attempts=2, retry_condition=["failed"])
        await store.enqueue_rollout("second")
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
        claimed = await store.dequeue_many_rollouts(limit=2)
        assert [rollout.input for rollout in claimed] == ["second", "first"]
        assert claimed[1].attempt.sequence_id == 2

    async def test_a_rollout_requeued_twice_stands_in_the_queue_once(self, store: LightningStore):
        rollout = await store.enqueue_rollout("x")
        await store.update_rollout(rollout.rollout_id, status="requeuing")
        await store.update_rollout(rollout.rollout_id, status="queuing")
        assert len(await store.dequeue_many_rollouts(limit=5)) == 1

    async def test_leaving_and_re_entering_the_queue_moves_to_the_tail(self, store: LightningStore):
        moved = await store.enqueue_rollout("moved")
        await store.enqueue_rollout("second")
        await store.update_rollout(moved.rollout_id, status="running")
        await store.update_rollout(moved.rollout_id, status="requeuing")
        claimed = await store.dequeue_many_rollouts(limit=2)
        assert [rollout.input for rollout in claimed] == ["second", "moved"]

    async def test_start_attempt_takes_the_rollout_out_of_the_queue(self, store: LightningStore):
        rollout = await store.enqueue_rollout("x")
        started = await store.start_attempt(rollout.rollout_id, worker_id="w")
        assert started.status == "preparing"
        assert started.attempt.sequence_id == 1
        assert await store.dequeue_rollout() is None

    async def test_start_attempt_ignores_limits_and_ends(self, store: LightningStore):
        claimed = await claim(store, max_attempts=1)
        done = await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
        )
        again = await store.start_attempt(claimed.rollout_id)
        assert done.status == "succeeded"
        assert again.attempt.sequence_id == 2
        assert again.status == "preparing"
        assert again.end_time is None

    # -- waiting ---------------------------------------------------------------------------------

    async def test_a_waiting_claim_gets_work_as_it_arrives(self, store: LightningStore):
        waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=20))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        start = time.monotonic()
        rollout = await store.enqueue_rollout("x")
        claimed = await asyncio.wait_for(waiting, 10)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        assert time.monotonic() - start < 1

    async def test_a_waiting_claim_gets_requeued_work(self, store: LightningStore):
        first = await claim(store, max_attempts=2, retry_condition=["failed"])
        waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=20))
        await asyncio.sleep(0.05)
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
        claimed = await asyncio.wait_for(waiting, 10)
        assert claimed is not None
        assert claimed.rollout_id == first.rollout_id
        assert claimed.attempt.sequence_id == 2

    async def test_a_waiting_claim_ends_at_its_time(self, store: LightningStore):
        start = time.monotonic()
        assert await store.dequeue_rollout("w", wait=0.2) is None
        assert 0.15 < time.monotonic() - start < 5

    async def test_each_waiting_claim_gets_work_of_its_own(self, store: LightningStore):
        waiting = [asyncio.ensure_future(store.dequeue_rollout(f"w{i}", wait=20)) for i in range(5)]
        await asyncio.sleep(0.1)
        ids = {(await store.enqueue_rollout(i)).rollout_id for i in range(5)}
        claimed = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert {rollout.rollout_id for rollout in claimed if rollout} == ids

    async def test_a_cancelled_waiter_loses_no_work(self, store: LightningStore):
        for _ in range(20):
            waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=20))
            await asyncio.sleep(0)
            rollout = await store.enqueue_rollout("x")
            waiting.cancel()
            result = (await asyncio.gather(waiting, return_exceptions=True))[0]
            if isinstance(result, BaseException):
                result = await store.dequeue_rollout("w", wait=5)
            assert result is not None, "the claim of a cancelled waiter was lost"
            assert result.rollout_id == rollout.rollout_id

    @pytest.mark.parametrize("seconds", [None, 0.001, 0.003, 0.01, 0.02])
    async def test_a_claim_that_is_cancelled_in_flight_loses_no_work(
        self, store: LightningStore, seconds: float | None
    ):
        # Without a time it is cancelled after so many turns of the event loop.
        for turns in range(7) if seconds is None else range(2):
            rollout = await store.enqueue_rollout("x")
            claiming = asyncio.ensure_future(store.dequeue_rollout("w"))
            for _ in range(turns):
                await asyncio.sleep(seconds or 0)
            claiming.cancel()
            result = (await asyncio.gather(claiming, return_exceptions=True))[0]
            if isinstance(result, BaseException):
                result = await store.dequeue_rollout("w", wait=5)
            assert result is not None, "a claim that was cancelled in flight was lost"
            assert result.rollout_id == rollout.rollout_id

    async def test_a_returned_claim_is_tried_again_whatever_its_config_says(
        self, store: LightningStore
    ):
        first = await claim(store, max_attempts=1)
        ids = (first.rollout_id, first.attempt.attempt_id)
        waiting = asyncio.ensure_future(store.dequeue_rollout("w2", wait=20))
        ended = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[ids[0]], timeout=20))
        await asyncio.sleep(0.05)
        await store.return_claim(*ids)
        again = await asyncio.wait_for(waiting, 10)
        assert again is not None
        assert again.rollout_id == first.rollout_id
        assert again.attempt.sequence_id == 2
        assert await statuses(store, ids[0]) == ("preparing", ["unresponsive", "preparing"])
        assert not ended.done()  # the rollout never appeared as failed
        await store.return_claim(*ids)  # no effect on an ended attempt
        assert await statuses(store, ids[0]) == ("preparing", ["unresponsive", "preparing"])
        await store.update_attempt(ids[0], "latest", status="succeeded")
        assert [rollout.status for rollout in await asyncio.wait_for(ended, 10)] == ["succeeded"]

    async def test_a_returned_claim_uses_up_no_attempt(self, store: LightningStore):
        first = await claim(store, max_attempts=2, retry_condition=["failed"])
        for number in (2, 3):
            await store.return_claim(first.rollout_id, first.attempt.attempt_id)
            again = await store.dequeue_rollout()
            assert again is not None
            assert again.attempt.sequence_id == number
            first = again
        attempts = await store.query_attempts(first.rollout_id)
        assert [infrastructure_failures(attempt) for attempt in attempts] == [1, 2, 0]

    async def test_requeuing_and_another_attempt_free_the_worker_before(
        self, store: LightningStore
    ):
        await store.enqueue_rollout("x")
        claimed = await store.dequeue_rollout("w1")
        assert claimed is not None
        await store.update_rollout(claimed.rollout_id, status="requeuing")
        assert await on_attempt(store, "w1") is None
        second = await store.start_attempt(claimed.rollout_id, worker_id="w1")
        assert await on_attempt(store, "w1") == second.attempt.attempt_id
        third = await store.start_attempt(claimed.rollout_id, worker_id="w2")
        assert await on_attempt(store, "w1") is None
        ids = (claimed.rollout_id, third.attempt.attempt_id)
        await store.update_attempt(*ids, worker_id="w3")
        assert await on_attempt(store, "w2") is None
        assert await on_attempt(store, "w3") == third.attempt.attempt_id

    async def test_a_returned_claim_frees_its_worker(self, store: LightningStore):
        await store.enqueue_rollout("x")
        claimed = await store.dequeue_rollout("w")
        assert claimed is not None
        await store.return_claim(claimed.rollout_id, claimed.attempt.attempt_id)
        worker = await store.get_worker_by_id("w")
        assert worker is not None
        assert (worker.status, worker.current_attempt_id) == ("idle", None)

    async def test_a_claim_that_somebody_acted_on_is_not_returned(self, store: LightningStore):
        claimed = await claim(store)
        await store.add_span(span_of(claimed))
        await store.return_claim(claimed.rollout_id, claimed.attempt.attempt_id)
        assert await statuses(store, claimed.rollout_id) == ("running", ["running"])
        with pytest.raises(RolloutNotFoundError):
            await store.return_claim("ro-none", claimed.attempt.attempt_id)
        with pytest.raises(AttemptNotFoundError):
            await store.return_claim(claimed.rollout_id, "at-none")
