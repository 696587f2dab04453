"""Compares each mechanism of the SQLite store with its plain alternative, at 16 writers.

``python tests/benchmark/bench_sqlite_choices.py [CHOICE...]``. Rounds alternate between the store
and the store with one mechanism changed, so both see the same load of the machine. Each line prints
medians and their ratio. A mechanism that costs code stays only if it is 1.3 times as fast.

======== ================================================ =========================================
choice   the store                                        the variant
======== ================================================ =========================================
sync     commits without a sync, then syncs the log       ``synchronous = FULL``
lock     ``busy_timeout``                                 tries again after 0.1 to 5 ms
log      SQLite copies a log of 4000 pages in the commit  reads the log's frames, copies in a thread
rows     reads a write's rows                             keeps them in memory (``data_version``)
wake     a datagram on loopback                           asks for ``data_version`` every 5 ms
======== ================================================ =========================================
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agl_core.store import EncodedSpan
from agl_store_sqlite import SqliteLightningStore
from agl_store_sqlite.transaction import StoredState, Transaction

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork"),
]

WRITERS = 16
ROUNDS = int(os.environ.get("AGL_BENCH_ROUNDS", "7"))
SECONDS = 0.7
TASK = {"question": "Which room?", "options": [1, 2, 3]}
PAYLOAD = b'{"attributes": {"text": "' + b"x" * 6000 + b'"}}'

Patch = Callable[[SqliteLightningStore], None]


# -- the variants ----------------------------------------------------------------------------------


def connection_of(store: SqliteLightningStore) -> sqlite3.Connection:
    return store._sqlite.database.writer._connection


def sync_in_commit(store: SqliteLightningStore) -> None:
    """Let SQLite sync the log in COMMIT, under the write lock."""
    connection_of(store).execute("PRAGMA synchronous = FULL")
    store._sqlite.database.writer._full = False


class Waiting(Transaction):
    """Retries the lock in a loop instead of waiting in SQLite."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        run = self.execute

        def execute(statement: str, values: Any = ()) -> Any:
            pause = 0.0001
            while statement == "BEGIN IMMEDIATE":
                try:
                    return run(statement)
                except sqlite3.OperationalError:
                    time.sleep(pause)
                    pause = min(1.5 * pause, 0.005)
            return run(statement, values)

        self.execute = execute


def retry_lock(store: SqliteLightningStore) -> None:
    connection_of(store).execute("PRAGMA busy_timeout = 0")
    use_transaction(store, Waiting)


def use_transaction(store: SqliteLightningStore, kind: Callable[..., Transaction]) -> None:
    writer, run = store._sqlite.database.writer, store._sqlite.database.writer._run

    def _run(writes: Any) -> None:
        module = sys.modules["agl_store_sqlite.writer"]
        module.Transaction = kind  # pyright: ignore[reportAttributeAccessIssue]
        run(writes)

    writer._run = _run


def copy_log_in_a_thread(store: SqliteLightningStore) -> None:
    """Read the log's length from its frames, and copy the log in a thread."""
    connection_of(store).execute("PRAGMA wal_autocheckpoint = 0")
    database, writer = store._sqlite.database, store._sqlite.database.writer
    run, copying, copied = writer._run, threading.Event(), threading.Event()

    def copy() -> None:
        database.look(lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())
        copied.set()

    def is_long() -> bool:
        header = os.pread(writer._log, 32, 0)
        if len(header) < 32:
            return False
        page = int.from_bytes(header[8:12], "big")
        return os.pread(writer._log, 24, 32 + 3999 * (24 + page))[8:16] == header[16:24]

    def _run(writes: Any) -> None:
        run(writes)
        if copied.is_set():  # copy the rest; the next commit then starts a new log
            connection_of(store).execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            copied.clear()
            copying.clear()
        elif not copying.is_set() and is_long():
            copying.set()
            database._pool.submit(copy)

    writer._run = _run


