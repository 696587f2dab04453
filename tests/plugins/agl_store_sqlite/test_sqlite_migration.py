"""A file of an older schema becomes one of this version's, as a whole or not at all."""

import sqlite3

import pytest

from agl_core.store import encode_span
from agl_core.types import Span
from agl_store_sqlite import SqliteLightningStore, schema
from agl_testing.samples import span_of


def ask(path, statement):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


async def old_file(path, monkeypatch) -> tuple[list[str], dict[str, list[Span]]]:
    """Write a file of version 1, whose spans lie in the order they came in."""
    monkeypatch.setattr(schema, "_MIGRATIONS", schema._MIGRATIONS[:1])
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 1)
    store = SqliteLightningStore(path)
    started = [await store.start_rollout(number) for number in range(3)]
    await store.close()
    monkeypatch.undo()
    connection = sqlite3.connect(path)
    spans: dict[str, list[Span]] = {item.rollout_id: [] for item in started}
    for number in (4, 2, 3, 1):
        for rollout, item in enumerate(started, 1):
            span = span_of(item, number)
            spans[item.rollout_id].append(span)
            encoded = encode_span(span)
            values = (rollout, *(getattr(encoded, name) for name in SPAN_FIELDS))
            connection.execute(
                f"INSERT INTO spans (rollout, {', '.join(SPAN_FIELDS)}) "
                f"VALUES (?{', ?' * len(SPAN_FIELDS)})",
                values,
            )
    connection.execute("UPDATE counters SET value = 12 WHERE name = 'spans'")
    connection.commit()
    connection.close()
    return [item.rollout_id for item in started], spans


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


async def test_a_file_of_version_1_keeps_its_spans_and_their_order(tmp_path, monkeypatch, caplog):
    path = tmp_path / "store.db"
    rollout_ids, spans = await old_file(path, monkeypatch)
    assert ask(path, "PRAGMA user_version") == [(1,)]
    store = SqliteLightningStore(path)
    assert "schema version 1" in caplog.text
    assert ask(path, "PRAGMA user_version") == [(schema.SCHEMA_VERSION,)]
    for rollout_id in rollout_ids:
        came = list(await store.query_spans(rollout_id, sort_by=None))
        assert came == spans[rollout_id]
        by_number = list(await store.query_spans(rollout_id))
        assert [span.sequence_id for span in by_number] == [1, 2, 3, 4]
    latest = await store.get_latest_attempt(rollout_ids[0])
    assert latest is not None
    assert list(await store.add_many_spans(spans[rollout_ids[0]])) == []  # known ones stay known
    new = spans[rollout_ids[0]][0].model_copy(update={"span_id": "f" * 16, "sequence_id": 5})
    assert await store.add_span(new) == new
    assert list(await store.query_spans(rollout_ids[0], sort_by=None))[-1] == new
    assert (await store.statistics()).get("total_spans") == 13
    await store.close()
    # A rollout's spans lie together.
    lying = [rollout for (rollout,) in ask(path, "SELECT rollout FROM spans ORDER BY ordinal")]
    assert lying == [1] * 5 + [2] * 4 + [3] * 4


async def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
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
