"""SQLite behind the server next to the memory store in the same run, and one file of many spans.

``python tests/benchmark/bench_sqlite.py [CASE...]`` or ``--spans 10000000``; as a benchmark test it
runs the cases and a file of 200,000 spans. Server and load generator are those of bench_server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
STORES = ("memory", "full", "normal")


# -- the server ------------------------------------------------------------------------------------


def serve(kind: str, path: str) -> None:
    import gc
    import logging

    from agl_core.server.app import StoreApp
    from agl_core.server.launcher import PythonServerLauncher, PythonServerLauncherArgs
    from agl_core.server.serving import run_in_new_loop

    if kind == "memory":
        from agl_core.store import InMemoryLightningStore

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
            [sys.executable, __file__, "--load", case, str(port)],
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(done.stdout)
        times = psutil.Process(server.pid).cpu_times()
        found["cpu"] = times.user + times.system
    finally:
        server.terminate()
        server.wait()
    return found


async def load(case: str, port: int) -> dict[str, Any]:
    step, _ = await getattr(bench_server.Cases(port), case)()
    found = await bench_server.drive(port, step, bench_server.SECONDS, bench_server.CONNECTIONS)
    return {"rate": found.operations / found.seconds, "p50": found.p50, "p99": found.p99}


def run_cases(names: list[str]) -> Iterator[str]:
    yield (
        f"{'case':16}{'memory/s':>10}{'full/s':>9}{'%':>5}{'normal/s':>10}{'%':>5}"
        f"{'p50 ms':>8}{'p99 ms':>8}  (p50, p99: full)"
    )
    with tempfile.TemporaryDirectory() as folder:
        for case in names or CASES:
            memory, full, normal = (measure(case, kind, Path(folder)) for kind in STORES)
            yield (
                f"{case:16}{memory['rate']:10.0f}{full['rate']:9.0f}"
                f"{100 * full['rate'] / memory['rate']:5.0f}{normal['rate']:10.0f}"
                f"{100 * normal['rate'] / memory['rate']:5.0f}"
                f"{full['p50']:8.2f}{full['p99']:8.2f}"
            )


# -- one file of many spans ------------------------------------------------------------------------

SPANS_PER_ROLLOUT = 50


async def fill(path: Path, spans: int) -> float:
    """Write a file of so many spans; return the spans per second."""
    from agl_core.store import EncodedSpan
    from agl_store_sqlite import SqliteLightningStore

    store = SqliteLightningStore(path, durability="normal")
    began = time.perf_counter()
    batch: list[EncodedSpan] = []
    for number in range(spans // SPANS_PER_ROLLOUT):
        rollout = await store.start_rollout({"question": number})
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        make = bench_server.span_maker(*ids, attributes=1)
        for index in range(SPANS_PER_ROLLOUT):
            span_id = number * SPANS_PER_ROLLOUT + index
            batch.append(
                EncodedSpan(
                    *ids,
                    index + 1,
                    "0" * 32,
                    f"{span_id:016x}",
                    None,
                    "step",
                    1.0,
                    2.0,
                    make(span_id),
                )
            )
        if len(batch) >= 5000:
            await store.add_encoded_spans(batch)
            batch.clear()
    if batch:
        await store.add_encoded_spans(batch)
    took = time.perf_counter() - began
    await store.close()
    return spans / took


async def query(port: int, path: Path) -> list[float]:
    """Ask for the spans of rollouts all over the file; return the milliseconds each took."""
    import random

    connection = await bench_server.connect(port)
    total = json.loads(await connection.send(bench_server.http("GET", "/v1/agl/statistics")))
    rng = random.Random(1)
    times: list[float] = []
    for _ in range(1000):
        offset = rng.randrange(total["total_rollouts"])
        page = f"/v1/agl/rollouts?limit=1&offset={offset}"
        found = json.loads(await connection.send(bench_server.http("GET", page)))
        rollout_id = found["items"][0]["rollout_id"]
        began = time.perf_counter()
        request = bench_server.http("GET", f"/v1/agl/spans?rollout_id={rollout_id}")
        reply = await connection.send(request)
        times.append(1e3 * (time.perf_counter() - began))
        assert json.loads(reply)["total"] == SPANS_PER_ROLLOUT
    connection.transport.close()
    return sorted(times)


def run_big_file(spans: int, folder: str | None = None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "big.db"
        rate = asyncio.run(fill(path, spans))
        yield (
            f"{spans:,} spans in one file: written at {rate:,.0f}/s, "
            f"{path.stat().st_size / 1e9:.2f} GB"
        )
        server, port, seconds = start("normal", path)
        try:
            times = asyncio.run(query(port, path))
            memory = psutil.Process(server.pid).memory_info()
            shared = getattr(memory, "shared", 0)
        finally:
            server.terminate()
            server.wait()
        yield (
            f"server starts in {seconds:.2f} s; spans of one rollout: p50 "
            f"{times[len(times) // 2]:.2f} ms, p99 {times[int(len(times) * 0.99)]:.2f} ms; memory "
            f"{memory.rss / 1e6:.0f} MB, {shared / 1e6:.0f} MB of which are pages of the file and "
            "of libraries"
        )


def test_sqlite_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for line in run_cases([]):
            print(line, flush=True)
        for line in run_big_file(200_000):
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--spans", type=int, help="fill one file with so many spans instead")
    parser.add_argument("--folder", help="where that file goes")
    options = parser.parse_args()
    lines = (
        run_big_file(options.spans, options.folder) if options.spans else run_cases(options.cases)
    )
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:4])
    elif sys.argv[1:2] == ["--load"]:
        print(json.dumps(asyncio.run(load(sys.argv[2], int(sys.argv[3])))))
        os._exit(0)
    else:
        main()
