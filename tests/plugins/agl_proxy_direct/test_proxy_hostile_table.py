"""A table of hostile calls on `agl proxy` in a process of its own: answer, time and memory."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psutil
import pytest

from agl_core.types import AttemptedRollout
from agl_serving import PythonServerLauncherArgs
from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore

from .hostile_calls import ANSWERS, HI, KEY, REQUESTS, huge_answers, huge_requests
from .raw_backend import RawBackend, http_response, raw_call

PATHS = ("/chat/completions", "/messages", "/responses", "/completions", "/embeddings", "/score")
GOOD = http_response(b'{"id":"a","choices":[{"message":{"content":"x"},"text":"x"}]}')
MB = 2**20
SPAN_SECONDS = 20.0
MOST_MB = 64
"""Of memory more after a call. Of an event that is refused at 16 MB, no object is left; but the C
library keeps 24 to 50 MB for the next call, as its limit for what it keeps grows with each free."""

Send = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


class Table:
    """Sends calls, notes what they cost the proxy's process, and what it does wrong."""

    def __init__(self, process: psutil.Process, store: InMemoryLightningStore, claim: Any) -> None:
        self._process, self._store, self._claim = process, store, claim
        self._spans = 0
        self.wrong: list[str] = []
        self.worst = (0.0, 0.0)

    def _cost(self) -> tuple[float, float]:
        times = self._process.cpu_times()
        return times.user + times.system, self._process.memory_info().rss / MB

    async def call(self, name: str, path: str, send: Awaitable[tuple[int, Any, bytes]]) -> None:
        cpu, memory = self._cost()
        status, _, body = await send
        # The proxy answers without the span if storing it takes seconds.
        deadline = time.monotonic() + SPAN_SECONDS
        while True:
            found = await self._store.query_spans(self._claim.rollout_id, offset=self._spans)
            if found or status == 413 or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        cpu, memory = (
            after - before for after, before in zip(self._cost(), (cpu, memory), strict=True)
        )
        spans, self._spans = len(found), self._spans + len(found)
        line = f"{name[:40]:40} {path:18} {status:4} {spans:5} {cpu:7.2f} {memory:8.1f}"
        print(line)
        self.worst = max(self.worst[0], cpu), max(self.worst[1], memory)
        if (
            (status == 500 and b"error_id" in body)
            or status == 503
            or spans != (status != 413)  # a body that is refused unread is not a call
            or cpu > 2
            or memory > MOST_MB
            or KEY.encode() in body
        ):
            self.wrong.append(line + f" {body[:200]!r}")


@pytest.fixture
async def served() -> AsyncIterator[tuple[Table, RawBackend, int, str]]:
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0, launcher_args=PythonServerLauncherArgs())
    await server.start()
    claim: AttemptedRollout = await store.start_rollout(input={})
    backend = RawBackend()
    async with backend.serve():
        command = ["-m", "agl_cli_kit", "proxy", "--port", "0", "--store", server.endpoint]
        command += ["--model", f"q=http://127.0.0.1:{backend.port}/v1", "--api-key", KEY]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
            found = re.search(r":(\d+)/v1", line)
            assert found, line
            url = f"/rollout/{claim.rollout_id}/attempt/{claim.attempt.attempt_id}/v1"
            yield Table(psutil.Process(process.pid), store, claim), backend, int(found[1]), url
        finally:
            process.terminate()
            await process.wait()
            await server.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_hostile_calls_cost_little(served: tuple[Table, RawBackend, int, str]):
    table, backend, port, url = served
    print(f"\n{'input':40} {'path':18} {'got':>4} {'spans':>5} {'CPU s':>7} {'MB':>8}")
    backend.answer = GOOD
    for name, body in {**REQUESTS, **huge_requests()}.items():
        for path in PATHS:
            await table.call(name, path, raw_call(port, url + path, body))
    for path in PATHS[:3]:
        for stream in (False, True):
            body = {"model": "q", "messages": HI, "input": "hi", "max_tokens": 9, "stream": stream}
            for name, answer in {**ANSWERS, **huge_answers()}.items():
                backend.answer = answer
                await table.call(name, path, raw_call(port, url + path, json.dumps(body).encode()))
    print(f"worst: {table.worst[0]:.2f} s of CPU, {table.worst[1]:.1f} MB")
    assert not table.wrong, "\n".join(table.wrong)
