"""The MongoDB store when its server, its connection or another process fails."""

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import time

import pytest
import pytest_asyncio

from agl_core.errors import InvalidArgumentError, StoreDataError, StoreUnavailableError
from agl_core.store import encode_span
from agl_core.types import EnqueueRolloutRequest, RolloutConfig
from agl_store_mongo import MongoLightningStore
from agl_testing import FaultyRelay
from agl_testing.samples import named_resources, span_of


@pytest_asyncio.fixture
async def relay(mongo_uri):
    if mongo_uri.count(":") != 2:
        pytest.skip("the relay needs one server with one address")
    async with FaultyRelay(int(mongo_uri.rsplit(":", 1)[1].split("/")[0])) as relay:
        yield relay


@pytest_asyncio.fixture
async def store(relay, partition):
    store = MongoLightningStore(
        f"mongodb://127.0.0.1:{relay.port}", partition_id=partition, timeout_seconds=5
    )
    yield store
    await store.close()


# -- the server ------------------------------------------------------------------------------------


async def test_the_error_names_a_missing_server(own_server):
    own_server.kill()
    store = MongoLightningStore(own_server.uri, timeout_seconds=0.3)
    start = time.monotonic()
    for call in (store.enqueue_rollout("x"), store.query_rollouts(), store.dequeue_rollout("w")):
        with pytest.raises(StoreUnavailableError, match=f"MongoDB at 127.0.0.1:{own_server.port}"):
            await call
    assert time.monotonic() - start < 10
    await store.close()
    store = MongoLightningStore(own_server.uri, timeout_seconds=20)
    waiting = asyncio.ensure_future(store.enqueue_rollout("y"))
    await asyncio.sleep(0.1)
    own_server.start()
    assert (await waiting).status == "queuing"
    await store.close()


async def test_a_killed_server_loses_no_acknowledged_write(own_server):
    store = MongoLightningStore(own_server.uri, timeout_seconds=0.3)
    kept: list[str] = []
    refused = 0

    async def write() -> None:
        nonlocal refused
        while True:
            try:
                started = await store.start_rollout(len(kept))
                await store.add_span(span_of(started))
            except StoreUnavailableError:
                refused += 1
                await asyncio.sleep(0.02)
            else:
                kept.append(started.rollout_id)

    writing = [asyncio.ensure_future(write()) for _ in range(4)]
    for acknowledged in (20, 40, 60):
        while len(kept) < acknowledged:
            await asyncio.sleep(0.01)
        own_server.kill()
        seen = refused
        while refused == seen:
            await asyncio.sleep(0.01)
        own_server.start()
    while len(kept) < 80:
        await asyncio.sleep(0.01)
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)
    assert refused
    for rollout_id in kept:
        rollout = await store.get_rollout_by_id(rollout_id)
        assert rollout is not None
        assert rollout.status == "running"
        assert (await store.query_spans(rollout_id)).total == 1
    await store.close()


async def test_waiting_calls_survive_a_restart_of_the_server(own_server):
    store = MongoLightningStore(own_server.uri, timeout_seconds=10)
    other = MongoLightningStore(own_server.uri, timeout_seconds=10)
    rollout = await store.enqueue_rollout("x")
    ids = [rollout.rollout_id]
    claimed = await store.dequeue_rollout("w0")
    assert claimed is not None
    finished = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=ids, timeout=60))
    work = asyncio.ensure_future(store.dequeue_rollout("w", wait=60))
    await asyncio.sleep(0.2)
    own_server.kill()
    await asyncio.sleep(0.2)
    own_server.start()
    await other.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    second = await other.enqueue_rollout("y")
    assert [r.status for r in await asyncio.wait_for(finished, 30)] == ["succeeded"]
    claimed = await asyncio.wait_for(work, 30)
    assert claimed is not None
    assert claimed.rollout_id == second.rollout_id
    await store.close()
    await other.close()


# -- the connection --------------------------------------------------------------------------------


