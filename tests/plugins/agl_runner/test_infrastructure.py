"""Failures of the proxy and the store are told from those of the agent, and repeated."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import openai
import pytest

from agl_algorithm_kit import run_batch
from agl_core.errors import (
    AgentTimeoutError,
    RunFailedError,
    StoreFullError,
    StoreUnavailableError,
)
from agl_core.semconv import INFRASTRUCTURE_HEADER
from agl_core.types import ProxyLLM, RolloutConfig
from agl_runner import attempt, infrastructure
from agl_store_memory import InMemoryLightningStore


class Proxy(ThreadingHTTPServer):
    """A proxy that says how long it has served, and answers calls with what a test sets."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.began = time.monotonic()
        self.reply: tuple[int, dict[str, str]] = (200, {})
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def end(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        status, headers = (200, {}) if self.path == "/health" else self.server.reply
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        uptime = time.monotonic() - self.server.began
        self.wfile.write(json.dumps({"status": "ok", "uptime": uptime}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = Proxy()
    yield server
    server.end()


def call(url: str) -> None:
    with urllib.request.urlopen(url + "/v1/chat/completions", timeout=5):
        pass


async def run_all(bench: Any, runner: Any, config: RolloutConfig | None = None) -> Any:
    rollout = await bench.store.enqueue_rollout("task", config=config)
    await runner.iter(until_idle=True)
    return await bench.store.get_rollout_by_id(rollout.rollout_id)


async def give(bench: Any, url: str) -> None:
    await bench.store.add_resources({"llm": ProxyLLM(endpoint=url + "/v1", model="q")})


async def test_a_proxy_that_restarts_costs_no_rollout(bench: Any, proxy: Proxy):
    """The attempt waits until the proxy serves again; the rollout is then claimed again."""
    port = proxy.server_address[1]
    again: list[Proxy] = []
    began: list[float] = []

    def agent(task: str) -> float:
        began.append(time.monotonic())
        if len(began) == 1:
            proxy.end()
            threading.Timer(1.0, lambda: again.append(Proxy(port))).start()
        call(proxy.url)
        return 0.5

    await give(bench, proxy.url)
    rollout = await run_all(bench, await bench.runner(agent))
    for one in again:
        one.end()
    assert rollout.status == "succeeded"
    assert began[1] - began[0] > 1.0
    first, second = await bench.store.query_attempts(rollout.rollout_id)
    assert first.metadata["infrastructure"] == "proxy"
    assert first.metadata["error_type"] == "URLError"
    assert (first.status, second.status) == ("failed", "succeeded")
    assert second.metadata == {"infrastructure_failures": 1}


@pytest.mark.parametrize("client", ["openai", "urllib"])
async def test_a_proxy_that_moves_is_found_soon(bench: Any, proxy: Proxy, client: str):
    """A resumed run starts its proxy elsewhere: a call that waits for the old one gives up."""
    new = Proxy()
    moves: list[asyncio.Task[Any]] = []

    def put(server: Proxy) -> asyncio.Task[Any]:
        llm = ProxyLLM(endpoint=server.url + "/v1", model="q")
        return asyncio.ensure_future(bench.store.update_resources("run/step-1", {"llm": llm}))

    async def agent(task: str) -> float:
        if moves:
            return 0.5
        proxy.end()
        asyncio.get_running_loop().call_later(0.5, lambda: moves.append(put(new)))
        if client == "urllib":
            call(proxy.url)
        url = proxy.url + "/rollout/ro-1/attempt/at-1/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as caller:
            await caller.chat.completions.create(model="q", messages=[])
        raise AssertionError("nothing answers")

    await put(proxy)
    began = time.monotonic()
    rollout = await run_all(bench, await bench.runner(agent))
    new.end()
    assert time.monotonic() - began < 30  # not the 300 s of a proxy that is only away
    assert rollout.status == "succeeded"
    first, second = await bench.store.query_attempts(rollout.rollout_id)
    assert first.metadata["infrastructure"] == "proxy"
    assert (first.status, second.status) == ("failed", "succeeded")


async def test_a_connection_that_fails_elsewhere_is_the_agents(bench: Any, proxy: Proxy):
    """The proxy served all the time, so it was not the server that was away."""

    def agent(task: str) -> float:
        raise ConnectionResetError("the agent's own database")

    proxy.began -= 100.0
    await give(bench, proxy.url)
    rollout = await run_all(bench, await bench.runner(agent))
    (attempt,) = await bench.store.query_attempts(rollout.rollout_id)
    assert rollout.status == "failed"
    assert "infrastructure" not in attempt.metadata


@pytest.mark.parametrize("status", [503, 502])
async def test_the_proxys_word_counts_and_at_most_twice(bench: Any, proxy: Proxy, status: int):
    tries: list[str] = []

    def agent(task: str) -> float:
        tries.append(task)
        try:
            call(proxy.url)
        except urllib.error.HTTPError as error:
            error.close()
            raise RuntimeError("the agent wraps it") from error
        return 1.0

    proxy.reply = (status, {"X-AGL-Infrastructure": "store_unavailable"})
    await give(bench, proxy.url)
    rollout = await run_all(bench, await bench.runner(agent))
    assert (rollout.status, len(tries)) == ("failed", 3)
    attempt = await bench.attempt()
    assert attempt.metadata["infrastructure_failures"] == 3
    proxy.reply = (status, {})
    rollout = await run_all(bench, await bench.runner(agent))
    assert (rollout.status, len(tries)) == ("failed", 4)


async def test_it_can_be_switched_off(bench: Any, proxy: Proxy):
    tries: list[str] = []

    def agent(task: str) -> float:
        tries.append(task)
        raise StoreUnavailableError("away")

    runner = await bench.runner(agent)
    rollout = await run_all(bench, runner, RolloutConfig(infrastructure_retries=0))
    assert (rollout.status, len(tries)) == ("failed", 1)
    runner.get_agent().repeatable = False
    rollout = await run_all(bench, runner)
    assert (rollout.status, len(tries)) == ("failed", 2)
    attempt = await bench.store.get_latest_attempt(rollout.rollout_id)
    assert attempt.metadata["infrastructure"] == "store"


async def test_the_agents_own_retries_are_counted_apart(bench: Any):
    tries: list[str] = []

    def agent(task: str) -> float:
        tries.append(task)
        if len(tries) in (1, 3):
            raise StoreUnavailableError("away")
        raise ValueError("the agent's")

    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await run_all(bench, await bench.runner(agent), config)
    # Two by the infrastructure, two by the agent.
    assert (rollout.status, len(tries)) == ("failed", 4)


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), StoreFullError("full")])
async def test_what_the_infrastructure_failed_is_not_scored(bench: Any, error: Exception):
    def agent(task: str) -> float:
        if task == "away":
            raise error
        return 0.5

    runner = await bench.runner(agent)
    work = asyncio.create_task(runner.iter())
    batch = await run_batch(bench.store, ["good", "away"], resources={})
    work.cancel()
    assert [one.infrastructure for one in batch] == [None, "store"]
    assert batch.rewards() == [0.5]
    assert batch.score().mean == 0.5
    assert list(batch.task_rewards().values()) == [0.5]