class Keeping(Transaction):
    """Caches the states on which decisions depend, until another connection writes."""

    def __init__(self, kept: dict[Any, Any], connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._kept = kept
        self._checked = False

    def state(
        self,
        rollout_id: str,
        attempt_id: str = "latest",
        worker_id: str | None = None,
        *,
        payload: bool = True,
    ) -> StoredState:
        if payload or worker_id is not None:
            return super().state(rollout_id, attempt_id, worker_id, payload=payload)
        if not self._checked:
            self._checked = True
            version = self.one("PRAGMA data_version")
            if self._kept.get("version") != version:
                self._kept.clear()
                self._kept["version"] = version
        key = rollout_id, attempt_id
        if key not in self._kept:
            self._kept[key] = super().state(*key, payload=False)
        return self._kept[key]

    def apply(self, stored: StoredState, change: Any) -> None:
        super().apply(stored, change)
        ordinal, state = stored
        if state.attempt is not None:
            key = state.rollout.rollout_id, state.attempt.attempt_id
            self._kept.pop((key[0], "latest"), None)
            self._kept[key] = StoredState(
                ordinal,
                state._replace(
                    rollout=change.rollout or state.rollout,
                    attempt=change.attempt or state.attempt,
                    worker=change.worker or state.worker,
                ),
            )


def keep_rows(store: SqliteLightningStore) -> None:
    use_transaction(store, partial(Keeping, {}))


def ask_for_changes(store: SqliteLightningStore) -> None:
    """Ask every 5 ms whether another connection has committed, and send no datagrams."""
    remote, database = store._sqlite.database.remote, store._sqlite.database
    stop = threading.Event()
    remote.wake = lambda peers: None

    def listen() -> None:
        version = None
        while not remote._closed:
            stop.wait(0.005)
            if remote._waiting:
                now = database.look(lambda db: db.execute("PRAGMA data_version").fetchone())
                if now != version:
                    version = now
                    unseen, _ = database.look(remote._look)
                    remote.publish(unseen)

    remote._listen = listen


# -- 16 writers ------------------------------------------------------------------------------------


async def write(store: SqliteLightningStore, case: str, end: float) -> int:
    """Make calls of one kind until ``end``; return their number."""
    started = await store.start_rollout(TASK)
    ids = started.rollout_id, started.attempt.attempt_id
    calls = 0
    while time.monotonic() < end:
        calls += 1
        if case == "enqueue":
            await store.enqueue_rollout(TASK)
        elif case == "add_span":
            fields = "0" * 32, f"{calls:016x}", None, "step", 1.0, 2.0, PAYLOAD
            await store.add_encoded_spans([EncodedSpan(*ids, calls, *fields)])
        elif case == "update_attempt":
            await store.update_attempt(*ids, last_heartbeat_time=float(calls))
    return calls


class Figures(NamedTuple):
    calls: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.calls / SECONDS

    @property
    def per_cpu_second(self) -> float:
        return self.calls / self.cpu_seconds


def run_tasks(path: str, patch: Patch | None, case: str, writers: int = WRITERS) -> Figures:
    """Run writers as tasks of one event loop, as in a store server."""

    async def main() -> Figures:
        durability: Any = "full" if case == "enqueue" else "normal"
        store = SqliteLightningStore(path, durability=durability, busy_seconds=60)
        if patch is not None:
            patch(store)
        cpu, end = time.process_time(), time.monotonic() + SECONDS
        calls = sum(await asyncio.gather(*(write(store, case, end) for _ in range(writers))))
        cpu = time.process_time() - cpu
        await store.close()
        return Figures(calls, cpu)

    return asyncio.run(main())


def run_processes(path: str, patch: Patch | None, case: str) -> Figures:
    """Run writers as processes that share the file."""
    context = multiprocessing.get_context("fork")
    asyncio.run(SqliteLightningStore(path).close())
    results, barrier = context.SimpleQueue(), context.Barrier(WRITERS)

    def process() -> None:
        barrier.wait()
        results.put(run_tasks(path, patch, case, 1))

    processes = [context.Process(target=process) for _ in range(WRITERS)]
    for one in processes:
        one.start()
    found = [results.get() for _ in processes]
    for one in processes:
        one.join()
    return Figures(*map(sum, zip(*found, strict=True)))


def compare(
    run: Callable[[str, Patch | None, str], Figures], case: str, patch: Patch
) -> tuple[Figures, Figures]:
    """Return the medians of alternating rounds of the store and the variant."""
    found: dict[Patch | None, list[Figures]] = {None: [], patch: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for variant in (None, patch) if number % 2 else (patch, None):
                path = f"{folder}/{number}-{variant is None}.db"
                found[variant].append(run(path, variant, case))
    plain, changed = (
        Figures(*map(statistics.median, zip(*rounds, strict=True))) for rounds in found.values()
    )
    return plain, changed


# -- waiting processes -----------------------------------------------------------------------------


def wait_for_work(path: str, patch: Patch | None) -> tuple[float, float]:
    """Return the time of a wake-up (p50, ms) and the cost of 16 waiting processes (CPU %)."""
    context = multiprocessing.get_context("fork")
    asyncio.run(SqliteLightningStore(path, durability="normal").close())
    ready, claims, costs = (context.SimpleQueue() for _ in range(3))

    def process() -> None:
        async def main() -> None:
            store = SqliteLightningStore(path, durability="normal")
            if patch is not None:
                patch(store)
            waiting = asyncio.ensure_future(store.dequeue_rollout(wait=60))
            await asyncio.sleep(0.2)
            ready.put(None)
            cpu, began = time.process_time(), time.monotonic()
            claimed = await waiting
            now = time.time()
            costs.put((time.process_time() - cpu) / (time.monotonic() - began))
            assert claimed is not None
            claims.put(now - float(claimed.input))
            await store.close()

        asyncio.run(main())

    processes = [context.Process(target=process) for _ in range(WRITERS)]
    for one in processes:
        one.start()
    for _ in processes:
        ready.get()

    async def enqueue() -> list[float]:
        store = SqliteLightningStore(path, durability="normal")
        if patch is not None:
            patch(store)
        await asyncio.sleep(2)
        delays: list[float] = []
        for _ in processes:
            await store.enqueue_rollout(time.time())
            delays.append(await asyncio.to_thread(claims.get))
        await store.close()
        return delays

    delays = asyncio.run(enqueue())
    for one in processes:
        one.join()
    return 1e3 * statistics.median(delays), 100 * sum(costs.get() for _ in processes)


# -- the report ------------------------------------------------------------------------------------

CHOICES: dict[str, Patch] = {
    "sync": sync_in_commit,
    "lock": retry_lock,
    "log": copy_log_in_a_thread,
    "rows": keep_rows,
    "wake": ask_for_changes,
}
CASES: dict[str, list[tuple[Callable[..., Figures], str]]] = {
    "sync": [(run_tasks, "enqueue"), (run_processes, "enqueue")],
    "lock": [(run_processes, "enqueue"), (run_processes, "add_span")],
    "log": [(run_tasks, "add_span")],
    "rows": [(run_tasks, "add_span"), (run_tasks, "update_attempt")],
}


def report(choices: list[str]) -> Iterator[str]:
    yield (
        f"{'choice':8}{'case':16}{'writers':11}{'store/s':>9}{'variant/s':>11}{'ratio':>7}"
        f"{'store/CPU-s':>13}{'variant/CPU-s':>15}{'ratio':>7}  (ratio: store to variant)"
    )
    for choice in choices:
        for run, case in CASES.get(choice, []):
            store, variant = compare(run, case, CHOICES[choice])
            yield (
                f"{choice:8}{case:16}{run.__name__.removeprefix('run_'):11}"
                f"{store.per_second:9.0f}{variant.per_second:11.0f}"
                f"{store.per_second / variant.per_second:7.2f}"
                f"{store.per_cpu_second:13.0f}{variant.per_cpu_second:15.0f}"
                f"{store.per_cpu_second / variant.per_cpu_second:7.2f}"
            )
    if "wake" in choices:
        with tempfile.TemporaryDirectory() as folder:
            for name, patch in (("datagram", None), ("data_version", ask_for_changes)):
                delay, cpu = wait_for_work(f"{folder}/{name}.db", patch)
                yield (
                    f"wake    {name:16}p50 {delay:.2f} ms from enqueue to claim, "
                    f"{WRITERS} waiting processes take {cpu:.1f} % of a CPU"
                )


def test_sqlite_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for line in report(list(CHOICES)):
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare the mechanisms of the SQLite store with plain alternatives."
    )
    parser.add_argument("choices", nargs="*", help=", ".join(CHOICES))
    for line in report(parser.parse_args().choices or list(CHOICES)):
        print(line, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
