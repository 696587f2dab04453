"""Servers that die and connections that break under load: nothing is lost, doubled or miscounted.

The data is in this process, behind a server of its own. The server that the clients talk to is a
process in front of it (its store is a client of the inner one), so it can be killed like any other
without taking the data with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from agl_core.errors import LaunchError
from agl_core.types import Span
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import LightningStoreClient, StoreApp, StoreAppOptions
from agl_store_memory import InMemoryLightningStore

# Sits out a restart: a minute of probing before a call gives up.
PATIENT: dict[str, Any] = {
    "retry_delays": (0.01,) * 50,
    "health_retry_delays": (0.05,) * 400,
    "request_timeout": 5.0,
}
SPANS = 4


def make_outer(inner_url: str) -> StoreApp:
    return StoreApp(LightningStoreClient(inner_url, **PATIENT), StoreAppOptions())


class Work:
    """Enqueues tasks and runs them, all over clients of one address."""

    def __init__(self, url: str, tasks: int, runners: int = 6) -> None:
        self.url, self.tasks, self.runners = url, tasks, runners
        self.ran: list[str] = []
        self.claims: set[tuple[str, str]] = set()
        self.enqueued: list[str] = []
        self.half_done = asyncio.Event()
        self.done = asyncio.Event()

    async def run(self) -> None:
        clients = [LightningStoreClient(self.url, **PATIENT) for _ in range(self.runners + 1)]
        try:
            async with asyncio.timeout(90):
                await asyncio.gather(
                    self.enqueue(clients[0]),
                    *(self.runner(client, f"w{n}") for n, client in enumerate(clients[1:])),
                )
        finally:
            for client in clients:
                await client.close()

    async def enqueue(self, client: LightningStoreClient) -> None:
        for number in range(self.tasks):
            self.enqueued.append((await client.enqueue_rollout(number)).rollout_id)
        finished = await client.wait_for_rollouts(rollout_ids=self.enqueued, timeout=80)
        assert len(finished) == self.tasks
        self.done.set()

    async def runner(self, client: LightningStoreClient, worker_id: str) -> None:
        while not self.done.is_set():
            claim = await client.dequeue_rollout(worker_id, wait=0.5)
            if claim is None:
                continue
            ids = (claim.rollout_id, claim.attempt.attempt_id)
            assert ids not in self.claims, "one claim came twice"
            self.claims.add(ids)
            numbers = await client.get_many_span_sequence_ids([ids] * SPANS)
            spans = [
                Span.from_attributes(
                    attributes={"task": claim.input},
                    rollout_id=ids[0],
                    attempt_id=ids[1],
                    sequence_id=number,
                )
                for number in numbers
            ]
            assert await client.add_many_spans(spans[:-1]) == spans[:-1]
            assert await client.add_span(spans[-1]) == spans[-1]
            await client.update_attempt(*ids, status="succeeded")
            self.ran.append(claim.rollout_id)
            if len(self.ran) >= self.tasks // 2:
                self.half_done.set()

    async def check(self, store: InMemoryLightningStore) -> None:
        """No task lost or run twice, no span missing or doubled, all counts right."""
        assert sorted(self.ran) == sorted(self.enqueued)
        rollouts = (await store.query_rollouts()).items
        assert sorted(item.rollout_id for item in rollouts) == sorted(self.enqueued)
        assert sorted(item.input for item in rollouts) == list(range(self.tasks))
        assert {item.status for item in rollouts} == {"succeeded"}
        for rollout in rollouts:
            attempts = (await store.query_attempts(rollout.rollout_id)).items
            assert [item.status for item in attempts] == ["succeeded"]
            spans = (await store.query_spans(rollout.rollout_id)).items
            assert len({span.span_id for span in spans}) == len(spans) == SPANS
            assert len({span.sequence_id for span in spans}) == SPANS
        counts = await store.statistics()
        assert counts.get("total_rollouts") == self.tasks
        assert counts.get("total_attempts") == self.tasks
        assert counts.get("total_spans") == self.tasks * SPANS
        assert counts.get("total_workers") == self.runners
        workers = (await store.query_workers()).items
        assert {worker.current_attempt_id for worker in workers} == {None}


@pytest_asyncio.fixture
async def inner() -> AsyncIterator[tuple[InMemoryLightningStore, str]]:
    store = InMemoryLightningStore()
    launcher = PythonServerLauncher(StoreApp(store), PythonServerLauncherArgs(launch_mode="thread"))
    await launcher.start()
    yield store, launcher.endpoint
    await launcher.stop()


async def start_again(server: PythonServerLauncher) -> None:
    """Start on a port that was just given up.

    It comes from the range of outgoing connections, so one of the clients that try to reconnect
    may hold it for a moment.
    """
    async with asyncio.timeout(30):
        while True:
            try:
                return await server.start()
            except LaunchError:
                await asyncio.sleep(0.02)


async def server_pid(url: str) -> int:
    """The process that listens there, asked of the operating system."""
    import psutil

    port = int(url.rpartition(":")[2])
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(c.laddr.port == port and c.status == "LISTEN" for c in child.net_connections()):
                return child.pid
    raise AssertionError(f"nobody listens at {url}")


@pytest.mark.parametrize(
    ("tasks", "kills"),
    [(60, 2), pytest.param(600, 12, marks=pytest.mark.slow)],
)
async def test_a_server_killed_under_load(inner, tasks, kills):
    store, inner_url = inner
    outer = partial(make_outer, inner_url)

    def launcher(port: int | None) -> PythonServerLauncher:
        return PythonServerLauncher(
            outer,
            PythonServerLauncherArgs(
                port=port,
                launch_mode="mp",
                start_method="spawn",
                healthcheck_url="/v1/agl/health",
            ),
            factory=True,
        )

    server = launcher(None)
    await server.start()
    url = server.endpoint
    work = Work(url, tasks)
    running = asyncio.create_task(work.run())
    for _ in range(kills):
        progress = len(work.ran)
        while len(work.ran) < min(progress + tasks // (kills + 1), tasks - 1):
            await asyncio.sleep(0.01)
            assert not running.done() or running.result() is None
        os.kill(await server_pid(url), signal.SIGKILL)
        with contextlib.suppress(Exception):
            await server.wait()
        server = launcher(server.port)
        await start_again(server)
    await running
    await server.stop()
    await work.check(store)


class CuttingRelay:
    """Forwards TCP, and cuts connections: before, in or after a request or its reply.

    Args:
        target: Port to forward to.
        share: Share of chunks at which a connection is cut.
    """

    def __init__(self, target: int, share: float, seed: int = 0) -> None:
        self.target, self.share = target, share
        self.dice = random.Random(seed)
        self.cuts = {"request": 0, "reply": 0}
        self.server: asyncio.Server
        self.connections: set[Any] = set()

    async def start(self) -> int:
        self.server = await asyncio.start_server(self.connection, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.server.close()
        await self.server.wait_closed()
        if self.connections:
            # Their clients are gone; a loop that closes first would leave their sockets open.
            _, still_open = await asyncio.wait(self.connections, timeout=30)
            assert not still_open

    async def connection(self, reader: Any, writer: Any) -> None:
        self.connections.add(task := asyncio.current_task())
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        pumps = {
            asyncio.create_task(self.pump("request", reader, there_writer)),
            asyncio.create_task(self.pump("reply", there_reader, writer)),
        }
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for side in (writer, there_writer):
            side.transport.abort()
        self.connections.discard(task)

    async def pump(self, way: str, source: Any, sink: Any) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(65536):
                if self.dice.random() < self.share:
                    self.cuts[way] += 1
                    # Some of it arrives, all of it (its answer does not), or nothing.
                    sink.write(chunk[: self.dice.randrange(len(chunk) + 1)])
                    await sink.drain()
                    return
                sink.write(chunk)
                await sink.drain()


@pytest.mark.parametrize(
    ("tasks", "share", "seed"),
    [
        (40, 0.05, 1),
        (40, 0.2, 2),
        *(pytest.param(300, 0.1, seed, marks=pytest.mark.slow) for seed in range(3, 8)),
    ],
)
async def test_connections_cut_in_requests_and_replies(inner, tasks, share, seed):
    store, inner_url = inner
    relay = CuttingRelay(int(inner_url.rpartition(":")[2]), share, seed)
    port = await relay.start()
    work = Work(f"http://127.0.0.1:{port}", tasks)
    await work.run()
    await relay.stop()
    assert relay.cuts["request"] > 5
    assert relay.cuts["reply"] > 5
    await work.check(store)


async def test_the_clock_jumps(inner, monkeypatch):
    """Waits, retries and remembered replies go by a clock that no process can set."""
    store, url = inner
    relay = CuttingRelay(int(url.rpartition(":")[2]), 0.05, 3)
    port = await relay.start()
    work = Work(f"http://127.0.0.1:{port}", 40)
    real = time.time
    shift = 0.0
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    running = asyncio.create_task(work.run())
    for jump in (86_400.0, -86_400.0, 3600.0, -1e6, 0.0):
        shift = jump
        progress = len(work.ran)
        while len(work.ran) < min(progress + 6, 40) and not running.done():
            await asyncio.sleep(0.01)
    await running
    await relay.stop()
    await work.check(store)


async def test_a_runner_that_dies_costs_one_attempt(inner):
    """Its connection breaks in the middle of an attempt and it never comes back."""
    from agl_core.types import RolloutConfig

    store, url = inner
    config = RolloutConfig(
        unresponsive_seconds=0.2, max_attempts=2, retry_condition=["unresponsive"]
    )
    rollout = await store.enqueue_rollout("x", config=config)
    dying = LightningStoreClient(url, **PATIENT)
    claim = await dying.dequeue_rollout("dead")
    assert claim is not None
    await dying.close()
    await asyncio.sleep(0.3)
    store._last_scan = None
    alive = LightningStoreClient(url, **PATIENT)
    again = await alive.dequeue_rollout("alive", wait=20)
    assert again is not None
    assert (again.rollout_id, again.attempt.sequence_id) == (rollout.rollout_id, 2)
    await alive.update_attempt(again.rollout_id, again.attempt.attempt_id, status="succeeded")
    attempts = (await store.query_attempts(rollout.rollout_id)).items
    assert [item.status for item in attempts] == ["unresponsive", "succeeded"]
    await alive.close()
