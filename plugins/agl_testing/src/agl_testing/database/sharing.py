"""Several stores on one database: waking, sharing the work, the watchdog, repeated calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from agl_core.store import LightningStore, current_request_key
from agl_core.types import EnqueueRolloutRequest, RolloutConfig
from agl_store_kit import NoticeFeed
from agl_testing.database.base import opened
from agl_testing.database.clocks import check_clocks
from agl_testing.samples import span_of
from agl_testing.suite import Suite

__all__ = ["SharedStoreSuite"]

T = TypeVar("T")
Stores = Sequence[LightningStore]
PAUSE = 0.2
"""Seconds in which a call gets as far as to wait; it waits for longer on a busy machine."""


class SharedStoreSuite(Suite):
    """Tests of stores that several processes open over the same data.

    The author supplies a fixture ``connect``: a callable that opens another store over one and the
    same data, which are empty when the test begins, or with ``elsewhere=True`` over other data of
    the same server. It passes ``scan_debounce_seconds`` on.
    """

    suite_name = "shared store"

    @pytest.fixture
    def connect(self) -> Callable[..., LightningStore]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `connect`")

    @pytest_asyncio.fixture
    async def stores(self, connect: Callable[..., LightningStore]) -> AsyncIterator[Stores]:
        """Return three stores, each with connections of its own."""
        stores = [connect(scan_debounce_seconds=60) for _ in range(3)]
        await stores[0].statistics()
        yield stores
        for store in stores:
            await store.close()

    async def test_stores_wake_each_other(self, stores: Stores, monkeypatch: pytest.MonkeyPatch):
        # Without the check once a second only the notice of a change wakes a waiting call.
        monkeypatch.setattr(NoticeFeed, "CHECK_SECONDS", 3600.0)
        here, there, _ = stores
        for number in range(5):
            work = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
            await asyncio.sleep(PAUSE)
            rollout = await there.enqueue_rollout(number)
            claimed = await asyncio.wait_for(work, 20)
            assert claimed is not None
            assert claimed.rollout_id == rollout.rollout_id
            ids = [rollout.rollout_id]
            finished = asyncio.ensure_future(here.wait_for_rollouts(rollout_ids=ids, timeout=30))
            await asyncio.sleep(PAUSE)
            await there.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            assert len(await asyncio.wait_for(finished, 20)) == 1

    async def test_events_show_the_changes_of_all_stores(self, stores: Stores):
        here, there, third = stores
        events: Any = here.events()
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(PAUSE)
        first = await there.start_rollout("x", worker_id="w")
        await third.add_span(span_of(first))
        await here.update_attempt(first.rollout_id, "latest", status="succeeded")
        seen: list[tuple[str, str | None]] = []
        numbers: list[int] = []
        while ("rollout", "succeeded") not in seen or ("rollout", "running") not in seen:
            event = await asyncio.wait_for(following, 20)
            seen.append((event.kind, event.status))
            numbers.append(event.event_id)
            following = asyncio.ensure_future(anext(events))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await events.aclose()
        assert ("rollout", "preparing") in seen
        assert ("worker", "busy") in seen
        assert numbers == sorted(set(numbers))

    async def test_waiting_stores_share_work_exactly_once(self, stores: Stores):
        waiting = [
            asyncio.ensure_future(store.dequeue_rollout(f"w{number}", wait=60))
            for number, store in enumerate([*stores] * 4)
        ]
        await asyncio.sleep(PAUSE)
        rollouts = await stores[0].enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=n) for n in range(12)]
        )
        claims = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        claimed = [claim for claim in claims if claim is not None]
        assert sorted(r.rollout_id for r in claimed) == sorted(r.rollout_id for r in rollouts)
        assert {r.attempt.sequence_id for r in claimed} == {1}
        assert await stores[1].dequeue_rollout() is None

    async def test_concurrent_changes_of_one_rollout_are_all_stored(self, stores: Stores):
        rollout = await stores[0].enqueue_rollout("x", config=RolloutConfig(max_attempts=100))
        await asyncio.gather(
            *(
                store.start_attempt(rollout.rollout_id, f"w{n}")
                for n in range(8)
                for store in stores
            )
        )
        attempts = await stores[1].query_attempts(rollout.rollout_id)
        assert [attempt.sequence_id for attempt in attempts] == list(range(1, 25))
        await asyncio.gather(
            *(
                stores[number % 3].update_attempt(
                    rollout.rollout_id, attempt.attempt_id, metadata={"n": number}
                )
                for number, attempt in enumerate(attempts)
            )
        )
        attempts = await stores[2].query_attempts(rollout.rollout_id)
        assert [attempt.metadata for attempt in attempts] == [{"n": n} for n in range(24)]

    async def test_a_span_from_several_stores_is_stored_once(self, stores: Stores):
        started = await stores[0].start_rollout("x")
        spans = [span_of(started, number) for number in range(1, 21)]
        stored = await asyncio.gather(*(store.add_many_spans(spans) for store in stores))
        assert sorted(span.span_id for batch in stored for span in batch) == sorted(
            span.span_id for span in spans
        )
        assert (await stores[1].query_spans(started.rollout_id)).total == 20

    async def test_one_store_at_a_time_scans(self, stores: Stores):
        await stores[0].run_watchdog()
        started = await stores[1].start_rollout("x", config=RolloutConfig(timeout_seconds=0.01))
        await asyncio.sleep(0.05)
        # Less than the debounce of these stores after the last scan.
        assert [await store.run_watchdog() for store in stores] == [0, 0, 0]
        rollout = await stores[2].get_rollout_by_id(started.rollout_id)
        assert rollout is not None
        assert rollout.status == "preparing"

    async def test_the_databases_clock_decides(self, connect: Callable[..., LightningStore]):
        await check_clocks(lambda: connect(scan_debounce_seconds=0))

    async def test_data_elsewhere_are_not_shared(
        self, stores: Stores, connect: Callable[..., LightningStore]
    ):
        started = await stores[0].start_rollout("x", worker_id="w")
        await stores[0].add_span(span_of(started))
        await stores[0].enqueue_rollout("y")
        async with opened(connect(elsewhere=True)) as other:
            assert await other.dequeue_rollout("w2") is None
            assert await other.get_rollout_by_id(started.rollout_id) is None
            assert list(await other.query_rollouts()) == []
            assert list(await other.query_spans(started.rollout_id)) == []
            assert await other.get_worker_by_id("w") is None
            statistics = await other.statistics()
        assert (statistics.get("total_rollouts"), statistics.get("total_spans")) == (0, 0)

    async def test_a_repeated_key_creates_nothing_in_any_store(self, stores: Stores):
        async def with_every_store(
            key: str, call: Callable[[LightningStore], Awaitable[T]]
        ) -> list[T]:
            results: list[T] = []
            for store in stores:
                token = current_request_key.set(key)
                results.append(await call(store))
                current_request_key.reset(token)
            return results

        batch = [EnqueueRolloutRequest(input=n) for n in range(3)]
        enqueued = await with_every_store("k1", lambda s: s.enqueue_many_rollouts(batch))
        assert enqueued[0] == enqueued[1] == enqueued[2]
        found = await with_every_store("k2", lambda s: s.dequeue_rollout("w"))
        claims = [claim for claim in found if claim is not None]
        assert len({claim.attempt.attempt_id for claim in claims}) == 1
        many = await with_every_store("k3", lambda s: s.dequeue_many_rollouts(limit=5))
        assert many[0] == many[1] == many[2]
        assert len(many[0]) == 2
        begun = await with_every_store("k4", lambda s: s.start_attempt(claims[0].rollout_id, "w"))
        assert begun[0] == begun[1] == begun[2]
        started = await with_every_store("k5", lambda s: s.start_rollout("z", worker_id="v"))
        assert started[0] == started[1] == started[2]
        added = await with_every_store("k6", lambda s: s.add_resources({}))
        assert added[0] == added[1] == added[2]
        put = await with_every_store("k7", lambda s: s.update_resources("mine", {}))
        assert [update.version for update in put] == [1, 1, 1]
        statistics = await stores[0].statistics()
        assert statistics.get("total_rollouts") == 4
        assert statistics.get("total_attempts") == 5

    @pytest.mark.parametrize("what", ["rollout", "attempt"])
    async def test_a_repeated_status_does_not_run_a_rollout_again(self, stores: Stores, what: str):
        retried = RolloutConfig(max_attempts=3, retry_condition=["failed"])
        started = await stores[0].start_rollout("x", config=retried)

        async def write(store: LightningStore) -> str:
            token = current_request_key.set("k1")
            try:
                if what == "rollout":
                    await store.update_rollout(started.rollout_id, status="requeuing")
                else:
                    await store.update_attempt(started.rollout_id, "latest", status="failed")
            finally:
                current_request_key.reset(token)
            rollout = await store.get_rollout_by_id(started.rollout_id)
            assert rollout is not None
            return rollout.status

        assert await write(stores[0]) == "requeuing"
        assert await stores[0].dequeue_rollout("w") is not None
        for store in stores:  # the reply was lost, and another process gets the call again
            assert await write(store) == "preparing"
            assert await store.dequeue_rollout("w2") is None

    async def test_odd_payloads_are_read_as_they_were_written(self, stores: Stores):
        value: dict[str, Any] = {
            "$set": {"a.b": 2**80},
            "": [-0.0, 5e-324, "\x00", None],
            "\u2603": {"$": "."},
        }
        started = await stores[0].start_rollout(value, metadata=value, worker_id="w")
        await stores[0].update_attempt(started.rollout_id, "latest", metadata=value)
        await stores[0].update_worker("w", value)
        rollout = await stores[1].get_rollout_by_id(started.rollout_id)
        assert rollout is not None
        assert (rollout.input, rollout.metadata) == (value, value)
        attempt = await stores[1].get_latest_attempt(started.rollout_id)
        assert attempt is not None
        assert attempt.metadata == value
        worker = await stores[1].get_worker_by_id("w")
        assert worker is not None
        assert worker.heartbeat_stats == value
