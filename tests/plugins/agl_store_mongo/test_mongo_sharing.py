"""Several MongoDB stores on one database: waking, the watchdog, partitions, repeated calls."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from agl_core.store import RolloutQuery, current_request_key, run_query
from agl_core.types import EnqueueRolloutRequest, RolloutConfig
from agl_store_mongo import MongoLightningStore, feed
from agl_testing.samples import span_of


@pytest_asyncio.fixture
async def stores(mongo_uri, partition):
    """Three stores of one partition, each with a connection and a loop of its own."""
    stores = [
        MongoLightningStore(mongo_uri, partition_id=partition, scan_debounce_seconds=60)
        for _ in range(3)
    ]
    yield stores
    for store in stores:
        await store.close()


@asynccontextmanager
async def request_key(key):
    token = current_request_key.set(key)
    yield
    current_request_key.reset(token)


# -- waking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True], ids=["polling", "change stream"])
async def test_stores_wake_each_other(stores, monkeypatch, streams):
    # Without the check once a second only the notice of a change wakes a waiting call.
    monkeypatch.setattr(feed, "_CHECK_SECONDS", 0.25 if streams else 3600.0)
    here, there, _ = stores
    here._mongo.connection.feed.streams = streams

    async def no_check():
        await asyncio.sleep(0)

    here._mongo.connection.feed._check = no_check
    took = []
    for number in range(5):
        work = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
        await asyncio.sleep(0.2)
        rollout = await there.enqueue_rollout(number)
        start = time.monotonic()
        claimed = await asyncio.wait_for(work, 10)
        took.append(time.monotonic() - start)
        assert claimed is not None
        assert claimed.rollout_id == rollout.rollout_id
        ids = [rollout.rollout_id]
        finished = asyncio.ensure_future(here.wait_for_rollouts(rollout_ids=ids, timeout=30))
        await asyncio.sleep(0.2)
        await there.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        start = time.monotonic()
        assert len(await asyncio.wait_for(finished, 10)) == 1
        took.append(time.monotonic() - start)
    took.sort()
    print(
        f"\nwoken {took[len(took) // 2] * 1e3:.0f} ms after the other store's call (median of "
        f"{len(took)}; {took[0] * 1e3:.0f} to {took[-1] * 1e3:.0f})"
    )
    # The fastest, because on a busy machine the others wait for a processor.
    assert took[0] < 0.05


async def test_a_change_whose_notice_is_lost_wakes_waiting_calls(stores):
    here, there, _ = stores

    async def lost(batch):
        await asyncio.sleep(0)

    there._mongo.connection.feed._send = lost
    work = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await asyncio.sleep(0.2)
    rollout = await there.enqueue_rollout("x")
    claimed = await asyncio.wait_for(work, 10)
    assert claimed is not None
    ids = [rollout.rollout_id]
    finished = asyncio.ensure_future(here.wait_for_rollouts(rollout_ids=ids, timeout=30))
    await asyncio.sleep(0.2)
    await there.update_rollout(rollout.rollout_id, status="cancelled")
    assert len(await asyncio.wait_for(finished, 10)) == 1


async def test_events_show_the_changes_of_all_stores(stores):
    here, there, third = stores
    events = here.events()
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.3)
    first = await there.start_rollout("x", worker_id="w")
    await third.add_span(span_of(first))
    await here.update_attempt(first.rollout_id, "latest", status="succeeded")
    seen, numbers = [], []
    while ("rollout", "succeeded") not in seen or ("rollout", "running") not in seen:
        event = await asyncio.wait_for(following, 10)
        seen.append((event.kind, event.status))
        numbers.append(event.event_id)
        following = asyncio.ensure_future(anext(events))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await events.aclose()
    assert ("rollout", "preparing") in seen
    assert ("worker", "busy") in seen
    assert numbers == sorted(set(numbers))


def test_each_change_number_is_read_once_in_any_order(monkeypatch):
    numbers = feed._Numbers(5)
    read = []
    for batch in ([6, 8], [8], [7, 8, 9]):
        read += [n for n in batch if numbers.is_new({"number": n})]
        numbers.settle()
    assert read == [6, 8, 7, 9]
    assert numbers.complete == 9
    assert numbers.is_new({"number": 12})
    numbers.settle()
    assert numbers.complete == 9
    monkeypatch.setattr(feed, "_CHECK_SECONDS", -1.0)
    numbers.settle()
    assert numbers.complete == 12


# -- sharing the work ------------------------------------------------------------------------------


async def test_waiting_stores_share_work_exactly_once(stores):
    waiting = [
        asyncio.ensure_future(store.dequeue_rollout(f"w{number}", wait=30))
        for number, store in enumerate(stores * 4)
    ]
    await asyncio.sleep(0.3)
    rollouts = await stores[0].enqueue_many_rollouts(
        [EnqueueRolloutRequest(input=n) for n in range(12)]
    )
    claimed = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert sorted(r.rollout_id for r in claimed) == sorted(r.rollout_id for r in rollouts)
    assert {r.attempt.sequence_id for r in claimed} == {1}
    assert await stores[1].dequeue_rollout() is None


async def test_concurrent_changes_of_one_rollout_are_all_stored(stores):
    rollout = await stores[0].enqueue_rollout("x", config=RolloutConfig(max_attempts=100))
    await asyncio.gather(
        *(store.start_attempt(rollout.rollout_id, f"w{n}") for n in range(8) for store in stores)
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


async def test_a_span_from_several_stores_is_stored_once(stores):
    started = await stores[0].start_rollout("x")
    spans = [span_of(started, number) for number in range(20)]
    stored = await asyncio.gather(*(store.add_many_spans(spans) for store in stores))
    assert sorted(span.span_id for batch in stored for span in batch) == sorted(
        span.span_id for span in spans
    )
    assert (await stores[1].query_spans(started.rollout_id)).total == 20


async def test_one_store_at_a_time_scans(stores, monkeypatch):
    overdue = RolloutConfig(timeout_seconds=0.01)
    backend = stores[0]._mongo
    monkeypatch.setattr(backend, "has_watched", lambda: False)  # the first call would scan
    first = await stores[0].start_rollout("x", config=overdue, worker_id="w")
    monkeypatch.undo()
    await asyncio.sleep(0.05)
    assert sum(await asyncio.gather(*(store.run_watchdog() for store in stores))) == 1
    failed = await stores[1].get_rollout_by_id(first.rollout_id)
    assert failed is not None
    assert failed.status == "failed"
    worker = await stores[1].get_worker_by_id("w")
    assert worker is not None
    assert worker.status == "unknown"
    await stores[0].start_rollout("y", config=overdue)
    await asyncio.sleep(0.05)
    # Less than the debounce of these stores after the last scan.
    assert [await store.run_watchdog() for store in stores] == [0, 0, 0]


async def test_partitions_share_no_data(stores, mongo_uri, partition):
    other = MongoLightningStore(mongo_uri, partition_id=partition + "-other")
    started = await stores[0].start_rollout("x", worker_id="w")
    await stores[0].add_span(span_of(started))
    await stores[0].enqueue_rollout("y")
    assert await other.dequeue_rollout("w2") is None
    assert await other.get_rollout_by_id(started.rollout_id) is None
    assert list(await other.query_rollouts()) == []
    assert list(await other.query_spans(started.rollout_id)) == []
    assert await other.get_worker_by_id("w") is None
    statistics = await other.statistics()
    assert (statistics.get("total_rollouts"), statistics.get("total_spans")) == (0, 0)
    await other.close()


async def test_a_repeated_key_creates_nothing_in_any_store(stores):
    async def with_every_store(key, call):
        results = []
        for store in stores:
            async with request_key(key):
                results.append(await call(store))
        return results

    batch = [EnqueueRolloutRequest(input=n) for n in range(3)]
    enqueued = await with_every_store("k1", lambda store: store.enqueue_many_rollouts(batch))
    assert enqueued[0] == enqueued[1] == enqueued[2]
    claims = await with_every_store("k2", lambda store: store.dequeue_rollout("w"))
    assert len({claim.attempt.attempt_id for claim in claims}) == 1
    many = await with_every_store("k3", lambda store: store.dequeue_many_rollouts(limit=5))
    assert many[0] == many[1] == many[2]
    assert len(many[0]) == 2
    begun = await with_every_store("k4", lambda s: s.start_attempt(claims[0].rollout_id, "w"))
    assert begun[0] == begun[1] == begun[2]
    started = await with_every_store("k5", lambda store: store.start_rollout("z", worker_id="v"))
    assert started[0] == started[1] == started[2]
    added = await with_every_store("k6", lambda store: store.add_resources({}))
    assert added[0] == added[1] == added[2]
    put = await with_every_store("k7", lambda store: store.update_resources("mine", {}))
    assert [update.version for update in put] == [1, 1, 1]
    statistics = await stores[0].statistics()
    assert statistics.get("total_rollouts") == 4
    assert statistics.get("total_attempts") == 5


# -- records ---------------------------------------------------------------------------------------


async def test_payloads_that_bson_refuses_are_stored_and_returned(stores):
    value = {"$set": {"a.b": 2**80}, "": [float("inf"), "\x00", None], "\u2603": {"$": "."}}
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


@pytest.mark.parametrize("sort_by", [None, "mode", "end_time", "resources_id", "start_time"])
@pytest.mark.parametrize("sort_order", ["asc", "desc"])
async def test_pages_equal_those_of_run_query(stores, sort_by, sort_order):
    store = stores[0]
    for number, mode in enumerate(["val", None, "train", "val", None, "train", "test"]):
        rollout = await store.enqueue_rollout(
            number, mode=mode, resources_id=["", "b", "a"][number % 3]
        )
        if number % 3:
            await store.update_rollout(rollout.rollout_id, status="failed")
        if number % 4 == 1:
            await store.update_rollout(rollout.rollout_id, resources_id=None)
    everything = list(await store.query_rollouts())
    for limit in (-1, 0, 3):
        for offset in (0, 1, 2, 4, 8):
            asked = {"sort_by": sort_by, "sort_order": sort_order, "limit": limit, "offset": offset}
            wanted = {"status_in": ["failed", "queuing"], **asked}
            expected, total = run_query(everything, RolloutQuery(**wanted))
            page = await store.query_rollouts(**wanted)
            assert [r.input for r in page] == [r.input for r in expected], asked
            assert page.total == total
