"""Two stores of one file see each other's writes, and wake each other's callers."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from agl_core.errors import InvalidArgumentError, RolloutNotFoundError, StoreDataError
from agl_core.store import current_request_key
from agl_store_sqlite import SqliteLightningStore, remote
from agl_testing.samples import span_of


@pytest.fixture
async def stores(tmp_path):
    """Two stores of one file, each with connections of its own."""
    here, there = (
        SqliteLightningStore(tmp_path / "store.db", durability="normal") for _ in range(2)
    )
    yield here, there
    await here.close()
    await there.close()


def peers(store: SqliteLightningStore) -> list[int]:
    """Return the ports of the processes that are registered as waiting."""
    with closing(sqlite3.connect(store.path)) as connection:
        return [port for (port,) in connection.execute("SELECT port FROM peers")]


def port_of(store: SqliteLightningStore) -> int:
    return store._sqlite.database.remote._port


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_write_sees_what_another_connection_wrote(stores):
    here, there = stores
    started = await here.start_rollout("x", worker_id="w")
    await here.add_span(span_of(started, 1))
    await there.update_worker("w", {"cpu": 0.5})
    await there.add_span(span_of(started, 2))
    await there.update_attempt(
        started.rollout_id, started.attempt.attempt_id, status="failed", metadata={"why": "there"}
    )
    await here.add_span(span_of(started, 3))
    attempt = await here.get_latest_attempt(started.rollout_id)
    assert attempt is not None
    assert (attempt.status, attempt.metadata) == ("failed", {"why": "there"})
    stored = await there.query_spans(started.rollout_id, sort_by=None)
    assert [span.sequence_id for span in stored] == [1, 2, 3]
    assert await here.get_next_span_sequence_id(started.rollout_id, "") == 4
    worker = await here.update_worker("w")
    assert (worker.status, worker.heartbeat_stats) == ("idle", {"cpu": 0.5})


async def test_rollouts_that_another_store_dropped_are_not_found(stores):
    here, there = stores
    started = await here.start_rollout("x")
    await here.add_span(span_of(started, 1))
    await here.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")
    await here.add_span(span_of(started, 2))
    assert await there.vacuum(keep_last=0) == 1
    with pytest.raises(RolloutNotFoundError):
        await here.add_span(span_of(started, 3))


async def finished(store: SqliteLightningStore, megabytes: int) -> None:
    """Store finished rollouts of this size."""
    for _ in range(megabytes):
        started = await store.start_rollout("x" * 1_000_000)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")


@pytest.mark.skipif(os.name == "nt", reason="stores do not see each other there")
async def test_a_file_that_another_store_has_open_keeps_its_size(stores, caplog):
    here, there = stores
    await finished(here, 4)
    assert await here.vacuum(keep_last=0) == 4
    assert f"{here.path} keeps its size, since another store has it open" in caplog.text
    await finished(there, 4)  # in the space of the others
    assert Path(here.path).stat().st_size < 7_000_000
    await there.close()
    caplog.clear()
    assert await here.vacuum(keep_last=0) == 4
    assert caplog.text == ""
    assert Path(here.path).stat().st_size < 500_000


async def test_a_stores_own_writes_wait_while_the_file_shrinks(tmp_path):
    store = SqliteLightningStore(tmp_path / "store.db", durability="normal", busy_seconds=0.01)
    await finished(store, 20)
    shrinking = asyncio.ensure_future(store.vacuum())
    written = 0
    while not shrinking.done():
        await store.enqueue_rollout("x")
        written += 1
    assert await shrinking == 0
    assert (await store.statistics()).get("total_rollouts") == 20 + written
    await store.close()
    with pytest.raises(StoreDataError, match="closed"):
        await store.vacuum()


@pytest.mark.skipif(os.name == "nt", reason="stores do not see each other there")
async def test_opening_a_file_waits_while_another_store_shrinks_it(tmp_path, caplog):
    here = SqliteLightningStore(tmp_path / "store.db")
    with here._sqlite.database.writer.alone() as alone:
        assert alone
        opening = asyncio.ensure_future(asyncio.to_thread(lambda: SqliteLightningStore(here.path)))
        await until(lambda: "is being shrunk by another store" in caplog.text)
        assert not opening.done()
    there = await asyncio.wait_for(opening, 20)
    await there.enqueue_rollout("x")
    await there.close()
    await here.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss")
async def test_shrinking_a_file_takes_little_memory(tmp_path):
    code = f"""
        import asyncio, resource
        from agl_core.types import EnqueueRolloutRequest
        from agl_store_sqlite import SqliteLightningStore

        def kilobytes():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def main():
            store = SqliteLightningStore({str(tmp_path / "store.db")!r}, durability="normal")
            for _ in range(8):
                requests = [EnqueueRolloutRequest(input="x" * 1_000_000)] * 10
                await store.enqueue_many_rollouts(requests)
            before = kilobytes()
            await store.vacuum()
            print(kilobytes() - before)
            await store.close()

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert int(done.stdout) < 72_000, done.stderr


async def test_a_write_that_was_rolled_back_changes_nothing(stores):
    here, _ = stores
    started = await here.start_rollout("x", worker_id="w")
    await here.add_span(span_of(started, 1))
    key = started.rollout_id, started.attempt.attempt_id

    def fail(tx):
        worker = tx.find_worker("w")
        tx.change_worker(worker, worker.model_copy(update={"status": "unknown"}))
        raise InvalidArgumentError("after writing")

    with pytest.raises(InvalidArgumentError):
        await here._sqlite.database.writer.write(fail)
    assert (await here.update_attempt(*key)).status == "running"
    assert (await here.update_worker("w")).status == "busy"


