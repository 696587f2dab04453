"""Measures the stores of several processes side by side: SQLite, PostgreSQL and MongoDB.

``python tests/benchmark/bench_databases.py [STORE...]``, or ``--spans 10000000`` for many spans in
PostgreSQL: about 1 GB of disk per million. PostgreSQL runs with its defaults and syncs each commit,
as SQLite does here; what speaks MongoDB's protocol is the stand-in of that store's tests.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agl_core.store import EncodedSpan, LightningStore
from agl_core.types import EnqueueRolloutRequest

# For bench_server, and for the servers of the stores' tests.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
import bench_server

pytestmark = pytest.mark.benchmark

STORES: tuple[str, ...] = ("sqlite", "postgres", "mongo")
SPANS = int(os.environ.get("AGL_BENCH_SPANS", "200000"))
SPANS_PER_ROLLOUT = 50
AT_A_TIME = 64
"""Number of rollouts that write concurrently, so that their spans are interleaved."""
TASKS = 16
CALLS = 800
WAKES = 200
TASK = {"question": "Which room?", "options": [1, 2, 3], "meta": {"id": 7, "tags": ["a", "b"]}}


def make_store(kind: str, place: str) -> LightningStore:
    if kind == "sqlite":
        from agl_store_sqlite import SqliteLightningStore

        return SqliteLightningStore(place)
    if kind == "postgres":
        from agl_store_postgres import PostgresLightningStore

        return PostgresLightningStore(place)
    from agl_store_mongo import MongoLightningStore

    return MongoLightningStore(place, partition_id="bench")


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """Start a store's server, if it has one; yield what the store connects to."""
    if kind == "sqlite":
        yield str(folder / "bench.db")
    elif kind == "postgres":
        from tests.plugins.agl_store_postgres.postgres_server import running_server

        with running_server(shared_buffers="128MB") as server:
            yield server.uri
    else:
        from tests.plugins.agl_store_mongo.conftest import Server

        home = folder / uuid.uuid4().hex
        home.mkdir()
        mongo = Server(home)
        mongo.start()
        try:
            yield mongo.uri
        finally:
            mongo.kill()


# -- calls -----------------------------------------------------------------------------------------


async def rate(call: Callable[[int], Coroutine[Any, Any, Any]], count: int, tasks: int) -> float:
    """Return the calls per second of several tasks."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await call(number)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return count / (time.perf_counter() - began)


def encoded(ids: tuple[str, str], count: int, first: int = 0) -> list[EncodedSpan]:
    make = bench_server.span_maker(*ids, attributes=1)
    return [
        EncodedSpan(
            *(*ids, number + 1, "0" * 32, f"{number:016x}", None, "step", 1.0, 2.0, make(number))
        )
        for number in range(first, first + count)
    ]


async def calls_per_second(store: LightningStore) -> dict[str, float]:
    found: dict[str, float] = {}
    await store.enqueue_rollout(TASK)  # the tables are made
    found["enqueue"] = await rate(lambda _: store.enqueue_rollout(TASK), CALLS, TASKS)
    batch = [EnqueueRolloutRequest(input=TASK) for _ in range(100)]
    many = await rate(lambda _: store.enqueue_many_rollouts(batch), 40, 4)
    found["enqueue of 100"] = 100 * many
    claimed: list[Any] = []

    async def claim(number: int) -> None:
        claimed.append(await store.dequeue_rollout(f"w{number % TASKS}"))

    found["claim"] = await rate(claim, CALLS, TASKS)
    ids = [(rollout.rollout_id, rollout.attempt.attempt_id) for rollout in claimed]
    single = [encoded(pair, 1)[0] for pair in ids]
    found["span"] = await rate(lambda n: store.add_encoded_spans([single[n]]), CALLS, TASKS)
    batches = [encoded(pair, 100, 1) for pair in ids[:160]]
    many = await rate(lambda n: store.add_encoded_spans(batches[n]), len(batches), 4)
    found["span of 100"] = 100 * many
    found["finish"] = await rate(
        lambda n: store.update_attempt(*ids[n], status="succeeded"), CALLS, TASKS
    )
    return found


async def wakes(store: LightningStore, kind: str, place: str) -> list[float]:
    """Return how long after another process's enqueue a waiting claim returned, in seconds."""
    while await store.dequeue_many_rollouts(limit=1000):
        pass
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--enqueue", kind, place),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    await other.stdout.readline()
    taken: list[float] = []
    for number in range(WAKES + 5):
        waiting = asyncio.ensure_future(store.dequeue_rollout("w", wait=30))
        await asyncio.sleep(0.02)  # it waits by now
        other.stdin.write(b"\n")
        assert await waiting is not None
        end = time.monotonic()
        returned = float(await other.stdout.readline())
        if number >= 5:
            taken.append(max(end - returned, 0.0))
    other.stdin.close()
    await other.wait()
    return taken


