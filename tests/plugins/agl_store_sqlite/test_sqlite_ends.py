"""`rollout_ended` of writes that share a transaction which is rolled back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from agl_core.errors import InvalidArgumentError, StoreFullError
from agl_core.plugins import add_listener, flush_listeners, hookimpl, remove_listener
from agl_store_sqlite import SqliteLightningStore


class Ends:
    def __init__(self) -> None:
        self._heard: list[tuple[str, str]] = []

    @hookimpl
    def rollout_ended(self, rollout: Any) -> None:
        self._heard.append((rollout.rollout_id, rollout.status))

    def heard(self) -> list[tuple[str, str]]:
        flush_listeners()
        return self._heard


@pytest.fixture
def ends():
    ends = Ends()
    name = add_listener(ends)
    yield ends
    remove_listener(name)


@pytest_asyncio.fixture
async def store(tmp_path):
    store = SqliteLightningStore(tmp_path / "store.db", durability="normal")
    yield store
    await store.close()


async def in_one_group(store: Any, *starts: Callable[[], Any]) -> list[Any]:
    """Run writes in one transaction: they are submitted while the writer is busy."""
    writer = store._sqlite.database.writer
    busy = threading.Event()

    def wait_for_the_others(tx: Any) -> None:
        busy.set()
        while writer._inbox.qsize() < len(starts):
            pass  # the main thread submits them; they take a millisecond

    first = asyncio.ensure_future(writer.write(wait_for_the_others))
    await asyncio.to_thread(busy.wait)
    results = await asyncio.gather(*(start() for start in starts), return_exceptions=True)
    await first
    return results


async def test_a_group_that_is_run_again_one_by_one_sends_one_end(store, ends):
    started = await store.start_rollout("x")
    ids = started.rollout_id, started.attempt.attempt_id

    def change_and_fail(tx: Any) -> None:
        tx.execute("UPDATE rollouts SET status = status")
        raise InvalidArgumentError("after a change")

    attempt, failure = await in_one_group(
        store,
        lambda: store.update_attempt(*ids, status="succeeded"),
        lambda: store._sqlite.database.writer.write(change_and_fail),
    )
    assert attempt.status == "succeeded"
    assert isinstance(failure, InvalidArgumentError)
    assert ends.heard() == [(started.rollout_id, "succeeded")]


async def test_a_full_disk_ends_nothing(store, ends):
    started = await store.start_rollout("x")
    ids = started.rollout_id, started.attempt.attempt_id
    writer = store._sqlite.database.writer
    (pages,) = await writer.write(lambda tx: tx.one("PRAGMA page_count"))
    await writer.write(lambda tx: tx.one(f"PRAGMA max_page_count = {pages}") and None)
    results = await in_one_group(
        store,
        lambda: store.update_attempt(*ids, status="succeeded"),
        lambda: store.enqueue_rollout("z" * 5_000_000),
    )
    assert [type(result) for result in results] == [StoreFullError, StoreFullError]
    assert ends.heard() == []
    assert (await store.get_rollout_by_id(started.rollout_id)).status == "preparing"
    await store.update_attempt(*ids, status="succeeded")
    assert ends.heard() == [(started.rollout_id, "succeeded")]