async def test_changing_a_returned_record_changes_nothing_stored(stores):
    here, _ = stores
    started = await here.start_rollout("x", worker_id="w")
    key = started.rollout_id, started.attempt.attempt_id
    worker = await here.update_worker("w", {"gpu": [1, 2]})
    worker.heartbeat_stats["gpu"].append(3)
    worker.status = "unknown"
    attempt = await here.update_attempt(*key, status="running")
    attempt.status = "failed"
    assert (await here.update_worker("w")).heartbeat_stats == {"gpu": [1, 2]}
    assert (await here.update_attempt(*key)).status == "running"


async def test_a_waiting_claim_gets_what_another_process_enqueues(tmp_path):
    store = SqliteLightningStore(tmp_path / "store.db", durability="normal")
    code = f"""
        import asyncio, sys, time
        from agl_store_sqlite import SqliteLightningStore

        async def main():
            store = SqliteLightningStore({store.path!r}, durability="normal")
            for _ in range(5):
                sys.stdin.readline()
                print(time.time(), (await store.enqueue_rollout("x")).rollout_id, flush=True)
            await store.close()

        asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    delays: list[float] = []
    for _ in range(5):
        claim = asyncio.ensure_future(store.dequeue_rollout("w", wait=30))
        await until(lambda: store._waiters._asleep)
        process.stdin.write("\n")
        process.stdin.flush()
        enqueued, rollout_id = (await asyncio.to_thread(process.stdout.readline)).split()
        claimed = await claim
        delays.append(time.time() - float(enqueued))
        assert claimed is not None
        assert claimed.rollout_id == rollout_id
    assert process.wait() == 0
    process.stdin.close()
    process.stdout.close()
    # The fallback, a look every second, would take half a second on average.
    assert min(delays) < 0.3, delays
    await store.close()


async def test_a_repeated_status_does_not_run_a_rollout_again(stores):
    here, there = stores
    started = await here.start_rollout("x")

    async def requeue(store):
        token = current_request_key.set("k1")
        rollout = await store.update_rollout(started.rollout_id, status="requeuing")
        current_request_key.reset(token)
        return rollout.status

    assert await requeue(here) == "requeuing"
    assert await here.dequeue_rollout("w") is not None
    assert await requeue(there) == "preparing"  # the reply was lost
    assert await there.dequeue_rollout("w2") is None
    await there.update_rollout(started.rollout_id, status="requeuing")  # another call
    assert await there.dequeue_rollout("w2") is not None


async def test_a_lost_datagram_delays_a_waiting_claim_by_a_second(stores, monkeypatch):
    here, there = stores
    claim = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await until(lambda: peers(here))
    monkeypatch.setattr(there._sqlite.database.remote, "_socket", _Deaf())
    rollout = await there.enqueue_rollout("x")
    claimed = await asyncio.wait_for(claim, 10)
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id
    monkeypatch.undo()


class _Deaf:
    def sendto(self, data: bytes, address: tuple[str, int]) -> None:
        raise OSError("no loopback")


async def test_changes_are_logged_only_for_waiting_processes(stores):
    here, there = stores
    await there.enqueue_rollout("before anybody waits")
    with closing(sqlite3.connect(here.path)) as connection:
        assert connection.execute("SELECT count(*) FROM changes").fetchone() == (0,)
    await here.dequeue_rollout("w")
    claim = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await until(lambda: peers(here) == [port_of(here)])
    await there.enqueue_rollout("x")
    assert await claim is not None
    # Nobody waits when the next change arrives, so the process unregisters.
    await there.enqueue_rollout("y")
    await until(lambda: peers(here) == [])


async def test_a_process_that_died_while_it_waited_is_forgotten(stores):
    here, there = stores
    with closing(sqlite3.connect(here.path)) as connection:
        connection.execute("INSERT INTO peers VALUES (1, ?)", (time.time() - 200,))
        connection.commit()
    claim = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await until(lambda: peers(here) == [port_of(here)])
    await there.enqueue_rollout("x")
    assert await claim is not None


async def test_a_waiting_process_renews_its_registration(stores, monkeypatch):
    monkeypatch.setattr(remote, "_RENEW_SECONDS", 0.0)
    here, _ = stores

    def renewed() -> float:
        with closing(sqlite3.connect(here.path)) as connection:
            return connection.execute("SELECT coalesce(max(time), 0) FROM peers").fetchone()[0]

    claim = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await until(renewed)
    first = renewed()
    await until(lambda: renewed() > first)
    claim.cancel()


async def test_a_waiting_process_that_was_forgotten_registers_again(stores):
    here, there = stores
    claim = asyncio.ensure_future(here.dequeue_rollout("w", wait=30))
    await until(lambda: peers(here))
    with closing(sqlite3.connect(here.path)) as connection:
        connection.execute("DELETE FROM peers")
        connection.commit()
    await until(lambda: peers(here) == [port_of(here)])
    await there.enqueue_rollout("x")
    assert await asyncio.wait_for(claim, 5) is not None


async def test_old_changes_are_deleted(stores, monkeypatch):
    here, there = stores
    monkeypatch.setattr(remote, "_KEEP_SECONDS", 0.0)
    listening = here.events()
    first = asyncio.ensure_future(anext(listening))
    await until(lambda: peers(here))
    for number in range(5):
        await there.enqueue_rollout(number)
    await first
    with closing(sqlite3.connect(here.path)) as connection:
        assert connection.execute("SELECT count(*) FROM changes").fetchone()[0] < 3
    await listening.aclose()