async def test_calls_survive_a_broken_connection_and_happen_once(relay, store):
    randomness = random.Random(7)
    await store.enqueue_rollout("first")  # the indexes are made
    await store.dequeue_rollout()

    async def cut_somewhere(call):
        # Connections of background tasks take some of the cuts, the call takes the rest.
        randomness.choice([relay.cut_replies, relay.cut_requests])(
            after_bytes=randomness.choice([0, 0, 0, 100, 300, 900])
        )
        return await call

    worker = "w"
    for round_number in range(4):
        batch = await cut_somewhere(
            store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
        )
        claimed = [await cut_somewhere(store.dequeue_rollout(worker)) for _ in batch]
        assert [r.rollout_id for r in claimed] == [r.rollout_id for r in batch]
        assert {r.attempt.sequence_id for r in claimed} == {1}
        first = claimed[0]
        spans = [encode_span(span_of(first, n)) for n in range(1, 6)]
        stored = await cut_somewhere(store.add_encoded_spans(spans))
        assert [id(span) for span in stored] == [id(span) for span in spans]
        assert len(await store.query_spans(first.rollout_id)) == 5
        done = await cut_somewhere(
            store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
        )
        assert done.status == "succeeded"
        again = await cut_somewhere(store.start_attempt(first.rollout_id, worker_id=worker))
        assert again.attempt.sequence_id == 2
        busy = await store.get_worker_by_id(worker)
        assert busy is not None
        assert busy.current_attempt_id == again.attempt.attempt_id
        snapshot = await cut_somewhere(store.add_resources(named_resources()))
        assert snapshot.version == 1
        statistics = await store.statistics()
        assert statistics.get("total_rollouts") == 1 + 3 * (round_number + 1)
        assert statistics.get("total_attempts") == 1 + 4 * (round_number + 1)
        assert statistics.get("total_spans") == 5 * (round_number + 1)
        assert statistics.get("total_resources") == round_number + 1
    assert relay.connections > 10


async def test_a_broken_connection_does_not_return_duplicates_as_stored(relay, store):
    claimed = await store.start_rollout("x")
    old = span_of(claimed, 1)
    assert await store.add_span(old) is not None
    for number in range(2, 12):
        relay.cut_replies(after_bytes=0)
        new = span_of(claimed, number)
        assert list(await store.add_many_spans([old, new, new])) == [new]
    assert len(await store.query_spans(claimed.rollout_id)) == 11


# -- processes that die between two writes ---------------------------------------------------------


async def test_a_worker_learns_of_a_cancellation_of_a_process_that_died(
    mongo_uri, partition, monkeypatch
):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    started = await store.start_rollout("x", worker_id="w")
    beating = await store.update_worker("w")
    assert beating.current_attempt_id == started.attempt.attempt_id

    async def die(*args, **kwargs):
        raise StoreUnavailableError("killed between the rollout and its worker")

    with monkeypatch.context() as patch:
        patch.setattr(store._mongo.connection.workers, "follow", die)
        with pytest.raises(StoreUnavailableError):
            await store.update_rollout(started.rollout_id, status="cancelled")
    left = await store.get_worker_by_id("w")
    assert left is not None
    assert left.current_attempt_id == started.attempt.attempt_id
    learned = await store.update_worker("w")
    assert (learned.status, learned.current_attempt_id) == ("unknown", None)

    # The note has no effect afterwards.
    again = await store.start_attempt(started.rollout_id, worker_id="w")
    beating = await store.update_worker("w")
    assert beating.current_attempt_id == again.attempt.attempt_id
    await store.close()


async def test_a_worker_keeps_an_attempt_that_was_revived_before_its_release(
    mongo_uri, partition, monkeypatch
):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    started = await store.start_rollout("x", worker_id="w")
    ids = (started.rollout_id, started.attempt.attempt_id)

    async def die(*args, **kwargs):
        raise StoreUnavailableError("killed between the rollout and its worker")

    with monkeypatch.context() as patch:
        patch.setattr(store._mongo.connection.workers, "follow", die)
        with pytest.raises(StoreUnavailableError):
            await store.update_attempt(*ids, status="unresponsive")
    await store.add_span(span_of(started))
    revived = await store.get_latest_attempt(started.rollout_id)
    assert revived is not None
    assert revived.status == "running"
    beating = await store.update_worker("w")
    assert (beating.status, beating.current_attempt_id) == ("busy", ids[1])
    await store.close()