async def enqueue_on_demand(kind: str, place: str) -> None:
    """Enqueue a rollout per line of input, and print when the call returned."""
    store = make_store(kind, place)
    await store.get_latest_resources()
    print(flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        await store.enqueue_rollout(TASK)
        print(time.monotonic(), flush=True)
    await store.close()


async def measure(kind: str, place: str) -> dict[str, float]:
    store = make_store(kind, place)
    found = await calls_per_second(store)
    taken = await wakes(store, kind, place)
    found |= {"wake p50 ms": share(taken, 0.5), "wake p99 ms": share(taken, 0.99)}
    await store.close()
    return found


def share(seconds: list[float], part: float) -> float:
    """Return a percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * part)] * 1e3


def run_stores(kinds: list[str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            with database(kind, Path(folder)) as place:
                found = asyncio.run(measure(kind, place))
            yield f"{kind}, one process, per second:"
            for row, value in found.items():
                yield f"  {row:16}{value:12,.{2 if row.endswith('ms') else 0}f}"


# -- many spans ------------------------------------------------------------------------------------


async def fill(store: LightningStore, spans: int) -> list[str]:
    """Write spans of many rollouts; return the rollouts' ids."""
    ids: list[str] = []
    rounds = iter(range(0, spans // SPANS_PER_ROLLOUT, AT_A_TIME))

    async def write() -> None:
        for first in rounds:
            started = await asyncio.gather(
                *(store.start_rollout({"question": first + index}) for index in range(AT_A_TIME))
            )
            batches = [
                encoded((item.rollout_id, item.attempt.attempt_id), SPANS_PER_ROLLOUT)
                for item in started
            ]
            interleaved = [span for spans_at in zip(*batches, strict=True) for span in spans_at]
            await store.add_encoded_spans(interleaved)
            ids.extend(item.rollout_id for item in started)
            done = len(ids) * SPANS_PER_ROLLOUT
            if done % 500_000 < AT_A_TIME * SPANS_PER_ROLLOUT:
                print(f"  {done:,} spans", file=sys.stderr, flush=True)

    await asyncio.gather(*(write() for _ in range(3)))
    return ids


async def query(store: LightningStore, ids: list[str]) -> tuple[list[float], list[float]]:
    """Return the times of queries of one random rollout's spans, and of a rollout alone."""
    rng = random.Random(1)
    taken: list[list[float]] = [[], []]
    for _ in range(1000):
        rollout_id = rng.choice(ids)
        began = time.perf_counter()
        page = await store.query_encoded_spans(rollout_id)
        taken[0].append(time.perf_counter() - began)
        assert page.total == SPANS_PER_ROLLOUT
        began = time.perf_counter()
        await store.get_rollout_by_id(rng.choice(ids))
        taken[1].append(time.perf_counter() - began)
    return taken[0], taken[1]


async def measure_many(place: str, spans: int) -> str:
    store = make_store("postgres", place)
    began = time.perf_counter()
    ids = await fill(store, spans)
    rate = len(ids) * SPANS_PER_ROLLOUT / (time.perf_counter() - began)
    found, alone = await query(store, ids)
    began = time.perf_counter()
    total = (await store.statistics()).get("total_spans", 0)
    counted = time.perf_counter() - began
    await store.close()
    return (
        f"{total:,} spans in PostgreSQL, written at {rate:,.0f}/s; spans of one rollout: p50 "
        f"{share(found, 0.5):.2f} ms, p99 {share(found, 0.99):.2f} ms of {len(found)} queries (a "
        f"rollout: p50 {share(alone, 0.5):.2f} ms, p99 {share(alone, 0.99):.2f} ms); statistics "
        f"take {counted * 1e3:.0f} ms"
    )


def run_many(spans: int) -> Iterator[str]:
    from tests.plugins.agl_store_postgres.postgres_server import running_server

    with running_server(shared_buffers="1GB", max_wal_size="4GB") as server:
        yield asyncio.run(measure_many(server.uri, spans))
        size = subprocess.check_output(["du", "-sb", str(server.data / "base")], text=True)
        yield f"they take {int(size.split()[0]) / 1e9:.2f} GB of disk"


def test_databases(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for line in run_stores(list(STORES)):
            print(line, flush=True)
        for line in run_many(SPANS):
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", help=", ".join(STORES))
    parser.add_argument("--spans", type=int, help="fill PostgreSQL with so many spans instead")
    options = parser.parse_args()
    kinds = options.stores or list(STORES)
    for line in run_many(options.spans) if options.spans else run_stores(kinds):
        print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--enqueue"]:
        asyncio.run(enqueue_on_demand(*sys.argv[2:4]))
    else:
        main()
