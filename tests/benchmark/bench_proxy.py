"""Measures the proxy's calls per CPU second, beside a bare ASGI app and a bare relay.

Run it as a benchmark test, or as a script: ``python tests/benchmark/bench_proxy.py [CASE...]``.
Backend, proxy and load generator are separate processes. The backend answers immediately, with
token ids and log-probabilities. The bare relay has the same server and HTTP client as the proxy and
no other code, so it is the upper limit. The case ``litellm`` needs a Python with the plugin
agl-proxy-litellm.

Percentiles are valid only while no other process uses the cores. On a shared machine, run it with
real-time priority: ``chrt -f 1 python tests/benchmark/bench_proxy.py``.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
import pytest

pytestmark = pytest.mark.benchmark

SECONDS = 4.0
PROMPT, ANSWER, CHUNKS = 300, 60, 20
CALLS = 100_000
"""Number of calls over which the memory must stay constant."""
MEASURED_STREAMS = 1000

REQUEST = {
    "model": "q",
    "temperature": 1.0,
    "messages": [
        {"role": "system", "content": "You are a helpful assistant. " * 6},
        {"role": "user", "content": "What is the capital of France? " * 20},
    ],
}
ENTRY = {"token": " word", "logprob": -0.25, "bytes": [32, 119], "top_logprobs": []}


# -- the servers -----------------------------------------------------------------------------------


def _body() -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": " word" * ANSWER},
        "finish_reason": "stop",
        "logprobs": {"content": [ENTRY] * ANSWER},
        "token_ids": list(range(1000, 1000 + ANSWER)),
    }
    usage = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "Q"}
    ids = {"prompt_token_ids": list(range(PROMPT))}
    return json.dumps({**head, "choices": [choice], "usage": usage, **ids}).encode()


def _events() -> list[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "Q"}

    def event(delta: Any, finish: Any = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
        return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"

    token = {"logprobs": {"content": [ENTRY]}, "token_ids": [1000]}
    return [
        event({"role": "assistant", "content": ""}),
        *[event({"content": " word"}, **token) for _ in range(CHUNKS)],
        event({}, "stop"),
        b"data: [DONE]\n\n",
    ]


BODY, EVENTS = _body(), _events()


class Backend:
    """A model server that answers immediately; the chunks of a stream follow each other."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        message = await receive()
        raw = message["body"]
        while message.get("more_body"):
            message = await receive()
            raw += message["body"]
        streamed = b'"stream":true' in raw or b'"stream": true' in raw
        kind = b"text/event-stream" if streamed else b"application/json"
        headers = [(b"content-type", kind)]
        if not streamed:
            headers.append((b"content-length", b"%d" % len(BODY)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in EVENTS if streamed else ():
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": b"" if streamed else BODY})


class Relay:
    """A minimal relay on the proxy's server and HTTP client."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if self.session is None:
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = (await receive())["body"]
        async with self.session.post(self.url, data=body) as reply:
            raw = await reply.read()
            kind = reply.headers["content-type"].encode()
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(raw))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": raw})


def serve(kind: str, port: str = "") -> None:
    import gc

    from agl_serving import PythonServerLauncher, PythonServerLauncherArgs, run_in_new_loop

    async def main() -> None:
        path = ""
        if kind in ("proxy", "litellm"):
            from agl_core.plugins import build_component
            from agl_store_memory import InMemoryLightningStore

            # The store evicts spans, so that only the proxy could grow.
            store = InMemoryLightningStore(eviction_memory_threshold=64 * 2**20)
            params = {"model": "hosted_vllm/Q", "api_base": f"http://127.0.0.1:{port}"}
            spec = {
                "type": "direct" if kind == "proxy" else kind,
                "launch_mode": "asyncio",
                "model_list": [{"model_name": "q", "litellm_params": params}],
            }
            proxy = build_component("proxy", spec, inject={"store": store})
            await proxy.start()
            claim = await store.start_rollout(input={})
            path = f"/rollout/{claim.rollout_id}/attempt/{claim.attempt.attempt_id}"
            served = proxy.base_url.removesuffix("/v1")
        else:
            app = Relay(f"http://127.0.0.1:{port}/") if kind == "relay" else Backend()
            launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
            await launcher.start()
            served = launcher.endpoint
        gc.collect()
        gc.freeze()
        print(served, path, flush=True)
        await asyncio.Event().wait()

    run_in_new_loop(main)


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    path: str
    ps: psutil.Process = field(init=False)

    def __post_init__(self) -> None:
        self.ps = psutil.Process(self.process.pid)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def cpu(self) -> float:
        times = self.ps.cpu_times()
        return times.user + times.system

    def megabytes(self) -> float:
        return self.ps.memory_info().rss / 2**20


@contextmanager
def server(kind: str, port: int | str = "") -> Iterator[Server]:
    command = [sys.executable, __file__, "--serve", kind, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url, _, path = process.stdout.readline().strip().partition(" ")
        try:
            yield Server(process, url, path)
        finally:
            process.kill()


# -- the load --------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One keep-alive connection with minimal HTTP/1.1, so that its own cost is small."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.waiting: asyncio.Future[None] | None = None
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.buffer[:end]).lower()
        start = head.index(b"content-length: ") + 16
        stop = head.find(b"\r\n", start)
        size = end + 4 + int(head[start : stop if stop > 0 else None])
        if len(self.buffer) < size:
            return
        assert head[9:12] == b"200", bytes(self.buffer)
        del self.buffer[:size]
        assert self.waiting is not None
        self.waiting.set_result(None)

    def send(self, request: bytes) -> asyncio.Future[None]:
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.waiting


@dataclass
class Measured:
    calls: int
    seconds: float
    cpu: float
    latencies: list[float]

    def percentile(self, share: float) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))] * 1000

    def line(self, name: str) -> str:
        return (
            f"{name:<28} {self.calls / self.seconds:7.0f}/s {self.calls / self.cpu:8.0f}/s per core"
            f"   p50 {self.percentile(0.5):6.2f} ms   p99 {self.percentile(0.99):6.2f} ms"
            f"   worst {self.percentile(1):6.2f} ms"
        )


def http_request(path: str) -> bytes:
    body = json.dumps(REQUEST).encode()
    head = f"POST {path}/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + kind).encode() + body


async def load(target: Server, concurrency: int, *, calls: int | None = None) -> Measured:
    """Keep ``concurrency`` connections busy for some seconds, or for ``calls`` calls."""
    loop = asyncio.get_running_loop()
    request = http_request(target.path)
    latencies: list[float] = []
    deadline = time.perf_counter() + SECONDS
    done = 0

    async def work() -> None:
        nonlocal done
        _, connection = await loop.create_connection(Connection, "127.0.0.1", target.port)
        while done < calls if calls else time.perf_counter() < deadline:
            done += 1
            began = time.perf_counter()
            await connection.send(request)
            latencies.append(time.perf_counter() - began)
        connection.transport.close()

    cpu, began = target.cpu(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    took = time.perf_counter() - began
    return Measured(len(latencies), took, target.cpu() - cpu, latencies)


async def streams(target: Server, count: int) -> tuple[float, float, list[float]]:
    """Read ``count`` streams at once; return seconds, CPU seconds, and delays of first events."""
    url = f"{target.url}{target.path}/v1/chat/completions"
    firsts: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> None:
            began = time.perf_counter()
            async with session.post(url, json={**REQUEST, "stream": True}) as reply:
                first = await reply.content.readuntil(b"\n\n")
                firsts.append(time.perf_counter() - began)
                raw = first + await reply.read()
            assert raw.count(b"data: ") == len(EVENTS), raw[-300:]
            assert raw.endswith(b"data: [DONE]\n\n")

        cpu, began = target.cpu(), time.perf_counter()
        await asyncio.gather(*(one() for _ in range(count)))
        return time.perf_counter() - began, target.cpu() - cpu, firsts


# -- the cases -------------------------------------------------------------------------------------


def case_rate() -> None:
    """Measure complete calls: bare ASGI, bare relay, proxy without and with a rollout."""
    with (
        server("backend") as backend,
        server("relay", backend.port) as relay,
        server("proxy", backend.port) as proxy,
    ):
        plain = Server(proxy.process, proxy.url, "")
        for concurrency in (1, 16):
            base = asyncio.run(load(backend, concurrency))
            bare = asyncio.run(load(relay, concurrency))
            passed = asyncio.run(load(plain, concurrency))
            captured = asyncio.run(load(proxy, concurrency))
            print(f"\n{concurrency} at a time")
            print(base.line("bare ASGI app (the backend)"))
            print(bare.line("bare relay"))
            print(passed.line("proxy, no rollout"))
            print(captured.line("proxy, routed and captured"))
            for share in (0.5, 0.99):
                added = captured.percentile(share) - base.percentile(share)
                print(f"  added at p{share * 100:.0f}: {added:.2f} ms")


def case_litellm() -> None:
    """Measure complete calls through LiteLLM's router."""
    with server("backend") as backend, server("litellm", backend.port) as proxy:
        asyncio.run(load(proxy, 1, calls=20))  # LiteLLM imports many modules in its first call
        for concurrency in (1, 16):
            captured = asyncio.run(load(proxy, concurrency))
            print(f"\n{concurrency} at a time")
            print(captured.line("litellm, routed and captured"))


def case_streams() -> None:
    """Measure a thousand concurrent streams."""
    with server("backend") as backend, server("proxy", backend.port) as proxy:
        for name, target in (("backend", backend), ("proxy", proxy)):
            seconds, cpu, firsts = asyncio.run(streams(target, MEASURED_STREAMS))
            late = sorted(firsts)[len(firsts) // 2] * 1000
            print(
                f"{name:<10} {MEASURED_STREAMS} streams of {CHUNKS} chunks in {seconds:.2f} s, "
                f"{cpu:.2f} s of CPU, first event after {late:.0f} ms (median); none lost"
            )
        for name, target in (("backend", backend), ("proxy", proxy)):
            firsts = [asyncio.run(streams(target, 1))[2][0] for _ in range(20)]
            print(
                f"{name:<10} alone: first event after {sorted(firsts)[10] * 1000:.2f} ms (median)"
            )


def case_memory() -> None:
    """Measure the memory of the proxy over many calls."""
    with server("backend") as backend, server("proxy", backend.port) as proxy:
        print("calls      RSS")
        for step in range(5):
            asyncio.run(load(proxy, 16, calls=CALLS // 5))
            print(f"{(step + 1) * CALLS // 5:>7} {proxy.megabytes():7.1f} MB")


CASES = {
    "rate": case_rate,
    "streams": case_streams,
    "memory": case_memory,
    "litellm": case_litellm,
}


@pytest.mark.parametrize("name", CASES)
def test_proxy(name: str):
    if name == "litellm":
        pytest.importorskip("agl_proxy_litellm")
    CASES[name]()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        for chosen in sys.argv[1:] or list(CASES)[:3]:
            CASES[chosen]()
