"""Updates of rollouts, attempts and workers, and their effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agl_core.errors import AttemptNotFoundError, InvalidArgumentError, RolloutNotFoundError
from agl_core.store import LightningStore
from agl_core.types import RolloutConfig
from agl_testing.samples import span_of
from agl_testing.store.base import StoreTests, claim, statuses
from agl_testing.suite import requires

__all__ = ["AttemptTests", "RolloutUpdateTests", "WorkerTests"]


class RolloutUpdateTests(StoreTests):
    """Effects of update_rollout."""

    async def test_only_the_fields_given_change(self, store: LightningStore):
        rollout = await store.enqueue_rollout({"q": 1}, mode="train", metadata={"a": 1})
        changed = await store.update_rollout(rollout.rollout_id, metadata={"b": 2})
        assert changed == rollout.model_copy(update={"metadata": {"b": 2}})
        assert await store.get_rollout_by_id(rollout.rollout_id) == changed

    async def test_none_overwrites_what_may_be_none(self, store: LightningStore):
        rollout = await store.enqueue_rollout(
            {"q": 1}, mode="train", resources_id="r", metadata={"a": 1}
        )
        changed = await store.update_rollout(
            rollout.rollout_id, input=None, mode=None, resources_id=None, metadata=None
        )
        assert (changed.input, changed.mode, changed.resources_id, changed.metadata) == (
            None,
            None,
            None,
            None,
        )

    @pytest.mark.parametrize(
        "bad",
        [{"status": None}, {"config": None}, {"status": "timeout"}, {"mode": "training"}],
        ids=str,
    )
    async def test_a_bad_value_is_refused_and_changes_nothing(
        self, store: LightningStore, bad: dict[str, Any]
    ):
        rollout = await store.enqueue_rollout("x")
        with pytest.raises(InvalidArgumentError):
            await store.update_rollout(rollout.rollout_id, **bad)
        assert await store.get_rollout_by_id(rollout.rollout_id) == rollout
        assert await store.dequeue_rollout() is not None

    async def test_an_unknown_rollout_is_an_error(self, store: LightningStore):
        with pytest.raises(RolloutNotFoundError):
            await store.update_rollout("ro-nothing", status="failed")
        with pytest.raises(ValueError, match="ro-nothing"):
            await store.start_attempt("ro-nothing")

    @pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
    async def test_a_terminal_status_sets_the_end_time(self, store: LightningStore, status: Any):
        rollout = await store.enqueue_rollout("x")
        done = await store.update_rollout(rollout.rollout_id, status=status)
        assert done.status == status
        assert done.end_time is not None
        assert done.end_time >= done.start_time

    async def test_leaving_a_terminal_status_clears_the_end_time(self, store: LightningStore):
        rollout = await store.enqueue_rollout("x")
        await store.update_rollout(rollout.rollout_id, status="failed")
        again = await store.update_rollout(rollout.rollout_id, status="requeuing")
        assert again.end_time is None
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        assert claimed.attempt.sequence_id == 1

    @pytest.mark.parametrize("late", [{"status": "succeeded"}, {"status": "failed"}, {}])
    async def test_cancelled_is_final_for_its_attempt(
        self, store: LightningStore, late: dict[str, Any]
    ):
        claimed = await claim(store, worker_id="w", max_attempts=3, retry_condition=["failed"])
        await store.update_rollout(claimed.rollout_id, status="cancelled")
        await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, metadata={"m": 1}, **late
        )
        await store.add_span(span_of(claimed))
        assert (await statuses(store, claimed.rollout_id))[0] == "cancelled"
        assert await store.dequeue_rollout() is None

    async def test_cancelling_takes_the_attempt_from_its_worker(self, store: LightningStore):
        claimed = await claim(store, worker_id="w")
        assert (await store.update_worker("w")).current_attempt_id == claimed.attempt.attempt_id
        await store.update_rollout(claimed.rollout_id, status="cancelled")
        heartbeat = await store.update_worker("w")
        assert heartbeat.current_attempt_id is None
        assert heartbeat.current_rollout_id is None


class AttemptTests(StoreTests):
    """Effects of update_attempt on the attempt and on its rollout."""

    @pytest.mark.parametrize("status", ["succeeded", "failed", "timeout", "unresponsive"])
    async def test_an_ended_attempt_ends_its_rollout(self, store: LightningStore, status: Any):
        claimed = await claim(store)
        attempt = await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status=status
        )
        assert attempt.status == status
        assert attempt.end_time is not None
        rollout = await store.get_rollout_by_id(claimed.rollout_id)
        assert rollout is not None
        assert rollout.status == ("succeeded" if status == "succeeded" else "failed")
        assert rollout.end_time is not None

    async def test_running_ends_nothing(self, store: LightningStore):
        claimed = await claim(store)
        attempt = await store.update_attempt(claimed.rollout_id, "latest", status="running")
        assert attempt.end_time is None
        assert await statuses(store, claimed.rollout_id) == ("running", ["running"])

    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    async def test_a_retry_is_queued_while_attempts_are_left(
        self, store: LightningStore, status: Any
    ):
        claimed = await claim(store, max_attempts=2, retry_condition=[status])
        await store.update_attempt(claimed.rollout_id, "latest", status=status)
        assert (await statuses(store, claimed.rollout_id))[0] == "requeuing"
        retried = await store.dequeue_rollout()
        assert retried is not None
        assert retried.attempt.sequence_id == 2
        await store.update_attempt(claimed.rollout_id, "latest", status=status)
        assert await statuses(store, claimed.rollout_id) == ("failed", [status, status])
        assert await store.dequeue_rollout() is None

    async def test_a_retry_needs_its_condition(self, store: LightningStore):
        claimed = await claim(store, max_attempts=2, retry_condition=["timeout"])
        await store.update_attempt(claimed.rollout_id, "latest", status="failed")
        assert (await statuses(store, claimed.rollout_id))[0] == "failed"

    async def test_a_stale_attempt_never_touches_the_rollout(self, store: LightningStore):
        first = await claim(store, max_attempts=2, retry_condition=["failed"])
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
        second = await store.dequeue_rollout()
        assert second is not None
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
        assert await statuses(store, first.rollout_id) == ("preparing", ["succeeded", "preparing"])

    async def test_latest_means_the_highest_ordinal(self, store: LightningStore):
        first = await claim(store)
        second = await store.start_attempt(first.rollout_id)
        updated = await store.update_attempt(first.rollout_id, "latest", metadata={"m": 1})
        assert updated.attempt_id == second.attempt.attempt_id

    async def test_metadata_and_heartbeat_alone_recompute_nothing(self, store: LightningStore):
        claimed = await claim(store)
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        await store.update_rollout(claimed.rollout_id, status="running")
        attempt = await store.update_attempt(
            claimed.rollout_id, "latest", metadata={"m": 1}, last_heartbeat_time=5.0
        )
        assert attempt.metadata == {"m": 1}
        assert attempt.last_heartbeat_time == 5.0
        assert (await statuses(store, claimed.rollout_id))[0] == "running"

    async def test_a_late_success_turns_a_failed_verdict(self, store: LightningStore):
        claimed = await claim(store)
        await store.update_attempt(claimed.rollout_id, "latest", status="unresponsive")
        assert (await statuses(store, claimed.rollout_id))[0] == "failed"
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        assert await statuses(store, claimed.rollout_id) == ("succeeded", ["succeeded"])

    async def test_a_success_takes_a_queued_retry_out_of_the_queue(self, store: LightningStore):
        claimed = await claim(store, max_attempts=2, retry_condition=["unresponsive"])
        await store.update_attempt(claimed.rollout_id, "latest", status="unresponsive")
        await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        assert await store.dequeue_rollout() is None
        assert (await statuses(store, claimed.rollout_id))[0] == "succeeded"

    @pytest.mark.parametrize("bad", [{"status": None}, {"status": "cancelled"}], ids=str)
    async def test_a_bad_value_is_refused_whole(self, store: LightningStore, bad: dict[str, Any]):
        claimed = await claim(store)
        with pytest.raises(InvalidArgumentError):
            await store.update_attempt(claimed.rollout_id, "latest", metadata={"m": 1}, **bad)
        assert await store.get_latest_attempt(claimed.rollout_id) == claimed.attempt

    async def test_unknown_ids_are_errors_of_their_own(self, store: LightningStore):
        queued = await store.enqueue_rollout("x")
        with pytest.raises(RolloutNotFoundError):
            await store.update_attempt("ro-nothing", "latest", status="failed")
        with pytest.raises(AttemptNotFoundError):
            await store.update_attempt(queued.rollout_id, "latest", status="failed")
        with pytest.raises(AttemptNotFoundError):
            await store.update_attempt(queued.rollout_id, "at-nothing", status="failed")

    # -- the watchdog ----------------------------------------------------------------------------

    async def test_an_attempt_past_its_time_is_timed_out(self, store: LightningStore):
        claimed = await claim(store, worker_id="w", timeout_seconds=0.02)
        await asyncio.sleep(0.05)
        assert await store.run_watchdog() in (0, 1)  # 0: another call of the store has ended it
        assert await store.run_watchdog() == 0
        assert await statuses(store, claimed.rollout_id) == ("failed", ["timeout"])
        attempt = await store.get_latest_attempt(claimed.rollout_id)
        assert attempt is not None
        assert attempt.end_time is not None
        worker = await store.get_worker_by_id("w")
        assert worker is not None
        assert (worker.status, worker.current_attempt_id) == ("unknown", None)

    @requires("scans")
    @pytest.mark.parametrize(
        "read",
        [
            lambda store, rollout_id: store.query_rollouts(),
            lambda store, rollout_id: store.query_attempts(rollout_id),
            lambda store, rollout_id: store.query_workers(),
            lambda store, rollout_id: store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=0),
            lambda store, rollout_id: store.dequeue_many_rollouts(),
        ],
        ids=["rollouts", "attempts", "workers", "wait", "dequeue"],
    )
    async def test_a_list_shows_no_attempt_past_its_time(
        self, store: LightningStore, read: Callable[[LightningStore, str], Any]
    ):
        late = await claim(store, worker_id="w", timeout_seconds=0.02)
        again = await claim(
            store, timeout_seconds=0.02, max_attempts=2, retry_condition=["timeout"]
        )
        await asyncio.sleep(0.05)
        found = {
            getattr(item, "rollout_id", None) or item.worker_id: item
            for item in await read(store, late.rollout_id)
        }
        shown = {key: (type(item).__name__, item.status) for key, item in found.items()}
        assert shown in (
            {
                late.rollout_id: ("AttemptedRollout", "failed"),
                again.rollout_id: ("AttemptedRollout", "requeuing"),
            },
            {late.rollout_id: ("Attempt", "timeout")},
            {"w": ("Worker", "unknown")},
            {late.rollout_id: ("Rollout", "failed")},
            {late.rollout_id: ("AttemptedRollout", "failed")},
            {again.rollout_id: ("AttemptedRollout", "preparing")},
        )

    @requires("scans")
    async def test_one_attempt_is_read_as_ended_past_its_time(self, store: LightningStore):
        for index in range(2):
            late = await claim(store, index, timeout_seconds=0.02)
            await asyncio.sleep(0.05)
            if index:
                rollout = await store.get_rollout_by_id(late.rollout_id)
                assert rollout is not None
                assert rollout.status == "failed"
            else:
                attempt = await store.get_latest_attempt(late.rollout_id)
                assert attempt is not None
                assert attempt.status == "timeout"

    async def test_a_silent_attempt_is_retried(self, store: LightningStore):
        claimed = await claim(
            store, unresponsive_seconds=0.02, max_attempts=2, retry_condition=["unresponsive"]
        )
        await asyncio.sleep(0.05)
        await store.run_watchdog()
        assert await statuses(store, claimed.rollout_id) == ("requeuing", ["unresponsive"])
        retried = await store.dequeue_rollout()
        assert retried is not None
        assert retried.attempt.sequence_id == 2

    async def test_the_watchdog_leaves_the_others_alone(self, store: LightningStore):
        healthy = await claim(store, timeout_seconds=60, unresponsive_seconds=60)
        queued = await store.enqueue_rollout("q", config=RolloutConfig(timeout_seconds=0.001))
        await asyncio.sleep(0.01)
        await store.run_watchdog()
        assert await statuses(store, healthy.rollout_id) == ("preparing", ["preparing"])
        assert (await statuses(store, queued.rollout_id))[0] == "queuing"

    async def test_waiting_notices_a_timeout_by_itself(self, store: LightningStore):
        claimed = await claim(store, timeout_seconds=0.1)
        done = await asyncio.wait_for(
            store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=30), 40
        )
        assert [rollout.status for rollout in done] == ["failed"]


class WorkerTests(StoreTests):
    """Workers follow from claims, attempts and heartbeats."""

    async def worker(self, store: LightningStore, worker_id: str = "w"):
        worker = await store.get_worker_by_id(worker_id)
        assert worker is not None
        return worker

    async def test_a_claim_makes_its_worker_busy(self, store: LightningStore):
        claimed = await claim(store, worker_id="w")
        worker = await self.worker(store)
        assert worker.status == "busy"
        assert worker.current_rollout_id == claimed.rollout_id
        assert worker.current_attempt_id == claimed.attempt.attempt_id
        assert worker.last_busy_time is not None
        assert worker.last_dequeue_time is not None

    async def test_a_start_without_the_queue_is_not_a_dequeue(self, store: LightningStore):
        started = await store.start_rollout("x", worker_id="w")
        await store.start_attempt(started.rollout_id, worker_id="v")
        for name in ("w", "v"):
            worker = await self.worker(store, name)
            assert worker.last_busy_time is not None
            assert worker.last_dequeue_time is None

    async def test_a_fruitless_claim_makes_its_worker_idle(self, store: LightningStore):
        await store.dequeue_rollout("w")
        worker = await self.worker(store)
        assert worker.status == "idle"
        assert worker.last_idle_time is not None
        assert worker.last_dequeue_time is not None

    @pytest.mark.parametrize(
        ("status", "after"),
        [("succeeded", "idle"), ("failed", "idle"), ("timeout", "unknown"), ("running", "busy")],
    )
    async def test_an_attempt_frees_its_worker_when_it_ends(
        self, store: LightningStore, status: Any, after: str
    ):
        claimed = await claim(store, worker_id="w")
        await store.update_attempt(claimed.rollout_id, "latest", status=status)
        worker = await self.worker(store)
        assert worker.status == after
        busy_with = claimed.attempt.attempt_id if after == "busy" else None
        assert worker.current_attempt_id == busy_with

    async def test_a_late_update_does_not_touch_a_worker_that_moved_on(self, store: LightningStore):
        old = await claim(store, "old", worker_id="w")
        new = await claim(store, "new", worker_id="w")
        await store.update_attempt(old.rollout_id, old.attempt.attempt_id, status="failed")
        worker = await self.worker(store)
        assert worker.status == "busy"
        assert worker.current_attempt_id == new.attempt.attempt_id

    async def test_a_heartbeat_creates_and_keeps(self, store: LightningStore):
        created = await store.update_worker("w", {"cpu": 1})
        assert created.status == "unknown"
        assert created.heartbeat_stats == {"cpu": 1}
        assert created.last_heartbeat_time is not None
        kept = await store.update_worker("w")
        assert kept.heartbeat_stats == {"cpu": 1}
        await store.dequeue_rollout("w")
        assert (await self.worker(store)).heartbeat_stats == {"cpu": 1}

    async def test_a_heartbeat_changes_no_assignment(self, store: LightningStore):
        claimed = await claim(store, worker_id="w")
        beat = await store.update_worker("w", {"cpu": 2})
        assert (beat.status, beat.current_rollout_id) == ("busy", claimed.rollout_id)

    async def test_null_statistics_are_a_type_error(self, store: LightningStore):
        with pytest.raises(TypeError):
            await store.update_worker("w", None)  # pyright: ignore[reportArgumentType]

    async def test_workers_are_listed_and_filtered(self, store: LightningStore):
        await claim(store, worker_id="busy-1")
        await store.dequeue_rollout("idle-1")
        await store.update_worker("unknown-1")
        page = await store.query_workers(sort_by="worker_id")
        assert [worker.worker_id for worker in page] == ["busy-1", "idle-1", "unknown-1"]
        page = await store.query_workers(status_in=["busy"], worker_id_contains="unknown")
        assert list(page) == []
        page = await store.query_workers(
            status_in=["busy"], worker_id_contains="unknown", filter_logic="or", sort_by="worker_id"
        )
        assert [worker.worker_id for worker in page] == ["busy-1", "unknown-1"]
        assert await store.get_worker_by_id("nobody") is None
