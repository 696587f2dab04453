"""Measures what a rollout costs each part of a cluster, in CPU time: what one core of it can do.

``python tests/benchmark/bench_scale.py [--json]``. Store servers (``agl store``), their database,
runners, the algorithm and the proxy are separate processes. Each of :data:`ROLLOUTS` rollouts has
:data:`CALLS` spans of 32 attributes of 150 characters. The runners here only write to the store, so
that the server is busy; the algorithm enqueues, waits, and reads the spans. MongoDB is
the stand-in of that store's tests, so its own cost says nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from agl_core.store import EncodedSpan, LightningStore
from agl_core.types import EnqueueRolloutRequest

# For the other benchmarks, and for the servers of the stores' tests.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
import bench_databases
import bench_proxy
import bench_server

pytestmark = pytest.mark.benchmark

ROLLOUTS: Final = 600
CALLS: Final = 8
RUNNERS: Final = 2
"""Number of processes that play runners, each with 16 rollouts at a time."""
BATCH: Final = 100
STORES: Final = (
    *(("memory", 1), ("sqlite", 1), ("sqlite", 2), ("postgres", 1), ("postgres", 2)),
    *(("mongo", 1), ("mongo", 2)),
)
LONG_PROMPT: Final = 8000
"""Tokens of the long prompt, about four characters each."""
ADDRESS: Final = re.compile(r"http://[\d.]+:\d+")


# -- the processes ---------------------------------------------------------------------------------


def cpu(*roots: int) -> float:
    """Return the CPU seconds of processes, with all their children, also those that ended."""
    total = 0.0
    for root in map(psutil.Process, roots):
        for process in (root, *root.children(recursive=True)):
            try:
                total += sum(process.cpu_times()[:4])  # with what ended children used
            except psutil.NoSuchProcess:
                continue  # the next reading has it among the ended children of its parent
    return total


@contextmanager
def store_server(
    kind: str, workers: int, place: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``agl store``; yield its process and its address."""
    agl = Path(sys.executable).with_name("agl")
    options = ["--path", place] if kind == "sqlite" else ["--set", f"uri={place}"]
    command = [agl, "store", "--port", "0", "--backend", kind, "--n-workers", str(workers)]
    process = subprocess.Popen(
        [*map(str, command), *(options if kind != "memory" else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = next((m for line in process.stdout if (m := ADDRESS.search(line))), None)
        assert said, f"agl store ended: {process.wait()}"
        yield process, said[0]
    finally:
        process.terminate()
        process.communicate()


async def run_rollouts(address: str) -> None:
    """Play 16 runners until the process is ended."""
    from agl_store_http import LightningStoreClient

    store = LightningStoreClient(address)

    async def work(number: int) -> None:
        while True:
            claimed = await store.dequeue_rollout(f"w{number}", wait=30.0)
            if claimed is None:
                continue
            ids = (claimed.rollout_id, claimed.attempt.attempt_id)
            make = bench_server.span_maker(*ids)
            spans = [
                EncodedSpan(*ids, n + 1, "0" * 32, f"{n:016x}", None, "call", 1.0, 2.0, make(n))
                for n in range(CALLS)
            ]
            await store.add_encoded_spans(spans)
            await store.update_attempt(*ids, status="succeeded")

    await asyncio.gather(*(work(number) for number in range(16)))


async def algorithm(store: LightningStore, rollouts: int) -> None:
    """Enqueue rollouts in batches, wait for each batch and read its spans."""
    for _ in range(0, rollouts, BATCH):
        tasks = [EnqueueRolloutRequest(input=bench_databases.TASK) for _ in range(BATCH)]
        ids = [item.rollout_id for item in await store.enqueue_many_rollouts(tasks)]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=120)
        assert len(done) == BATCH
        for rollout_id in ids:
            assert len(await store.query_spans(rollout_id)) == CALLS


# -- what is measured ------------------------------------------------------------------------------


async def run_batches(address: str, rollouts: int) -> None:
    from agl_store_http import LightningStoreClient

    store = LightningStoreClient(address)
    await algorithm(store, rollouts)
    await store.close()


def measure_store(kind: str, workers: int) -> dict[str, Any]:
    """Return the CPU milliseconds that a rollout costs server, database and algorithm."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own = psutil.Process()
        before = {child.pid for child in own.children()}
        place = (
            "" if kind == "memory" else stack.enter_context(bench_databases.database(kind, folder))
        )
        databases = [child.pid for child in own.children() if child.pid not in before]
        server, address = stack.enter_context(store_server(kind, workers, place))
        asyncio.run(run_batches_with_runners(address, BATCH))  # makes the tables
        parts = {"server": [server.pid], "database": databases}
        used = {name: -cpu(*pids) for name, pids in parts.items()}
        used["algorithm"], began = -sum(own.cpu_times()[:2]), time.perf_counter()
        asyncio.run(run_batches_with_runners(address, ROLLOUTS))
        seconds = time.perf_counter() - began
        for name, pids in parts.items():
            used[name] += cpu(*pids)
        used["algorithm"] += sum(own.cpu_times()[:2])
    costs = {f"{name}_ms": round(value / ROLLOUTS * 1e3, 2) for name, value in used.items()}
    return {"part": "store", "store": kind, "workers": workers, "rate": ROLLOUTS / seconds, **costs}


async def run_batches_with_runners(address: str, rollouts: int) -> None:
    command = (sys.executable, __file__, "--run", address)
    runners = [await asyncio.create_subprocess_exec(*command) for _ in range(RUNNERS)]
    try:
        await run_batches(address, rollouts)
    finally:
        for runner in runners:
            runner.kill()
            await runner.wait()


def measure_proxy(name: str, text: str) -> dict[str, Any]:
    """Return the CPU milliseconds that a captured call costs the proxy."""
    messages = [{"role": "user", "content": text}]
    bench_proxy.REQUEST = {**bench_proxy.REQUEST, "messages": messages}
    with (
        bench_proxy.server("backend") as backend,
        bench_proxy.server("proxy", backend.port) as proxy,
    ):
        asyncio.run(bench_proxy.load(proxy, 16, calls=200))
        measured = asyncio.run(bench_proxy.load(proxy, 16))
    return {
        "part": "proxy",
        "prompt": name,
        "rate": measured.calls / measured.seconds,
        "proxy_ms": round(measured.cpu / measured.calls * 1e3, 2),
    }


def measure() -> Iterator[dict[str, Any]]:
    for kind, workers in STORES:
        yield measure_store(kind, workers)
    yield measure_proxy("300 tokens", "What is the capital of France? " * 40)
    yield measure_proxy(f"{LONG_PROMPT:,} tokens", "word" * LONG_PROMPT)


def line(found: dict[str, Any]) -> str:
    """Return a result for people."""
    if found["part"] == "proxy":
        return (
            f"proxy, prompt of {found['prompt']:13} {found['rate']:6,.0f} calls/s, "
            f"{found['proxy_ms']:.2f} ms CPU a call"
        )
    return (
        f"{found['store']:8} {found['workers']} workers {found['rate']:6,.0f} rollouts/s; CPU of a "
        f"rollout: server {found['server_ms']:.2f} ms, database {found['database_ms']:.2f}, "
        f"algorithm {found['algorithm_ms']:.2f}"
    )


def test_scale(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for found in measure():
            print(line(found), flush=True)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--run"]:
        asyncio.run(run_rollouts(arguments[1]))
        return
    for found in measure():
        print(json.dumps(found) if "--json" in arguments else line(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
