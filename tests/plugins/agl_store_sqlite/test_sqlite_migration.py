"""Migrations of files of older schemas: each happens as a whole or not at all."""

import sqlite3

import pytest

from agl_core.store import encode_span
from agl_core.types import AttemptedRollout, Span
from agl_store_kit.rows import encode
from agl_store_memory import InMemoryLightningStore
from agl_store_sqlite import SqliteLightningStore, schema
from agl_testing.samples import span_of


def ask(path, statement):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


SPAN_FIELDS = (
    "attempt_id",
    "sequence_id",
    "trace_id",
    "span_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
    "payload",
)


def insert(connection: sqlite3.Connection, table: str, **columns: object) -> None:
    marks = ", ".join("?" * len(columns))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
    )


async def old_file(path, monkeypatch) -> tuple[list[AttemptedRollout], dict[str, list[Span]]]:
    """Write a file of version 1, whose spans are in the order of arrival."""
    connection = sqlite3.connect(path, isolation_level=None)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_MIGRATIONS", schema._MIGRATIONS[:1])
        patch.setattr(schema, "SCHEMA_VERSION", 1)
        schema.migrate(connection, str(path))
    memory = InMemoryLightningStore()
    started = [await memory.start_rollout(number, worker_id="w") for number in range(3)]
    spans: dict[str, list[Span]] = {item.rollout_id: [] for item in started}
    connection.execute("BEGIN")
    for item in started:
        row = item.model_dump(exclude={"attempt"})
        packed = {name: encode(name, row[name]) for name in ("input", "config", "metadata")}
        insert(connection, "rollouts", **{**row, **packed, "attempts": 1})
        row = item.attempt.model_dump()
        insert(connection, "attempts", **{**row, "metadata": encode("metadata", row["metadata"])})
        insert(connection, "sequence_ids", rollout_id=item.rollout_id, last=7)
    for number in (4, 2, 3, 1):
        for rollout, item in enumerate(started, 1):
            span = span_of(item, number)
            spans[item.rollout_id].append(span)
            encoded = encode_span(span)
            columns = {name: getattr(encoded, name) for name in SPAN_FIELDS}
            insert(connection, "spans", rollout=rollout, **columns)
    connection.execute("UPDATE counters SET value = 12 WHERE name = 'spans'")
    connection.execute("COMMIT")
    connection.close()
    return started, spans


async def test_a_file_of_version_1_keeps_its_spans_and_their_order(tmp_path, monkeypatch, caplog):
    path = tmp_path / "store.db"
    started, spans = await old_file(path, monkeypatch)
    assert ask(path, "PRAGMA user_version") == [(1,)]
    store = SqliteLightningStore(path)
    assert "schema version 1" in caplog.text
    assert ask(path, "PRAGMA user_version") == [(schema.SCHEMA_VERSION,)]
    rollout_ids = [item.rollout_id for item in started]
    for rollout_id in rollout_ids:
        came = list(await store.query_spans(rollout_id, sort_by=None))
        assert came == spans[rollout_id]
        by_number = list(await store.query_spans(rollout_id))
        assert [span.sequence_id for span in by_number] == [1, 2, 3, 4]
    assert list(await store.query_rollouts()) == started
    assert (await store.query_rollouts(status_in=["preparing"], limit=1)).total == 3
    assert [await store.get_latest_attempt(item.rollout_id) for item in started] == [
        item.attempt for item in started
    ]
    ids = started[1].rollout_id, started[1].attempt.attempt_id
    assert await store.get_next_span_sequence_id(*ids) == 8
    assert (await store.update_attempt(*ids, status="succeeded")).status == "succeeded"
    assert (
        list(await store.add_many_spans(spans[rollout_ids[0]])) == []
    )  # stored ones are still duplicates
    new = spans[rollout_ids[0]][0].model_copy(update={"span_id": "f" * 16, "sequence_id": 5})
    assert await store.add_span(new) == new
    assert list(await store.query_spans(rollout_ids[0], sort_by=None))[-1] == new
    assert (await store.statistics()).get("total_spans") == 13
    await store.close()
    # The spans of a rollout are neighbours.
    lying = [rollout for (rollout,) in ask(path, "SELECT rollout FROM spans ORDER BY ordinal")]
    assert lying == [1] * 5 + [2] * 4 + [3] * 4


async def test_a_failed_migration_does_not_change_the_file(tmp_path, monkeypatch):
    path = tmp_path / "store.db"
    await old_file(path, monkeypatch)
    before = ask(path, "SELECT * FROM spans")
    with monkeypatch.context() as patch:
        broken = (*schema._MIGRATIONS[:1], schema._MIGRATIONS[1] + "; SELECT nonsense()")
        patch.setattr(schema, "_MIGRATIONS", broken)
        with pytest.raises(Exception, match="nonsense"):
            SqliteLightningStore(path)
    assert ask(path, "PRAGMA user_version") == [(1,)]
    assert ask(path, "SELECT * FROM spans") == before
    store = SqliteLightningStore(path)
    assert (await store.statistics()).get("total_spans") == 12
    await store.close()
