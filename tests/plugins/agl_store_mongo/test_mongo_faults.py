"""The MongoDB store when its server, its connection or another process fails."""

import asyncio

import pytest
from pymongo.errors import AutoReconnect

from agl_core import waits
from agl_core.errors import (
    AttemptEndedError,
    InvalidArgumentError,
    StoreDataError,
    StoreUnavailableError,
)
from agl_core.store import current_request_key
from agl_core.types import AttributeValue, NamedResources, PromptTemplate, RolloutConfig
from agl_store_kit import late_seconds
from agl_store_mongo import MongoLightningStore
from agl_testing.database import DatabaseFaultSuite
from agl_testing.samples import span_of


class TestMongoFaults(DatabaseFaultSuite):
    """The fixture ``database`` is in conftest.py."""

    @pytest.fixture
    def database(self, database):
        return database


async def test_the_log_says_that_a_call_waits_for_the_server(monkeypatch, caplog):
    monkeypatch.setattr(waits, "SILENT_SECONDS", 0.0)
    store = MongoLightningStore("mongodb://127.0.0.1:1")  # nothing connects to it
    connection = store._mongo.connection
    connection._prepared = True

    async def answer_once_it_is_said(connection):
        while "Waiting for MongoDB at 127.0.0.1:1" not in caplog.text:
            await asyncio.sleep(0)

    async with asyncio.timeout(10):
        await connection.call(answer_once_it_is_said)
    await store.close()


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
    with pytest.raises(StoreDataError, match=r": upgrade agl-store-mongo$"):
        await store.enqueue_rollout("y")
    await store.close()


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


async def test_an_attempt_that_ends_between_two_writes_keeps_its_reward(
    mongo_uri, partition, monkeypatch
):
    """The spans are inserted before the rollout is changed, so they are taken out again."""
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    started = await store.start_rollout("x")
    ids = (started.rollout_id, started.attempt.attempt_id)
    await store.add_span(span_of(started, 1))
    rollouts = store._mongo.connection.rollouts
    change = rollouts.change

    async def end_first(*args, **kwargs):
        monkeypatch.setattr(rollouts, "change", change)
        await store.update_attempt(*ids, status="succeeded")
        return await change(*args, **{**kwargs, "record": None})

    monkeypatch.setattr(rollouts, "change", end_first)
    reset = late_seconds.set(0.0)
    with pytest.raises(AttemptEndedError):
        await store.add_span(span_of(started, 2))
    late_seconds.reset(reset)
    spans = await store.query_spans(ids[0])
    assert [span.sequence_id for span in spans] == [1]
    await store.close()


# -- claims and the second write -------------------------------------------------------------------


async def test_a_cancellation_frees_the_worker_that_claimed_meanwhile(
    mongo_uri, partition, monkeypatch
):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    retrying = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout_id = (await store.enqueue_rollout("x", config=retrying)).rollout_id
    first = await store.dequeue_rollout(worker_id="a")
    assert first is not None
    await store.update_attempt(rollout_id, first.attempt.attempt_id, status="failed")
    rollouts = store._mongo.connection.rollouts
    replace, raced = rollouts._replace, []

    async def race(*arguments):
        if not raced:  # between the decision and its write
            raced.append(await store.dequeue_rollout(worker_id="b"))
        return await replace(*arguments)

    monkeypatch.setattr(rollouts, "_replace", race)
    await store.update_rollout(rollout_id, status="cancelled")
    assert raced[0].attempt.sequence_id == 2
    worker = await store.get_worker_by_id("b")
    assert worker is not None
    assert (worker.status, worker.current_attempt_id) == ("unknown", None)
    await store.close()


@pytest.mark.parametrize("failing", ["_assign", "_claim_head"])
async def test_an_error_after_a_claim_leaves_no_rollout_behind(
    mongo_uri, partition, monkeypatch, failing
):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    for number in range(3):
        await store.enqueue_rollout(number)
    claims = store._mongo.connection.claims
    whole, calls = getattr(claims, failing), []

    async def broken(*arguments):
        calls.append(arguments)
        if failing == "_assign" or len(calls) == 2:
            raise AutoReconnect("the primary is away")
        return await whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(claims, failing, broken)
        claimed = await store.dequeue_many_rollouts(limit=2, worker_id="w")
    assert [one.input for one in claimed] == ([0, 1] if failing == "_assign" else [0])
    rest = await store.dequeue_many_rollouts(limit=5, worker_id="w")
    assert [one.input for one in rest] == list(range(len(claimed), 3))
    await store.close()


