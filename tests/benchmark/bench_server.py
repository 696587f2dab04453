"""Measures the store server's operations per CPU second, beside a bare ASGI app.

Run it as a benchmark test, or as a script: ``python tests/benchmark/bench_server.py [CASE...]``.
Server and load generator are separate processes. The generator keeps 16 connections busy, with
minimal HTTP/1.1, so that its own cost is small. With ``AGL_BENCH_BESIDE=/path/to/checkout`` the
server of another checkout (``.venv/bin/python`` in it) gets the same load in turn; a ratio above 1
means that this checkout does more per CPU second. The store is in memory; with
``AGL_BENCH_STORE=sqlite`` the servers are those of ``agl store --backend sqlite``.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.benchmark

CONNECTIONS = 16
SECONDS = 3.0
ROUNDS = 6
HERE = Path(__file__).resolve().parents[2]
PREFIX = "/v1/agl"
TEXT = "x" * 150
STORE = os.environ.get("AGL_BENCH_STORE", "memory")


# -- the two servers -------------------------------------------------------------------------------


async def bare_app(scope: Any, receive: Any, send: Any) -> None:
    """Read a body and answer with as many bytes as the path says: the minimal app on uvicorn."""
    if scope["type"] != "http":
        return
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    body = b"x" * int(scope["path"].rpartition("/")[2] or 0)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(kind: str) -> None:
    import logging

    from agl_serving import (
        PythonServerLauncher,
        PythonServerLauncherArgs,
        freeze_memory,
        run_in_new_loop,
    )

    if kind == "bare":
        app: Any = bare_app
    else:
        from agl_store_http import StoreApp
        from agl_store_memory import InMemoryLightningStore

        app = StoreApp(InMemoryLightningStore())
    logging.disable(logging.WARNING)

    async def main() -> None:
        launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
        await launcher.start()
        freeze_memory()
        print(launcher.port, flush=True)
        await launcher.wait()

    run_in_new_loop(main)


# -- the load generator ----------------------------------------------------------------------------


Steps = Callable[[], Generator[bytes, bytes, int]]
"""One operation: it yields requests, receives their replies, and returns its weight."""


class Connection(asyncio.Protocol):
    """One keep-alive connection that runs operations one after another.

    Incoming data drives it, without tasks and futures: the generator must be faster than the
    server. Otherwise the server would wait for it and spend CPU time on sleeping and waking up.
    """

    def __init__(self, steps: Steps, until: float) -> None:
        self.steps, self.until = steps, until
        self.buffer = bytearray()
        self.latencies: list[float] = []
        self.operations = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.begin()

    def begin(self) -> None:
        self.operation = self.steps()
        self.began = time.perf_counter()
        self.transport.write(next(self.operation))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self.buffer.index(b"content-length: ") + 16
        size = int(self.buffer[start : self.buffer.index(b"\r\n", start)])
        if len(self.buffer) < end + 4 + size:
            return
        body = bytes(self.buffer[end + 4 :])
        if self.buffer[9:10] != b"2":
            self.done.set_exception(RuntimeError(f"{bytes(self.buffer[:200])!r}"))
            return
        self.buffer.clear()
        try:
            request = self.operation.send(body)
        except StopIteration as stop:
            now = time.perf_counter()
            self.latencies.append(now - self.began)
            self.operations += stop.value
            if now < self.until:
                self.begin()
            elif not self.done.done():
                self.done.set_result(None)
        else:
            self.transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


def http(method: str, path: str, body: Any = b"", kind: str = "application/json") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    ).encode() + data


@dataclass
class Measured:
    """One case: operations, their latencies in milliseconds, and the wall clock."""

    operations: int
    seconds: float
    p50: float
    p99: float


async def drive(port: int, steps: Steps, seconds: float, concurrency: int) -> Measured:
    """Keep ``concurrency`` connections busy until the time is up."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    connections: list[Connection] = []
    for _ in range(concurrency):
        _, made = await loop.create_connection(
            lambda: Connection(steps, began + seconds), "127.0.0.1", port
        )
        connections.append(made)
    await asyncio.gather(*(item.done for item in connections))
    took = time.perf_counter() - began
    for item in connections:
        item.transport.close()
    latencies = sorted(taken for item in connections for taken in item.latencies)
    return Measured(
        sum(item.operations for item in connections),
        took,
        latencies[len(latencies) // 2] * 1e3,
        latencies[int(len(latencies) * 0.99)] * 1e3,
    )


async def once(port: int, request: bytes) -> bytes:
    replies: list[bytes] = []

    def steps() -> Generator[bytes, bytes, int]:
        replies.append((yield request))
        return 1

    await drive(port, steps, 0.0, 1)
    return replies[0]


# -- cases -----------------------------------------------------------------------------------------


class Cases:
    """The cases; each method prepares the server and returns the step to repeat and a request."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(self, method: str, path: str, body: Any = b"") -> Any:
        return json.loads(await once(self.port, http(method, PREFIX + path, body)))

    async def claim(self) -> tuple[str, str]:
        await self.ask("POST", "/queues/rollouts/enqueue", {"rollouts": [{"input": 1}]})
        claimed = (await self.ask("POST", "/queues/rollouts/dequeue"))[0]
        return claimed["rollout_id"], claimed["attempt"]["attempt_id"]

    async def claims(self) -> list[tuple[str, str]]:
        """Claim one attempt per connection, so that connections do not share cached attempts."""
        return [await self.claim() for _ in range(CONNECTIONS)]

    def repeat(self, *requests: bytes, weight: int = 1) -> tuple[Steps, bytes]:
        turns = cycle(requests)

        def steps() -> Generator[bytes, bytes, int]:
            yield next(turns)
            return weight

        return steps, requests[0]

    async def enqueue(self) -> tuple[Steps, bytes]:
        body = {"rollouts": [{"input": {"question": TEXT}, "mode": "train"}]}
        return self.repeat(http("POST", f"{PREFIX}/queues/rollouts/enqueue", body))

    async def dequeue(self) -> tuple[Steps, bytes]:
        for _ in range(240):
            batch = [{"input": {"question": TEXT}, "mode": "train"}] * 1000
            await self.ask("POST", "/queues/rollouts/enqueue", {"rollouts": batch})
        body = {"worker_id": "Worker-1"}
        return self.repeat(http("POST", f"{PREFIX}/queues/rollouts/dequeue", body))

    async def add_span(self) -> tuple[Steps, bytes]:
        numbers = iter(range(10**9))
        makers = [span_maker(*ids) for ids in await self.claims()]

        def request() -> bytes:
            number = next(numbers)
            return http("POST", f"{PREFIX}/spans", makers[number % len(makers)](number))

        def steps() -> Generator[bytes, bytes, int]:
            yield request()
            return 1

        return steps, request()

    async def span_batch(self) -> tuple[Steps, bytes]:
        rollout_id, attempt_id = await self.claim()
        numbers = iter(range(10**9))
        make = span_maker(rollout_id, attempt_id)

        def request() -> bytes:
            spans = b",".join(make(next(numbers)) for _ in range(50))
            return http("POST", f"{PREFIX}/spans/batch", b'{"spans":[' + spans + b"]}")

        def steps() -> Generator[bytes, bytes, int]:
            yield request()
            return 50

        return steps, request()

    async def update_attempt(self) -> tuple[Steps, bytes]:
        paths = [f"{PREFIX}/rollouts/{ids[0]}/attempts/{ids[1]}" for ids in await self.claims()]
        return self.repeat(*(http("POST", path, {"status": "running"}) for path in paths))

    async def heartbeat(self) -> tuple[Steps, bytes]:
        stats = {"cpu": 0.5, "memory": 123456789, "host": "machine-1", "pid": 4242}
        paths = [f"{PREFIX}/workers/Worker-{number}" for number in range(CONNECTIONS)]
        return self.repeat(*(http("POST", path, {"heartbeat_stats": stats}) for path in paths))

    async def next_id(self) -> tuple[Steps, bytes]:
        bodies = [
            {"rollout_id": rollout_id, "attempt_id": attempt_id}
            for rollout_id, attempt_id in await self.claims()
        ]
        return self.repeat(*(http("POST", f"{PREFIX}/spans/next", body) for body in bodies))

    async def get_rollout(self) -> tuple[Steps, bytes]:
        rollout_id, _ = await self.claim()
        return self.repeat(http("GET", f"{PREFIX}/rollouts/{rollout_id}"))

    async def otlp(self) -> tuple[Steps, bytes]:
        rollout_id, attempt_id = await self.claim()
        make = otlp_maker(rollout_id, attempt_id)
        prepared = [make(number) for number in range(400)]
        numbers = iter(range(10**9))

        def request() -> bytes:
            # Encoding costs the generator more than decoding costs the server. So batches are
            # encoded in advance and only their span ids, which have a fixed width, are replaced.
            number = next(numbers)
            body, marks = prepared[number % len(prepared)]
            data = bytearray(body)
            for position, mark in enumerate(marks):
                data[mark : mark + 8] = (number * 50 + position + 1).to_bytes(8, "big")
            return http("POST", "/v1/traces", bytes(data), "application/x-protobuf")

        def steps() -> Generator[bytes, bytes, int]:
            yield request()
            return 50

        return steps, request()

    async def otlp_large(self, *, read: bool = False) -> tuple[Steps, bytes]:
        """Send batches of 50 spans of 32 attributes, each batch to another rollout."""
        batch = [{"input": 1}] * 1000
        await self.ask("POST", "/queues/rollouts/enqueue", {"rollouts": batch})
        claims = await self.ask("POST", "/queues/rollouts/dequeue", {"limit": 1000})
        ids = [(claim["rollout_id"], claim["attempt"]["attempt_id"]) for claim in claims]
        texts = {f"attribute.number.{index}": TEXT for index in range(32)}
        body, marks = otlp_maker(*ids[0], attributes=texts)(0)
        places = [body.index(value.encode()) for value in ids[0]]
        numbers = iter(range(10**9))

        def steps() -> Generator[bytes, bytes, int]:
            number = next(numbers)
            data = bytearray(body)
            for place, value in zip(places, ids[number % len(ids)], strict=True):
                data[place : place + len(value)] = value.encode()
            for position, mark in enumerate(marks):
                data[mark : mark + 8] = (number * 50 + position + 1).to_bytes(8, "big")
            yield http("POST", "/v1/traces", bytes(data), "application/x-protobuf")
            if read:
                rollout_id = ids[number % len(ids)][0]
                offset = number // len(ids) * 50
                query = f"rollout_id={rollout_id}&limit=50&offset={offset}"
                yield http("GET", f"{PREFIX}/spans?{query}")
            return 50

        return steps, http("POST", "/v1/traces", body, "application/x-protobuf")

    async def otlp_large_read(self) -> tuple[Steps, bytes]:
        return await self.otlp_large(read=True)

    async def fifty_large(self) -> tuple[Steps, bytes]:
        return await self.fifty_of_50000(attributes=32)

    async def fifty_of_50000(self, *, attributes: int = 4) -> tuple[Steps, bytes]:
        """Read the 50 spans of each of 1,000 rollouts in turn, so that no read helps the next."""
        requests: list[bytes] = []
        for _ in range(1000):
            rollout_id, attempt_id = await self.claim()
            requests.append(http("GET", f"{PREFIX}/spans?rollout_id={rollout_id}"))
            make = span_maker(rollout_id, attempt_id, attributes=attributes)
            spans = b",".join(make(number) for number in range(50))
            body = b'{"spans":[' + spans + b"]}"
            await self.ask("POST", "/spans/batch", body)
        return self.repeat(*requests)

    async def page_of_20000(self) -> tuple[Steps, bytes]:
        for _ in range(20):
            batch = [{"input": {"question": TEXT}, "mode": "train"}] * 1000
            await self.ask("POST", "/queues/rollouts/enqueue", {"rollouts": batch})
        for _ in range(5):
            await self.ask("POST", "/queues/rollouts/dequeue", {"limit": 1000})
        query = "status_in=preparing&status_in=running&sort_by=start_time&sort_order=desc&limit=20"
        return self.repeat(http("GET", f"{PREFIX}/rollouts?{query}"))

    async def cycle(self) -> tuple[Steps, bytes]:
        for _ in range(60):
            batch = [{"input": {"question": TEXT}, "mode": "train"}] * 1000
            await self.ask("POST", "/queues/rollouts/enqueue", {"rollouts": batch})
        dequeue = http("POST", f"{PREFIX}/queues/rollouts/dequeue", {"worker_id": "Worker-1"})

        def steps() -> Generator[bytes, bytes, int]:
            claim = json.loads((yield dequeue))[0]
            rollout_id, attempt_id = claim["rollout_id"], claim["attempt"]["attempt_id"]
            ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
            make = span_maker(rollout_id, attempt_id)
            for number in range(4):
                yield http("POST", f"{PREFIX}/spans/next", ids)
                yield http("POST", f"{PREFIX}/spans", make(number))
            path = f"{PREFIX}/rollouts/{rollout_id}/attempts/{attempt_id}"
            yield http("POST", path, {"status": "succeeded"})
            return 1

        return steps, dequeue


def span_maker(rollout_id: str, attempt_id: str, attributes: int = 32) -> Callable[[int], bytes]:
    """Return a function that makes the JSON of a span with attributes of 150 characters."""
    from agl_core.types import Span

    span = Span.from_attributes(
        attributes={f"attribute.number.{index}": TEXT for index in range(attributes)},
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=1,
        name="openai.chat.completion",
        start_time=1700000000.125,
        end_time=1700000001.25,
        trace_id="0" * 32,
        span_id="f" * 16,
    )
    template = span.model_dump_json().encode()
    head, tail = template.split(b"f" * 16, 1)

    def make(number: int) -> bytes:
        return b"%b%016x%b" % (head, number, tail)

    return make


def otlp_maker(
    rollout_id: str, attempt_id: str, attributes: dict[str, str] | None = None
) -> Callable[[int], tuple[bytes, list[int]]]:
    """Return a function that makes an export request of 50 spans, and the span ids' offsets."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    def make(batch: int) -> tuple[bytes, list[int]]:
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        for key, value in (
            ("service.name", "agent"),
            ("agentlightning.rollout_id", rollout_id),
            ("agentlightning.attempt_id", attempt_id),
        ):
            pair = group.resource.attributes.add()
            pair.key, pair.value.string_value = key, value
        scope = group.scope_spans.add()
        marks = [f"%{batch % 1000:03d}{index:03d}%".encode() for index in range(50)]
        for index in range(50):
            span = scope.spans.add()
            span.trace_id = bytes(16)
            span.span_id = marks[index]
            span.name = "openai.chat.completion"
            span.start_time_unix_nano = 1700000000_000000000
            span.end_time_unix_nano = 1700000001_000000000
            span.status.code = Status.STATUS_CODE_OK
            few = {
                "gen_ai.request.model": "a-model",
                "gen_ai.prompt.0.content": TEXT,
                "gen_ai.completion.0.content": TEXT,
            }
            for key, value in (attributes or few).items():
                pair = span.attributes.add()
                pair.key, pair.value.string_value = key, value
            pair = span.attributes.add()
            pair.key, pair.value.int_value = "gen_ai.usage.prompt_tokens", 64
        body = request.SerializeToString()
        return body, [body.index(mark) for mark in marks]

    return make


@dataclass
class Server:
    """A server process under load, and what it has cost so far."""

    port: int
    process: psutil.Process
    cpu: float = 0.0
    operations: int = 0
    seconds: float = 0.0
    latencies: tuple[float, float] = (0.0, 0.0)

    async def drive(self, steps: Steps, seconds: float) -> None:
        before = self._cpu_time()
        measured = await drive(self.port, steps, seconds, CONNECTIONS)
        self.cpu += self._cpu_time() - before
        self.operations += measured.operations
        self.seconds += measured.seconds
        self.latencies = (measured.p50, measured.p99)

    def _cpu_time(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


async def load(case: str, servers: list[Server], bare: Server) -> list[dict[str, Any]]:
    """Put the load of one case on the servers in turn, in short slices: they share all noise."""
    prepared = [await getattr(Cases(server.port), case)() for server in servers]
    replies = [
        await once(server.port, first) for server, (_, first) in zip(servers, prepared, strict=True)
    ]
    memory = [server.process.memory_info().rss for server in servers]
    for _ in range(ROUNDS):
        for server, (steps, _) in zip(servers, prepared, strict=True):
            await server.drive(steps, SECONDS / ROUNDS)

    first = prepared[0][1]
    _, _, body = first.partition(b"\r\n\r\n")
    bare_request = http(first.split(b" ", 1)[0].decode(), f"/{len(replies[0])}", body)

    def bare_steps() -> Generator[bytes, bytes, int]:
        yield bare_request
        return 1

    await bare.drive(bare_steps, SECONDS / 2)
    return [
        {
            "ops": server.operations / server.seconds,
            "per_cpu": server.operations / server.cpu,
            "p50": server.latencies[0],
            "p99": server.latencies[1],
            "bare_per_cpu": bare.operations / bare.cpu,
            "rss_mb": server.process.memory_info().rss / 1e6,
            "grown_mb": (server.process.memory_info().rss - before) / 1e6,
            "operations": server.operations,
        }
        for server, before in zip(servers, memory, strict=True)
    ]


# -- putting it together ---------------------------------------------------------------------------

CASES = [
    ("enqueue", 7_430),
    ("dequeue", 6_940),
    ("add_span", 6_360),
    ("span_batch", None),
    ("update_attempt", 8_220),
    ("heartbeat", 8_030),
    ("next_id", None),
    ("get_rollout", None),
    ("otlp", 51_280),
    ("otlp_large", None),
    ("otlp_large_read", None),
    ("fifty_of_50000", 4_840),
    ("fifty_large", None),
    ("page_of_20000", 3_950),
    ("cycle", 710),
]


def start(
    kind: str, checkout: Path = HERE, folder: str | None = None
) -> tuple[subprocess.Popen[str], int, float]:
    """Start a server in a new folder; return its process, its port and the seconds it took."""
    python = sys.executable if checkout == HERE else str(checkout / ".venv/bin/python")
    file = str(checkout / "tests/benchmark/bench_server.py")
    command = [python, file, "--serve", kind]
    if kind == "store" and STORE != "memory":
        command = [str(Path(python).with_name("agl")), "store", "--backend", STORE, "--port", "0"]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder and tempfile.mkdtemp(dir=folder)
    )
    assert process.stdout is not None
    port = int(re.findall(r"\d+", process.stdout.readline())[-1])
    return process, port, time.perf_counter() - began


def run_cases(names: list[str]) -> Iterator[str]:
    beside = os.environ.get("AGL_BENCH_BESIDE")
    checkouts = [HERE] if beside is None else [HERE, Path(beside)]
    bare, bare_port, _ = start("bare")
    try:
        yield (
            f"{'case':16}{'ops/s':>9}{'ops/CPU-s':>11}{'target':>8}{'bare/CPU-s':>12}{'%bare':>7}"
            f"{'p50 ms':>8}{'p99 ms':>8}{'CPU-s/1k':>10}{'start s':>9}{'idle MB':>9}{'RSS MB':>8}"
            f"{'MB/10k':>8}" + (f"{'beside/CPU-s':>14}{'ratio':>7}" if beside else "")
        )
        for name, target in CASES:
            if names and name not in names:
                continue
            folder = tempfile.TemporaryDirectory()
            servers = [start("store", checkout, folder.name) for checkout in checkouts]
            try:
                idle = psutil.Process(servers[0][0].pid).memory_info().rss / 1e6
                places = [
                    str(number)
                    for process, port, _ in (*servers, (bare, bare_port, 0))
                    for number in (port, process.pid)
                ]
                command = [sys.executable, __file__, "--load", name, *places]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                found, *others = json.loads(done.stdout)
            finally:
                for process, _, _ in servers:
                    process.terminate()
                    process.wait()
                folder.cleanup()
            per_cpu = found["per_cpu"]
            batch = 50 if name.startswith(("otlp", "span_batch")) else 10 if name == "cycle" else 1
            calls = per_cpu * (10 if name == "cycle" else 1 / batch)
            line = (
                f"{name:16}{found['ops']:9.0f}{per_cpu:11.0f}"
                f"{target or '':>8}{found['bare_per_cpu']:12.0f}"
                f"{100 * calls / found['bare_per_cpu']:7.0f}"
                f"{found['p50']:8.2f}{found['p99']:8.2f}{1000 / per_cpu:10.3f}"
                f"{servers[0][2]:9.2f}{idle:9.0f}{found['rss_mb']:8.0f}"
                f"{found['grown_mb'] / found['operations'] * 1e4:8.1f}"
            )
            for other in others:
                line += f"{other['per_cpu']:14.0f}{per_cpu / other['per_cpu']:7.2f}"
            yield line
    finally:
        bare.terminate()
        bare.wait()


def test_server_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        for line in run_cases([]):
            print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["--load"]:
        name, numbers = sys.argv[2], list(map(int, sys.argv[3:]))
        *servers, bare = [
            Server(port, psutil.Process(pid))
            for port, pid in zip(numbers[::2], numbers[1::2], strict=True)
        ]
        import uvloop

        print(json.dumps(uvloop.run(load(name, servers, bare))))
    else:
        for line in run_cases(sys.argv[1:]):
            print(line, flush=True)
