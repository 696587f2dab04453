"""Several MongoDB stores on one database: waking, the watchdog, partitions, repeated calls."""

import asyncio

import pytest
import pytest_asyncio

from agl_core.types import RolloutConfig
from agl_store_kit import NoticeFeed, RolloutQuery, run_query
from agl_store_mongo import MongoLightningStore, feed
from agl_testing.database import SharedStoreSuite


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


class TestMongoSharing(SharedStoreSuite):
    @pytest.fixture
    def connect(self, mongo_uri, partition):
        def connect(*, elsewhere=False, **options):
            where = partition + "-other" if elsewhere else partition
            return MongoLightningStore(mongo_uri, partition_id=where, **options)

        return connect


# -- waking ----------------------------------------------------------------------------------------


async def test_a_change_stream_wakes_waiting_calls(stores, monkeypatch):
    # How long the stream waits for a change; without the check only a change wakes a call.
    monkeypatch.setattr(NoticeFeed, "CHECK_SECONDS", 0.25)
    here, there, _ = stores
    here._mongo.connection.feed.streams = True

    async def no_check():
        await asyncio.sleep(0)

    here._mongo.connection.feed._check = no_check
    work = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await asyncio.sleep(0.2)
    rollout = await there.enqueue_rollout("x")
    claimed = await asyncio.wait_for(work, 20)
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id
    ids = [rollout.rollout_id]
    finished = asyncio.ensure_future(here.wait_for_rollouts(rollout_ids=ids, timeout=30))
    await asyncio.sleep(0.2)
    await there.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    assert len(await asyncio.wait_for(finished, 20)) == 1


async def test_a_change_whose_notice_is_lost_wakes_waiting_calls(stores):
    here, there, _ = stores

    async def lost(batch):
        await asyncio.sleep(0)

    there._mongo.connection.feed.send = lost
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
    monkeypatch.setattr(NoticeFeed, "CHECK_SECONDS", -1.0)
    numbers.settle()
    assert numbers.complete == 12


# -- sharing the work ------------------------------------------------------------------------------


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


# -- records ---------------------------------------------------------------------------------------


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
