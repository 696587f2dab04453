"""A page of rollouts costs the same for any number of rollouts and of matches."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agl_core.types import EnqueueRolloutRequest
from agl_store_kit import RolloutQuery
from agl_store_sqlite import SqliteLightningStore, queries
from agl_store_sqlite.queries import find_rollouts


async def file_of(path: Path, batches: int) -> Path:
    """Write a file of batches of 50 rollouts, four fifths of them claimed."""
    store = SqliteLightningStore(path, durability="normal")
    for number in range(batches):
        batch = [EnqueueRolloutRequest(input=number)] * 50
        await store.enqueue_many_rollouts(batch)
        await store.dequeue_many_rollouts(limit=40)
    await store.close()
    return path


def steps_of(path: Path, **filters: Any) -> int:
    """Return how many instructions SQLite runs for the newest page."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    query = RolloutQuery(sort_by="start_time", sort_order="desc", limit=20, **filters)
    connection = sqlite3.connect(path)
    try:
        connection.set_progress_handler(step, 1)
        records, total = find_rollouts(connection, query)
    finally:
        connection.close()
    assert len(records) == 20 < total
    times = [rollout.start_time for rollout, _ in records]
    assert times == sorted(times, reverse=True)
    return steps


@pytest.mark.parametrize("statuses", [None, ["preparing"], ["preparing", "running", "queuing"]])
async def test_the_newest_page_costs_the_same_for_more_rollouts(tmp_path, statuses):
    few = await file_of(tmp_path / "few.db", 4)
    many = await file_of(tmp_path / "many.db", 60)
    assert steps_of(many, status_in=statuses) < 1.5 * steps_of(few, status_in=statuses)


async def test_ids_are_looked_up_also_if_all_rollouts_have_the_status(tmp_path):
    steps: list[int] = []
    for batches in (4, 60):
        path = await file_of(tmp_path / f"{batches}.db", batches)
        with closing(sqlite3.connect(path)) as connection:
            claimed = "SELECT rollout_id FROM rollouts WHERE status = 'preparing' LIMIT 30"
            found = connection.execute(claimed).fetchall()
        ids = [rollout_id for (rollout_id,) in found]
        steps.append(steps_of(path, status_in=["preparing"], rollout_id_in=ids))
    assert steps[1] < 1.5 * steps[0]


@pytest.mark.parametrize(
    ("query", "is_quick"),
    [
        ({"sort_by": "start_time"}, True),
        ({"sort_by": "start_time", "sort_order": "desc", "status_in": ["running"]}, True),
        ({"sort_by": "end_time", "rollout_id_in": ["a", "b"]}, True),
        ({"sort_by": "end_time"}, False),
        ({"sort_by": "start_time", "offset": 10_000}, False),
        ({"status_in": ["running"]}, False),
        ({"status_in": ["running"], "rollout_id_in": ["a"], "filter_logic": "or"}, False),
        ({"limit": -1}, False),
    ],
)
async def test_only_pages_that_indexes_lead_to_are_read_in_the_event_loop(
    tmp_path, monkeypatch, query, is_quick
):
    store = SqliteLightningStore(tmp_path / "store.db")
    readers: list[threading.Thread] = []

    def find(connection: sqlite3.Connection, query: RolloutQuery):
        readers.append(threading.current_thread())
        return find_rollouts(connection, query)

    monkeypatch.setattr(queries, "find_rollouts", find)
    await store.query_rollouts(**{"limit": 50} | query)
    assert [thread is threading.current_thread() for thread in readers] == [is_quick]
    await store.close()
