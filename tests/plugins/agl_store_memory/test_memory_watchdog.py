"""The memory store's watchdog, and attempts that revive after it has ended them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agl_core.types import AttemptedRollout, RolloutConfig, Span
from agl_store_memory import InMemoryLightningStore


class Times:
    """The wall clock and the monotonic clock, advanced by the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr("agl_store_kit.engine.time", self)
        patch.setattr("agl_store_kit.watchdog.time", self)
        patch.setattr("agl_store_kit.clock.time", self)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


def span_of(rollout: AttemptedRollout, sequence_id: int = 1, **fields: Any) -> Span:
    return Span.from_attributes(
        attributes={"k": "v"},
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=sequence_id,
        **fields,
    )


async def state_of(store: InMemoryLightningStore, rollout_id: str) -> tuple[str, str]:
    rollout = await store.get_rollout_by_id(rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    return rollout.status, rollout.attempt.status


async def test_the_watchdog_is_debounced_at_its_boundary(times: Times):
    store = InMemoryLightningStore(scan_debounce_seconds=10)
    config = RolloutConfig(timeout_seconds=1)
    start = times.now

    async def late() -> None:
        made = await store.start_rollout("x", config=config)
        times.now += 2
        assert made.status == "preparing"

    await late()
    assert await store.run_watchdog() == 1, "the first scan is always allowed"
    scanned = times.now
    await late()
    assert await store.run_watchdog() == 0, "within the window"
    times.now = scanned + 9.9
    assert await store.run_watchdog() == 0
    times.now = scanned + 10
    assert await store.run_watchdog() == 1, "the boundary is inclusive"
    assert times.now > start


def test_concurrent_callers_make_one_scan(times: Times):
    store = InMemoryLightningStore(scan_debounce_seconds=10)
    for _ in range(3):
        asyncio.run(store.start_rollout("x", config=RolloutConfig(timeout_seconds=1)))
    store._watchdog._last_scan = None
    times.now += 2
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda _: asyncio.run(store.run_watchdog()), range(8)))
    assert sorted(verdicts) == [0] * 7 + [3]


async def test_reading_shows_verdicts_and_span_arrival_passes_none(times: Times):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    limits = RolloutConfig(unresponsive_seconds=5)
    made = await store.start_rollout("x", config=limits, worker_id="w")
    times.now += 6
    await store.add_span(span_of(made))
    await store.update_worker("w")
    assert await state_of(store, made.rollout_id) == ("running", "running")
    times.now += 6
    assert await state_of(store, made.rollout_id) == ("failed", "unresponsive")
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert (worker.status, worker.last_idle_time) == ("unknown", times.now)
    at = times.now
    times.now += 1
    assert await store.run_watchdog() == 0
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert worker.last_idle_time == at


async def test_a_timed_out_attempt_only_keeps_its_heartbeat(times: Times):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    made = await store.start_rollout("x", config=RolloutConfig(timeout_seconds=5))
    times.now += 6
    assert await store.run_watchdog() == 1
    times.now += 1
    await store.add_span(span_of(made))
    attempt = await store.get_latest_attempt(made.rollout_id)
    assert attempt is not None
    assert (attempt.status, attempt.last_heartbeat_time) == ("timeout", times.now)
    assert (attempt.end_time, (await store.statistics()).get("total_spans")) == (times.now - 1, 1)
    assert await state_of(store, made.rollout_id) == ("failed", "timeout")


RETRY = RolloutConfig(unresponsive_seconds=5, max_attempts=2, retry_condition=["unresponsive"])


@pytest.mark.parametrize("ending", ["succeeded", "failed"])
async def test_a_revived_attempt_withdraws_its_retry(times: Times, ending: Any):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    made = await store.start_rollout("x", config=RETRY, worker_id="w")
    times.now += 6
    assert await state_of(store, made.rollout_id) == ("requeuing", "unresponsive")
    await store.add_span(span_of(made))
    assert await state_of(store, made.rollout_id) == ("running", "running")
    assert await store.dequeue_rollout() is None
    await store.update_attempt(made.rollout_id, "latest", status=ending)
    assert await state_of(store, made.rollout_id) == (ending, ending)
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert worker.status == "idle"


async def test_a_late_span_of_a_replaced_attempt_revives_only_that(times: Times):
    store = InMemoryLightningStore(scan_debounce_seconds=0)
    made = await store.start_rollout("x", config=RETRY)
    times.now += 6
    retry = await store.dequeue_rollout()
    assert retry is not None
    await store.add_span(span_of(made))
    first, second = (await store.query_attempts(made.rollout_id)).items
    assert (first.status, second.status) == ("running", "preparing")
    assert await state_of(store, made.rollout_id) == ("preparing", "preparing")
    assert await store.dequeue_rollout() is None
