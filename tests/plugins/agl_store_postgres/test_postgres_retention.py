"""Partitions of spans, and retention by dropping them."""

import asyncio
import time

import pytest
import pytest_asyncio

from agl_store_postgres import PostgresLightningStore, maintenance, schema as tables
from agl_testing.samples import span_of


@pytest_asyncio.fixture
async def store(server, schema, monkeypatch):
    for module in (tables, maintenance):
        monkeypatch.setattr(module, "ROLLOUTS_PER_PARTITION", 10)
    store = PostgresLightningStore(server.uri, schema_name=schema)
    yield store
    await store.close()


async def finish(store, count):
    """Run rollouts with two spans each, and return their ids."""
    ids = []
    for number in range(count):
        started = await store.start_rollout(number, worker_id="w")
        await store.add_many_spans([span_of(started, 1), span_of(started, 2)])
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        ids.append(started.rollout_id)
    return ids


def partitions(server, schema):
    rows = server.run(
        "SELECT c.oid::regclass::text, c.relfilenode FROM pg_inherits i "
        "JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = %s::regclass ORDER BY c.oid",
        f"{schema}.spans",
    )
    return [name.rpartition("_")[2] for name, _ in rows]


async def test_old_rollouts_go_with_their_partitions(store, server, schema):
    ids = await finish(store, 34)  # ordinals 1 to 34
    assert partitions(server, schema) == ["0", "1", "2", "3"]
    dropped = await store.vacuum(keep_last=10)
    assert dropped == 24
    assert partitions(server, schema) == ["2", "3"]  # 0 and 1 went whole
    assert [r.rollout_id for r in await store.query_rollouts()] == ids[24:]
    assert len(await store.query_spans(ids[24])) == 2
    assert list(await store.query_spans(ids[23])) == []
    statistics = await store.statistics()
    assert (statistics.get("total_rollouts"), statistics.get("total_spans")) == (10, 20)
    # The table of the last partition stays, since new rollouts come into it.
    assert await store.vacuum(ended_before=time.time()) == 10
    assert partitions(server, schema) == ["3"]
    assert len(await finish(store, 8)) == 8
    assert partitions(server, schema) == ["3", "4"]


async def test_what_is_unfinished_or_younger_is_kept(store, server, schema):
    running = await store.start_rollout("runs")
    await store.add_span(span_of(running))
    old = await finish(store, 12)
    between = time.time()
    young = await finish(store, 12)
    assert await store.vacuum() == 0
    assert await store.vacuum(ended_before=between) == 12
    left = [r.rollout_id for r in await store.query_rollouts()]
    assert left == [running.rollout_id, *young]
    assert partitions(server, schema) == ["0", "1", "2"]  # the first holds one that runs
    assert len(await store.query_spans(running.rollout_id)) == 1
    assert list(await store.query_spans(old[0])) == []


async def test_writers_go_on_while_partitions_are_dropped(store, server, schema):
    await finish(store, 30)
    other = PostgresLightningStore(server.uri, schema_name=schema)
    writing = asyncio.ensure_future(finish(other, 40))
    dropped = 0
    while not writing.done():
        dropped += await store.vacuum(keep_last=15)
    ids = await writing
    dropped += await store.vacuum(keep_last=15)
    assert dropped == 55
    assert [r.rollout_id for r in await store.query_rollouts()] == ids[25:]
    for rollout_id in ids[25:]:
        assert len(await store.query_spans(rollout_id)) == 2
    await other.close()


async def test_a_query_of_one_rollout_reads_one_partition(store, server, schema):
    ids = await finish(store, 25)
    (ordinal,) = server.run(f"SELECT ordinal FROM {schema}.rollouts WHERE rollout_id = %s", ids[12])
    plan = server.run(
        f"EXPLAIN SELECT * FROM {schema}.spans WHERE rollout = {ordinal[0]} ORDER BY sequence_id"
    )
    text = "\n".join(line for (line,) in plan)
    assert "spans_1" in text
    assert "spans_0" not in text
    assert "spans_2" not in text


async def test_the_spans_of_a_rollout_are_neighbours_in_the_table(store, server, schema):
    started = [await store.start_rollout(number) for number in range(9)]
    # The rollouts' spans come interleaved, as from a server with many runners.
    spans = [span_of(each, number) for number in range(200) for each in started]
    stored = await store.add_many_spans(spans)
    assert list(stored) == spans
    pages = server.run(
        "SELECT count(DISTINCT (ctid::text::point)[0]), count(*) "
        f"FROM {schema}.spans WHERE rollout = (SELECT min(rollout) + 1 FROM {schema}.spans)"
    )
    assert pages[0][1] == 200
    assert pages[0][0] <= 200 * 1000 / 8192 + 2  # a span takes less than 1 kB
    assert list(await store.query_spans(started[4].rollout_id)) == spans[4::9]


@pytest.mark.parametrize("rows", [1, 15, 16, 40])
async def test_batches_by_statements_and_by_copy_store_the_same(store, rows):
    started = await store.start_rollout("x")
    spans = [span_of(started, number) for number in range(rows)]
    assert list(await store.add_many_spans(spans)) == spans
    assert list(await store.query_spans(started.rollout_id)) == spans
    new = span_of(started, rows)
    assert list(await store.add_many_spans([*spans, new])) == [new]
