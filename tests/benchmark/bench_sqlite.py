"""Measures the SQLite store in a server beside the memory store, and one file of many spans.

``python tests/benchmark/bench_sqlite.py [CASE...]`` or ``--spans 10000000``; as a benchmark test it
runs the cases and a file of AGL_BENCH_SPANS spans (200,000), which needs 1 GB of disk per million.
The server and the load generator are those of bench_server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import bench_server

pytestmark = pytest.mark.benchmark

CASES = [
    "enqueue",
    "dequeue",
    "add_span",
    "span_batch",
    "update_attempt",
    "heartbeat",
    "next_id",
    "get_rollout",
    "otlp",
    "page_of_20000",
    "cycle",
]
WARM_UP_SECONDS = 3.0
STORES = ("memory", "full", "normal")


# -- the server ------------------------------------------------------------------------------------


def serve(kind: str, path: str) -> None:
    import gc
    import logging

    from agl_serving import PythonServerLauncher, PythonServerLauncherArgs, run_in_new_loop
    from agl_store_http import StoreApp

    if kind == "memory":
        from agl_store_memory import InMemoryLightningStore

        app = StoreApp(InMemoryLightningStore())
    else:
        from agl_store_sqlite import SqliteLightningStore

        durability: Any = kind
        app = StoreApp(SqliteLightningStore(path, durability=durability), close_store=True)
    logging.disable(logging.WARNING)

    async def main() -> None:
        launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
        await launcher.start()
        gc.collect()
        gc.freeze()
        print(launcher.port, flush=True)
        await launcher.wait()

    run_in_new_loop(main)


def start(kind: str, path: Path) -> tuple[subprocess.Popen[str], int, float]:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", kind, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    return process, port, time.perf_counter() - began


# -- requests per second ---------------------------------------------------------------------------


def measure(case: str, kind: str, folder: Path) -> dict[str, Any]:
    server, port, _ = start(kind, folder / f"{case}-{kind}.db")
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--load", case, str(port), str(server.pid)],
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(done.stdout)
    finally:
        server.terminate()
        server.wait()
    return found


async def load(case: str, port: int, pid: int) -> dict[str, Any]:
    step, _ = await getattr(bench_server.Cases(port), case)()
    server = psutil.Process(pid)
    # A sync takes half as long once the log has its full length, after the first seconds.
    await bench_server.drive(port, step, WARM_UP_SECONDS, bench_server.CONNECTIONS)
    before = sum(server.cpu_times()[:2])
    found = await bench_server.drive(port, step, bench_server.SECONDS, bench_server.CONNECTIONS)
    return {
        "rate": found.operations / found.seconds,
        "per_cpu": found.operations / (sum(server.cpu_times()[:2]) - before),
        "p50": found.p50,
        "p99": found.p99,
    }


def bare(file: Path) -> sqlite3.Connection:
    """Open a file with plain SQLite, which syncs every commit."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def disk_limit(folder: Path, seconds: float = 1.0) -> tuple[float, float]:
    """Return plain SQLite's synced commits per second, of one row of 1 kB and of 16 rows."""
    connection = bare(folder / "bare.db")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, data BLOB)")
    rates: list[float] = []
    for rows in (1, 16):
        commits = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO rows (data) VALUES (?)", [(bytes(1000),)] * rows)
            connection.execute("COMMIT")
            commits += 1
        rates.append(commits / seconds)
    connection.close()
    return rates[0], rates[1]


def span_limit(file: Path, rollouts: int, seconds: float = 2.0) -> float:
    """Return plain SQLite's spans of 6 kB per second in the store's table, 16 per commit."""
    from agl_store_sqlite import schema

    connection = bare(file)
    schema.migrate(connection, str(file))
    payload = bytes(6000)

    def row(number: int) -> tuple[Any, ...]:
        rollout, index = number % rollouts, number // rollouts
        ordinal = rollout * schema.SPANS_PER_ROLLOUT + index
        return (ordinal, rollout, f"at-{rollout:08x}", index, f"{number:016x}", payload)

    def commits(seconds: float, first: int) -> int:
        number, end = first, time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO spans (ordinal, rollout, attempt_id, sequence_id, span_id, payload, "
                "trace_id, name) VALUES (?, ?, ?, ?, ?, ?, 'trace', 'name')",
                map(row, range(number, number + bench_server.CONNECTIONS)),
            )
            connection.execute("COMMIT")
            number += bench_server.CONNECTIONS
        return number

    first = commits(seconds / 2, 0)  # the log has its full length afterwards
    last = commits(seconds, first)
    connection.close()
    return (last - first) / seconds


