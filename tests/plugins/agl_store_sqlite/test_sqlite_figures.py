"""Rewards and durations in files of an older schema, and in restored records."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from agl_store_kit import Record
from agl_store_sqlite import SqliteLightningStore
from agl_testing.samples import span_of

_OLDER = """
DROP INDEX rollouts_mode;
DROP INDEX rollouts_reward;
DROP INDEX rollouts_duration;
DROP INDEX rollouts_status;
CREATE INDEX rollouts_status ON rollouts (status, start_time DESC);
ALTER TABLE rollouts DROP COLUMN reward;
ALTER TABLE rollouts DROP COLUMN duration;
PRAGMA user_version = 4;
"""


async def fill(store: SqliteLightningStore) -> dict[str, str]:
    """Store three finished rollouts and one without a reward; return their names by id."""
    names: dict[str, str] = {}
    for name, reward in (("a", 0.25), ("b", -3), ("none", "broken"), ("c", 1.5)):
        claimed = await store.start_rollout(name)
        names[claimed.rollout_id] = name
        both: list[Any] = [{"other": 1}, {"agentlightning.reward.0.value": reward}]
        for number, value in enumerate(both, 1):
            span = span_of(claimed, number, name="agentlightning.annotation", attributes=value)
            await store.add_span(span)
        await store.update_attempt(*_ids(claimed), status="succeeded")
    return names


def _ids(claimed: Any) -> tuple[str, str]:
    return claimed.rollout_id, claimed.attempt.attempt_id


async def sorted_names(store: SqliteLightningStore, names: dict[str, str], by: str) -> list[str]:
    page = await store.query_rollouts(sort_by=by, sort_order="desc")
    return [names[rollout.rollout_id] for rollout in page]


async def test_a_file_of_schema_4_gets_the_figures_of_what_it_holds(tmp_path: Path):
    path = tmp_path / "store.db"
    store = SqliteLightningStore(path)
    names = await fill(store)
    by_duration = await sorted_names(store, names, "duration")
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.executescript(_OLDER)
    connection.close()
    migrated = SqliteLightningStore(path)
    assert await sorted_names(migrated, names, "reward") == ["c", "a", "b", "none"]
    assert await sorted_names(migrated, names, "duration") == by_duration
    await migrated.close()


async def test_restored_rollouts_are_sorted_as_before(tmp_path: Path):
    store = SqliteLightningStore(tmp_path / "store.db")
    names = await fill(store)
    by_duration = await sorted_names(store, names, "duration")
    records: list[Record] = []
    for rollout in await store.query_rollouts():
        plain = rollout.model_dump_json(exclude={"attempt"}).encode()
        records.append(Record("rollout", plain))
        attempts = await store.query_attempts(rollout.rollout_id)
        records += [Record("attempt", each.model_dump_json().encode()) for each in attempts]
        spans = await store.query_encoded_spans(rollout.rollout_id)
        records += [Record("span", span.payload) for span in spans]
    await store.close()
    restored = SqliteLightningStore(tmp_path / "restored.db")
    await restored.restore(records)
    assert await sorted_names(restored, names, "reward") == ["c", "a", "b", "none"]
    assert await sorted_names(restored, names, "duration") == by_duration
    await restored.close()
