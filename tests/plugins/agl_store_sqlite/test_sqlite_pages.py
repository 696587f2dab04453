"""A page of rollouts costs the same for any number of rollouts and of matches."""

import sqlite3
from pathlib import Path

import pytest

from agl_core.types import EnqueueRolloutRequest
from agl_store_kit import RolloutQuery
from agl_store_sqlite import SqliteLightningStore
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


def steps_of(path: Path, statuses: list[str] | None) -> int:
    """Return how many instructions SQLite runs for the newest page."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    query = RolloutQuery(sort_by="start_time", sort_order="desc", limit=20, status_in=statuses)
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
    assert steps_of(many, statuses) < 1.5 * steps_of(few, statuses)
