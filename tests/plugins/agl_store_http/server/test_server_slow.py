"""Schemathesis against the OpenAPI document, and a thousand idle runners."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import StoreApp
from agl_store_memory import InMemoryLightningStore
from tests.processes import running_below

pytestmark = pytest.mark.slow


def make_app(path: Path | None = None) -> StoreApp:
    """Serve a store in memory, or in a file."""
    if path is None:
        return StoreApp(InMemoryLightningStore())
    from agl_store_sqlite import SqliteLightningStore

    return StoreApp(SqliteLightningStore(path), close_store=True)


async def in_a_process(path: Path | None = None) -> PythonServerLauncher:
    launcher = PythonServerLauncher(
        partial(make_app, path),
        PythonServerLauncherArgs(launch_mode="mp", start_method="spawn"),
        factory=True,
    )
    await launcher.start()
    return launcher


def server_process() -> psutil.Process:
    found = running_below("spawn_main")
    assert len(found) == 1
    return found[0]


STREAMS_AND_STUBS = [
    "/v1/agl/events",  # does not end
    "/v1/agl/queues/rollouts/dequeue",  # may be asked to wait for a day, and then does
    "/v1/agl/waits/rollouts",
    "/v1/metrics",  # answer 501 on purpose
    "/v1/logs",
    "/v1/development/profiles",
]
RESOURCES = [
    "/v1/agl/resources",
    "/v1/agl/resources/{resources_id}",
    "/v1/agl/resources/{resources_id}/swap",
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "choice",
    [
        [*STREAMS_AND_STUBS, *RESOURCES],
        # Of a mapping to a choice of models it cannot make wrong values, only right ones.
        RESOURCES,
    ],
    ids=["most", "resources"],
)
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_schemathesis_finds_no_failure_of_the_server(tmp_path, choice, backend):
    """Bodies and parameters made from the document, and broken ones beside them."""
    options = (
        [word for path in choice for word in ("--include-path", path)] + ["--mode", "positive"]
        if choice is RESOURCES
        else [word for path in choice for word in ("--exclude-path", path)]
    )
    if backend == "sqlite":
        pytest.importorskip("agl_store_sqlite")
    server = await in_a_process(tmp_path / "store.db" if backend == "sqlite" else None)
    process = server_process()
    before = process.memory_info().rss
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [
                *(sys.executable, "-m", "schemathesis.cli", "run"),
                f"{server.endpoint}/openapi.json",
                *options,
                *("--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing"),
                *("--max-examples", "40", "--seed", "1", "--request-timeout", "20", "--no-color"),
                # A body of optional keys alone counts as too easy to get wrong.
                "--suppress-health-check=filter_too_much",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert process.memory_info().rss - before < 150e6
    finally:
        await server.stop()


async def test_a_thousand_idle_runners_cost_next_to_nothing():
    runners = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    server = await in_a_process()
    process = server_process()
    process_cpu: Any = process.cpu_times
    connections = []
    try:
        for number in range(runners):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            body = json.dumps({"worker_id": f"w{number}", "wait": 60}).encode()
            head = (
                "POST /v1/agl/queues/rollouts/dequeue HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            connections.append(writer)
        await asyncio.sleep(5)
        before, began = process_cpu(), time.monotonic()
        await asyncio.sleep(20)
        after = process_cpu()
        used = (after.user + after.system - before.user - before.system) / (
            time.monotonic() - began
        )
        print(f"{runners} idle runners cost {100 * used:.2f} % of a core")
        assert used < 0.02
    finally:
        for writer in connections:
            writer.transport.abort()
        await server.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