async def test_a_claim_whose_reply_is_lost_is_given_back(mongo_uri, partition, monkeypatch):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    await store.enqueue_rollout("x")
    claims = store._mongo.connection.claims
    take = claims._take_head

    async def lost(*arguments):
        await take(*arguments)
        raise AutoReconnect("the reply is lost, and no server is found")

    with monkeypatch.context() as patch:
        patch.setattr(claims, "_take_head", lost)
        with pytest.raises(StoreUnavailableError):
            await store.dequeue_rollout(worker_id="w")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    assert (claimed.input, claimed.attempt.sequence_id) == ("x", 1)
    await store.close()


async def test_giving_a_claim_back_revives_no_cancelled_rollout(mongo_uri, partition):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    for number in range(2):
        await store.enqueue_rollout(number)
    claimed = await store.dequeue_many_rollouts(limit=2, worker_id="w")
    await store.update_rollout(claimed[0].rollout_id, status="cancelled")
    await store.update_rollout(claimed[1].rollout_id, metadata={"moved": "meanwhile"})
    given = [(one, one.attempt) for one in claimed]
    await store._mongo.connection.call(lambda connection: connection.claims.give_back(given))
    statuses = [one.status for one in await store.query_rollouts(sort_by="start_time")]
    assert statuses == ["cancelled", "queuing"]
    await store.close()


async def test_spans_that_are_sent_again_complete_a_broken_write(mongo_uri, partition, monkeypatch):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    started = await store.start_rollout("x", worker_id="w")
    rewarded: dict[str, AttributeValue] = {"agentlightning.reward.0.value": 0.5}
    span = span_of(started, attributes=rewarded)

    async def die(*args, **kwargs):
        raise StoreUnavailableError("killed between the spans and their rollout")

    with monkeypatch.context() as patch:
        patch.setattr(store._mongo.connection.rollouts, "change", die)
        with pytest.raises(StoreUnavailableError):
            await store.add_many_spans([span])
    assert list(await store.add_many_spans([span])) == [], "it is stored already"
    attempt = await store.get_latest_attempt(started.rollout_id)
    assert attempt is not None
    assert attempt.status == "running"
    rewarded_first = await store.query_rollouts(sort_by="reward", sort_order="desc")
    assert rewarded_first[0].rollout_id == started.rollout_id
    record = await store._mongo.connection.call(
        lambda connection: connection.rollouts.find(started.rollout_id)
    )
    assert record is not None
    assert record.reward == 0.5
    await store.close()


async def test_an_update_that_is_sent_again_late_replaces_no_newer_one(mongo_uri, partition):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    contents: list[NamedResources] = [
        {"p": PromptTemplate(template=text, engine="f-string")} for text in "ab"
    ]
    for key, content in [("k1", contents[0]), ("k2", contents[1]), ("k1", contents[0])]:
        with_key = current_request_key.set(key)
        try:
            update = await store.update_resources("res", content)
        finally:
            current_request_key.reset(with_key)
    assert (update.version, update.resources) == (2, contents[1])
    await store.close()


async def test_a_claim_is_found_under_its_key_by_a_call_that_asks_for_none(mongo_uri, partition):
    """So a server gives back what another one claimed."""
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    for number in range(12):
        await store.enqueue_rollout(number)
    for key in ("k", "k0"):
        with_key = current_request_key.set(key)
        try:
            limit = 11 if key == "k" else 1
            claimed = await store.dequeue_many_rollouts(limit=limit, worker_id="w")
            found = await store.dequeue_many_rollouts(limit=0, worker_id="w")
        finally:
            current_request_key.reset(with_key)
        assert [one.input for one in found] == [one.input for one in claimed]
        assert len(found) == limit
    await store.close()


async def test_a_claim_is_made_again_under_the_key_of_one_that_was_given_back(mongo_uri, partition):
    store = MongoLightningStore(mongo_uri, partition_id=partition)
    await store.enqueue_rollout("x")
    with_key = current_request_key.set("k")
    try:
        (first,) = await store.dequeue_many_rollouts(limit=1, worker_id="w")
        await store.return_claim(first.rollout_id, first.attempt.attempt_id)
        (second,) = await store.dequeue_many_rollouts(limit=1, worker_id="w")
    finally:
        current_request_key.reset(with_key)
    assert (second.rollout_id, second.status) == (first.rollout_id, "preparing")
    assert second.attempt.status == "preparing"
    await store.close()
