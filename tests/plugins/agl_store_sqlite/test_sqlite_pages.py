"""A page of rollouts takes as long however many there are, or match."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agl_core.store.filters import Page
from agl_core.types import EnqueueRolloutRequest
from agl_store_sqlite import SqliteLightningStore
from agl_store_sqlite.queries import find_rollouts
from agl_store_sqlite.tables import Tables

NEWEST = Page("start_time", "desc", 20, 0)


async def file_of(path: Path, batches: int) -> Path:
    """Write a file of batches of 50 rollouts, four fifths of them claimed."""
    store = SqliteLightningStore(path, durability="normal")
    for number in range(batches):
        batch = [EnqueueRolloutRequest(input=number)] * 50
        await store.enqueue_many_rollouts(batch)
        await store.dequeue_many_rollouts(limit=40)
    await store.close()
    return path


def steps_of(path: Path, **conditions: Any) -> int:
    """Return how many instructions SQLite runs for the newest page."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    connection = sqlite3.connect(path)
    try:
        connection.set_progress_handler(step, 1)
        page = find_rollouts(Tables(connection), NEWEST, "and", **conditions)
    finally:
        connection.close()
    assert len(page) == 20 < page.total
    times = [rollout.start_time for rollout in page]
    assert times == sorted(times, reverse=True)
    return steps


@pytest.mark.parametrize("statuses", [None, ["preparing"], ["preparing", "running", "queuing"]])
async def test_the_newest_page_takes_no_longer_for_more_rollouts(tmp_path, statuses):
    few = await file_of(tmp_path / "few.db", 4)
    many = await file_of(tmp_path / "many.db", 60)
    conditions = {"status_in": statuses, "rollout_id_in": None, "rollout_id_contains": None}
    assert steps_of(many, **conditions) < 1.5 * steps_of(few, **conditions)
