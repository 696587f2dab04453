"""Durability `full`: no write is acknowledged before it is on the disk."""

import asyncio
import errno
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from agl_core.errors import StoreDataError
from agl_store_sqlite import SqliteLightningStore, writer


class Disk:
    """Wraps the system's sync: it can block, fail, and call a function after each sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = writer._sync
        self.syncs = 0
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.threads: set[int] = set()
        self.fails = False
        self.after = lambda: None
        monkeypatch.setattr(writer, "_sync", self.sync)

    def sync(self, file: int) -> None:
        self.reached.set()
        self.threads.add(threading.get_ident())
        assert self.open.wait(30)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._real(file)
        self.syncs += 1
        self.after()


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


async def test_a_write_is_acknowledged_after_its_sync_and_waiting_writes_share_the_next_sync(
    tmp_path, disk
):
    store = SqliteLightningStore(tmp_path / "store.db")
    other = SqliteLightningStore(tmp_path / "store.db", durability="normal")
    events = other.events()
    event = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.1)  # until it listens
    await store.add_resources({})
    assert (await asyncio.wait_for(event, 10)).kind == "resources"
    event = asyncio.ensure_future(anext(events))
    disk.open.clear()
    disk.reached.clear()
    first = asyncio.ensure_future(store.enqueue_rollout("first"))
    assert await asyncio.to_thread(disk.reached.wait, 10)
    more = [asyncio.ensure_future(store.enqueue_rollout(number)) for number in range(20)]
    done, _ = await asyncio.wait([first, *more, event], timeout=0.3)
    assert done == set()
    synced = disk.syncs
    disk.open.set()
    await asyncio.gather(first, *more)
    assert disk.syncs == synced + 2
    assert (await asyncio.wait_for(event, 10)).kind == "rollout"
    await events.aclose()
    await store.close()
    await other.close()


async def test_a_slow_disk_blocks_no_event_loop(tmp_path, disk):
    store = SqliteLightningStore(tmp_path / "store.db")
    disk.open.clear()
    write = asyncio.ensure_future(store.enqueue_rollout("slow"))
    assert await asyncio.to_thread(disk.reached.wait, 10)
    await asyncio.wait_for(store.query_rollouts(limit=1), 10)
    assert not write.done()
    disk.open.set()
    await write
    assert threading.get_ident() not in disk.threads
    await store.close()


async def test_power_loss_after_a_sync_keeps_every_acknowledged_write(tmp_path, disk):
    path = tmp_path / "store.db"
    store = SqliteLightningStore(path)
    written: list[str] = []
    acknowledged: list[int] = []

    def copy_the_disk() -> None:
        # Runs before the callers of this sync's writes get their results.
        folder = tmp_path / f"disk-{len(acknowledged)}"
        folder.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", folder / f"store.db{suffix}")
        acknowledged.append(len(written))

    disk.after = copy_the_disk

    async def write(number: int) -> None:
        for index in range(12):
            rollout = await store.enqueue_rollout([number, index])
            written.append(rollout.rollout_id)

    await asyncio.gather(*(write(number) for number in range(6)))
    disk.after = lambda: None
    await store.close()
    assert len(written) == 72
    assert len(acknowledged) >= 12
    for number, told in enumerate([*acknowledged[1:], len(written)]):
        # These were acknowledged before the next sync began, so this sync must have kept them.
        left = SqliteLightningStore(tmp_path / f"disk-{number}" / "store.db")
        found = {rollout.rollout_id for rollout in await left.query_rollouts()}
        assert set(written[:told]) <= found
        await left.close()


async def test_after_a_failed_sync_no_write_is_acknowledged(tmp_path, disk):
    path = tmp_path / "store.db"
    store = SqliteLightningStore(path)
    kept = await store.enqueue_rollout("kept")
    disk.fails = True
    with pytest.raises(StoreDataError, match=r"store\.db: the disk cannot keep .*Input/output"):
        await store.enqueue_rollout("lost")
    disk.fails = False
    with pytest.raises(StoreDataError, match="open the store again"):
        await store.enqueue_rollout("after")
    assert (await store.get_rollout_by_id(kept.rollout_id)) == kept
    await store.close()
    again = SqliteLightningStore(path)
    assert (await again.enqueue_rollout("again")).status == "queuing"
    inputs = [rollout.input for rollout in await again.query_rollouts()]
    assert inputs[0] == "kept"
    assert "after" not in inputs
    assert inputs[-1] == "again"
    await again.close()


async def test_the_log_of_a_linked_file_is_synced(tmp_path, disk):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "there" / "store.db")
    store = SqliteLightningStore(link)
    await store.enqueue_rollout("x")
    assert disk.syncs == 1
    await store.close()
    assert not (tmp_path / "link.db-wal").exists()
    connection = sqlite3.connect(tmp_path / "there" / "store.db")
    assert connection.execute("SELECT count(*) FROM rollouts").fetchone() == (1,)
    connection.close()


async def test_heartbeats_and_drawn_ids_do_not_wait_for_the_disk(tmp_path, disk):
    store = SqliteLightningStore(tmp_path / "store.db")
    started = await store.start_rollout("x")
    ids = started.rollout_id, started.attempt.attempt_id
    assert disk.syncs == 1
    disk.fails = True  # not noticed, because nothing is synced
    await store.update_worker("w", {"cpu": 1})
    assert await store.get_next_span_sequence_id(*ids) == 1
    disk.fails = False
    await store.update_attempt(*ids, status="running")
    assert disk.syncs == 2
    await store.close()


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(32)


async def test_a_long_log_is_copied_into_the_file_and_replaced(tmp_path):
    path = tmp_path / "store.db"
    store = SqliteLightningStore(path, durability="normal")
    text = "x" * 100_000
    written: set[str] = set()

    def salts() -> bytes:
        return _header(tmp_path / "store.db-wal")[16:24]  # SQLite changes them with each new log

    async def write() -> None:
        while salts() == first:
            assert len(written) < 10_000
            written.add((await store.enqueue_rollout(text)).rollout_id)

    written.add((await store.enqueue_rollout(text)).rollout_id)
    first = salts()
    await asyncio.gather(*(write() for _ in range(4)))
    # A log of 4000 pages holds at least 128 such rollouts: each takes 25 pages for the text, and up
    # to 6 for the rows and indexes.
    assert len(written) * len(text) > 12e6
    assert path.stat().st_size > 12e6
    await store.close()
    again = SqliteLightningStore(path)
    assert {rollout.rollout_id for rollout in await again.query_rollouts()} == written
    await again.close()
