"""What full durability promises: nothing is called done before it is on the disk."""

import asyncio
import errno
import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from agl_core.errors import StoreDataError
from agl_store_sqlite import SqliteLightningStore, wal


class Disk:
    """Stands before the system's sync: it can hold it up, make it fail, and keep what it leaves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = wal._sync
        self.syncs = 0
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.seconds = 0.0
        self.threads: set[int] = set()
        self.fails = False
        self.after = lambda: None
        monkeypatch.setattr(wal, "_sync", self.sync)

    def sync(self, file: int) -> None:
        self.reached.set()
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)  # what a slow disk does
        assert self.open.wait(30)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._real(file)
        self.syncs += 1
        self.after()


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


async def test_a_write_is_done_once_it_is_synced_and_those_behind_it_share_the_next(tmp_path, disk):
    store = SqliteLightningStore(tmp_path / "store.db")
    other = SqliteLightningStore(tmp_path / "store.db", durability="normal")
    events = other.events()
    news = asyncio.ensure_future(anext(events))
    disk.seconds = 0.1
    await store.add_resources({})  # from now on this disk is a slow one
    disk.seconds = 0.0
    assert (await asyncio.wait_for(news, 10)).kind == "resources"
    news = asyncio.ensure_future(anext(events))
    disk.open.clear()
    disk.reached.clear()
    first = asyncio.ensure_future(store.enqueue_rollout("first"))
    assert await asyncio.to_thread(disk.reached.wait, 10)
    more = [asyncio.ensure_future(store.enqueue_rollout(number)) for number in range(20)]
    done, _ = await asyncio.wait([first, *more, news], timeout=0.3)
    assert done == set()
    synced = disk.syncs
    disk.open.set()
    await asyncio.gather(first, *more)
    assert disk.syncs == synced + 2
    assert (await asyncio.wait_for(news, 10)).kind == "rollout"
    await events.aclose()
    await store.close()
    await other.close()


async def test_a_slow_disk_holds_up_no_event_loop_but_to_see_if_it_still_is(tmp_path, disk):
    store = SqliteLightningStore(tmp_path / "store.db")
    disk.seconds = 0.02
    await store.enqueue_rollout("first")
    assert disk.threads == {threading.get_ident()}
    disk.threads.clear()
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        await store.enqueue_rollout("slow")
    assert threading.get_ident() not in disk.threads
    while threading.get_ident() not in disk.threads:
        await store.enqueue_rollout("until it looks again")
    disk.seconds = 0.0
    await store.close()


async def test_a_loop_syncs_nothing_while_another_process_has_the_file(tmp_path, disk):
    store = SqliteLightningStore(tmp_path / "store.db")
    other = SqliteLightningStore(tmp_path / "store.db")
    for number in range(5):
        await store.enqueue_rollout(number)
    assert disk.syncs == 5
    assert threading.get_ident() not in disk.threads
    await other.close()
    await store.enqueue_rollout("alone again")
    assert threading.get_ident() in disk.threads
    await store.close()


async def test_what_was_done_is_what_power_loss_leaves(tmp_path, disk):
    path = tmp_path / "store.db"
    store = SqliteLightningStore(path)
    kept: list[str] = []
    acknowledged: list[int] = []

    def keep() -> None:
        # Whoever is told of a write is told after this.
        folder = tmp_path / f"disk-{len(acknowledged)}"
        folder.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", folder / f"store.db{suffix}")
        acknowledged.append(len(kept))

    disk.after = keep

    async def write(writer: int) -> None:
        for number in range(12):
            rollout = await store.enqueue_rollout([writer, number])
            kept.append(rollout.rollout_id)

    await asyncio.gather(*(write(writer) for writer in range(6)))
    disk.after = lambda: None
    await store.close()
    assert len(kept) == 72
    assert len(acknowledged) >= 12
    for number, told in enumerate([*acknowledged[1:], len(kept)]):
        # Told before the next sync began, so in what this one left.
        left = SqliteLightningStore(tmp_path / f"disk-{number}" / "store.db")
        found = {rollout.rollout_id for rollout in await left.query_rollouts()}
        assert set(kept[:told]) <= found
        await left.close()


async def test_a_failed_sync_is_named_and_nothing_is_called_done_after_it(tmp_path, disk):
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


async def test_the_log_of_a_linked_file_is_the_one_synced(tmp_path, disk):
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


async def test_heartbeats_and_drawn_ids_wait_for_no_disk_and_are_on_it_with_the_next_write(
    tmp_path, disk
):
    store = SqliteLightningStore(tmp_path / "store.db")
    started = await store.start_rollout("x")
    ids = started.rollout_id, started.attempt.attempt_id
    assert disk.syncs == 1
    disk.fails = True  # which nobody notices
    await store.update_worker("w", {"cpu": 1})
    assert await store.get_next_span_sequence_id(*ids) == 1
    disk.fails = False
    await store.update_attempt(*ids, status="running")
    assert disk.syncs == 2
    await store.close()


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(32)


async def test_a_long_log_is_copied_beside_the_writes_and_begun_anew(tmp_path):
    path = tmp_path / "store.db"
    store = SqliteLightningStore(path, durability="normal")
    text = "x" * 100_000
    written: set[str] = set()

    def salts() -> bytes:
        return _beginning(tmp_path / "store.db-wal")[16:24]  # new ones when it begins anew

    async def write() -> None:
        while salts() == first:
            assert len(written) < 10_000
            written.add((await store.enqueue_rollout(text)).rollout_id)

    written.add((await store.enqueue_rollout(text)).rollout_id)
    first = salts()
    await asyncio.gather(*(write() for _ in range(4)))
    assert len(written) * len(text) > 16e6
    assert path.stat().st_size > 16e6
    await store.close()
    again = SqliteLightningStore(path)
    assert {rollout.rollout_id for rollout in await again.query_rollouts()} == written
    await again.close()