def run_cases(names: list[str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        single, batched = disk_limit(Path(folder))
        yield (
            f"the disk here: {single:,.0f} synced commits/s of bare SQLite, {batched:,.0f}/s of 16 "
            f"rows: no store that syncs answers more than {16 * batched:,.0f} of 16 at a time"
        )
        one, many = (span_limit(Path(folder) / f"{n}.db", n) for n in (1, bench_server.CONNECTIONS))
        yield (
            f"bare SQLite takes {one:,.0f} spans/s of 6 kB of one rollout, 16 per commit, and "
            f"{many:,.0f}/s of 16 rollouts in turn; add_span takes that and what memory takes"
        )
        yield (
            f"{'case':16}{'memory/s':>10}{'full/s':>9}{'%':>5}{'normal/s':>10}{'%':>5}"
            f"{'full/CPU-s':>12}{'%':>5}{'p50 ms':>8}{'p99 ms':>8}  (p50, p99: full)"
        )
        for case in names or CASES:
            memory, full, normal = (measure(case, kind, Path(folder)) for kind in STORES)
            yield (
                f"{case:16}{memory['rate']:10.0f}{full['rate']:9.0f}"
                f"{100 * full['rate'] / memory['rate']:5.0f}{normal['rate']:10.0f}"
                f"{100 * normal['rate'] / memory['rate']:5.0f}"
                f"{full['per_cpu']:12.0f}{100 * full['per_cpu'] / memory['per_cpu']:5.0f}"
                f"{full['p50']:8.2f}{full['p99']:8.2f}"
            )


# -- one file of many spans ------------------------------------------------------------------------

SPANS = int(os.environ.get("AGL_BENCH_SPANS", "200000"))
SPANS_PER_ROLLOUT = 50
AT_A_TIME = 64
"""Number of rollouts that write concurrently, so that their spans are interleaved in the file."""


async def fill(path: Path, spans: int) -> float:
    """Write a file with ``spans`` spans; return the spans per second."""
    from agl_core.store import EncodedSpan
    from agl_store_sqlite import SqliteLightningStore

    store = SqliteLightningStore(path, durability="normal")
    began = time.perf_counter()
    for first in range(0, spans // SPANS_PER_ROLLOUT, AT_A_TIME):
        started = await asyncio.gather(
            *(store.start_rollout({"question": first + index}) for index in range(AT_A_TIME))
        )
        batch: list[EncodedSpan] = []
        writers = [
            (rollout, bench_server.span_maker(*rollout, attributes=1))
            for rollout in ((item.rollout_id, item.attempt.attempt_id) for item in started)
        ]
        for index in range(SPANS_PER_ROLLOUT):
            for ids, make in writers:
                payload = make(index)
                batch.append(
                    EncodedSpan(
                        *ids,
                        index + 1,
                        "0" * 32,
                        f"{index:016x}",
                        None,
                        "step",
                        1.0,
                        2.0,
                        payload,
                    )
                )
        await store.add_encoded_spans(batch)
    took = time.perf_counter() - began
    await store.close()
    return spans / took


async def query(port: int) -> tuple[bench_server.Measured, bench_server.Measured]:
    """Query the spans of random rollouts, one after the other; then the health endpoint.

    Returns:
        The measurements of both. The second is the time of the server without the store.
    """
    ask = bench_server.Cases(port).ask
    total = (await ask("GET", "/statistics"))["total_rollouts"]
    rng = random.Random(1)
    rollout_ids: list[str] = []
    for _ in range(40):
        page = await ask("GET", f"/rollouts?limit=25&offset={rng.randrange(max(1, total - 25))}")
        rollout_ids += [rollout["rollout_id"] for rollout in page["items"]]
    rng.shuffle(rollout_ids)

    def steps() -> Generator[bytes, bytes, int]:
        path = f"{bench_server.PREFIX}/spans?rollout_id={rng.choice(rollout_ids)}"
        reply = yield bench_server.http("GET", path)
        assert json.loads(reply)["total"] == SPANS_PER_ROLLOUT
        return 1

    def nothing() -> Generator[bytes, bytes, int]:
        yield bench_server.http("GET", f"{bench_server.PREFIX}/health")
        return 1

    return (
        await bench_server.drive(port, steps, 5.0, 1),
        await bench_server.drive(port, nothing, 5.0, 1),
    )


def run_big_file(spans: int, file: Path) -> Iterator[str]:
    """Write a file with ``spans`` spans unless it exists, and read from it."""
    if not file.exists():
        rate = asyncio.run(fill(file, spans))
        yield f"{spans:,} spans in one file: written at {rate:,.0f}/s"
    server, port, seconds = start("normal", file)
    try:
        found, nothing = asyncio.run(query(port))
        total = asyncio.run(bench_server.Cases(port).ask("GET", "/statistics"))["total_spans"]
        memory = psutil.Process(server.pid).memory_info().rss
    finally:
        server.terminate()
        server.wait()
    yield (
        f"{total:,} spans in {file.stat().st_size / 1e9:.2f} GB: the server starts in "
        f"{seconds:.2f} s and takes {memory / 1e6:.0f} MB; spans of one rollout: p50 "
        f"{found.p50:.2f} ms, p99 {found.p99:.2f} ms of {found.operations} queries (a request that "
        f"reads nothing: p50 {nothing.p50:.2f} ms, p99 {nothing.p99:.2f} ms)"
    )


def test_sqlite_speed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with capsys.disabled():
        print()
        for line in run_cases([]):
            print(line, flush=True)
        for line in run_big_file(SPANS, tmp_path / "big.db"):
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--spans", type=int, help="fill one file with so many spans instead")
    parser.add_argument("--file", type=Path, help="that file; one that is there is only read")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or Path(folder) / "big.db"
        lines = run_big_file(options.spans, file) if options.spans else run_cases(options.cases)
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:4])
    elif sys.argv[1:2] == ["--load"]:
        print(json.dumps(asyncio.run(load(sys.argv[2], *map(int, sys.argv[3:5])))))
        os._exit(0)
    else:
        main()