async def test_a_change_number_that_is_never_used_does_not_stop_the_feed(mongo_uri, partition):
    stores = [MongoLightningStore(mongo_uri, partition_id=partition) for _ in range(2)]
    listener, writer = stores
    events = listener.events()
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.2)
    await writer._mongo.connection.call(lambda connection: connection.database.draw("changes", 3))
    rollout = await writer.enqueue_rollout("x")
    event = await asyncio.wait_for(following, 10)
    assert (event.kind, event.rollout_id) == ("rollout", rollout.rollout_id)
    await events.aclose()
    for store in stores:
        await store.close()


# -- arguments and closing ------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["localhost:27017", "mongodb://", "mongodb://h/?w=0"])
async def test_the_constructor_refuses_a_wrong_connection_string(uri):
    with pytest.raises(StoreDataError, match="connection string"):
        MongoLightningStore(uri)


async def test_a_refused_value_leaves_the_store_usable(mongo_uri, partition):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    with pytest.raises(InvalidArgumentError, match="input"):
        await store.enqueue_rollout(object())
    started = await store.start_rollout("y")
    huge = span_of(started).model_copy(update={"sequence_id": 2**70})
    with pytest.raises(InvalidArgumentError, match="does not fit in 64 bits"):
        await store.add_span(huge)
    assert (await store.statistics()).get("total_rollouts") == 1
    await store.close()


async def test_a_closed_store_fails_its_calls_and_leaves_no_thread(mongo_uri, partition):
    import threading

    before = set(threading.enumerate())
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=60))
    await asyncio.sleep(0.3)
    await store.close()
    await store.close()
    with pytest.raises(StoreDataError, match="closed"):
        await waiting
    with pytest.raises(StoreDataError, match="closed"):
        await store.enqueue_rollout("x", config=RolloutConfig())
    assert set(threading.enumerate()) - before == set()


async def test_the_error_for_a_newer_schema_names_the_upgrade_command(mongo_uri, partition):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    await store.enqueue_rollout("x")
    await store._mongo.connection.call(
        lambda connection: connection.database.upsert(
            connection.database.counters,
            connection.database.by(name="schema"),
            {"$inc": {"value": 1}},
        )
    )
    await store.close()
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    with pytest.raises(StoreDataError, match="pip install -U agl-store-mongo"):
        await store.enqueue_rollout("y")
    await store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
async def test_a_forked_child_connects_again(mongo_uri, partition):
    code = f"""
        import asyncio, os
        from agl_store_mongo import MongoLightningStore

        store = MongoLightningStore({mongo_uri!r}, partition_id={partition!r})
        asyncio.run(store.enqueue_rollout("parent"))
        child = os.fork()
        if child == 0:
            asyncio.run(store.enqueue_rollout("child"))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(sorted(r.input for r in asyncio.run(store.query_rollouts())))
        asyncio.run(store.close())
    """
    output = subprocess.check_output(
        [sys.executable, "-c", textwrap.dedent(code)], text=True, timeout=60
    )
    assert output.strip() == "['child', 'parent']"


async def test_events_resume_at_their_position_after_a_restart(own_server):
    here, there = (MongoLightningStore(own_server.uri, timeout_seconds=10) for _ in range(2))
    events = here.events()
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.3)
    expected = [(await there.enqueue_rollout(0)).rollout_id]
    seen = [(await asyncio.wait_for(following, 10)).rollout_id]
    own_server.kill()
    await asyncio.sleep(0.2)
    own_server.start()
    expected += [(await there.enqueue_rollout(n)).rollout_id for n in range(1, 6)]
    while len(seen) < len(expected):
        seen.append((await asyncio.wait_for(anext(events), 20)).rollout_id)
    assert seen == expected
    await events.aclose()
    await here.close()
    await there.close()