async def test_a_batch_that_the_infrastructure_failed_as_a_whole_is_an_error(bench: Any):
    def agent(task: str) -> float:
        raise StoreUnavailableError("away")

    work = asyncio.create_task((await bench.runner(agent)).iter())
    with pytest.raises(RunFailedError, match="all 2 rollouts failed by the store"):
        await run_batch(bench.store, ["one", "two"], resources={})
    work.cancel()


async def test_a_stopped_agent_is_not_the_infrastructures():
    error = AgentTimeoutError("too long")
    error.__cause__ = ConnectionResetError()
    assert infrastructure.is_the_agents(error)
    assert infrastructure.is_the_agents(KeyboardInterrupt())
    assert not infrastructure.is_the_agents(ConnectionResetError())


def test_causes_are_found_in_groups_and_chains_that_loop():
    inner = ConnectionRefusedError()
    outer = ExceptionGroup("several", [ValueError(), RuntimeError()])
    outer.exceptions[1].__context__ = inner
    inner.__context__ = outer
    assert infrastructure.lost_connection(outer)
    assert infrastructure.was_reported(outer) is None
    assert not infrastructure.lost_connection(ValueError("connection refused"))


async def test_waiting_ends_when_the_rollout_is_cancelled(bench: Any, proxy: Proxy):
    """The status is written at once, although the proxy stays away."""

    async def agent(task: str) -> float:
        proxy.end()
        raise ConnectionResetError("gone")

    await give(bench, proxy.url)
    runner = await bench.runner(agent, heartbeat_interval=0.1, interval_jitter=0.0)
    rollout = await bench.store.enqueue_rollout("task")
    work = asyncio.create_task(runner.iter(until_idle=True))
    while (await bench.store.get_rollout_by_id(rollout.rollout_id)).status == "queuing":
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)  # it waits for the proxy now
    assert not work.done()
    await bench.store.update_rollout(rollout.rollout_id, status="cancelled")
    await asyncio.wait_for(work, 10)
    assert (await bench.statuses()) == ["cancelled"]


async def test_an_attempt_that_waits_for_its_proxy_is_not_unresponsive(bench: Any, proxy: Proxy):
    """The verdict would end the rollout, and the runner's status would queue it again."""
    port = proxy.server_address[1]
    again: list[Proxy] = []
    bench.store = InMemoryLightningStore(scan_debounce_seconds=0.0)

    def agent(task: str) -> float:
        if not again:
            proxy.end()
            timer = threading.Timer(1.2, lambda: again.append(Proxy(port)))
            timer.start()
        call(proxy.url)
        return 0.5

    await give(bench, proxy.url)
    runner = await bench.runner(agent)
    seen: set[str] = set()
    rollout = await bench.store.enqueue_rollout(
        "task", config=RolloutConfig(unresponsive_seconds=0.5)
    )
    work = asyncio.create_task(runner.iter(until_idle=True))
    while not work.done():
        seen |= {one.status for one in await bench.store.query_attempts(rollout.rollout_id)}
        await asyncio.sleep(0.02)
    await work
    for one in again:
        one.end()
    assert "unresponsive" not in seen
    assert await bench.statuses() == ["succeeded"]


def test_the_proxys_word_is_read_from_replies_that_are_false():
    """As ``requests.Response`` is for a status that is an error."""

    class Response:
        headers: ClassVar = {INFRASTRUCTURE_HEADER: "proxy"}

        def __bool__(self) -> bool:
            return False

    error = RuntimeError("503")
    error.response = Response()  # pyright: ignore[reportAttributeAccessIssue]
    assert infrastructure.was_reported(error) == "proxy"


async def test_what_cannot_be_found_out_costs_no_status(
    bench: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    def agent(task: str) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(attempt, "find_away", fail)
    await give(bench, proxy.url)
    rollout = await run_all(bench, await bench.runner(agent))
    assert rollout.status == "failed"
