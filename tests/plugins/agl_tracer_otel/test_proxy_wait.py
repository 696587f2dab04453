"""Model calls of the real clients wait for a proxy that is away."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import openai
import pytest

from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer, proxy_wait

ASKED: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 9,
}
JSON = "application/json"
ATTEMPT = "/rollout/ro-1/attempt/at-1"


class Late:
    """A port that refuses connections until a second after :meth:`start`; then a server has it."""

    def __init__(self, models: ScriptedModels) -> None:
        self._models = models
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None
        self._timer = threading.Timer(1.0, self._serve)

    def start(self) -> None:
        self._timer.start()

    def _serve(self) -> None:
        self._held.close()
        url = self._models.url

        class Relay(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                path = self.path.removeprefix(ATTEMPT)
                asked = urllib.request.Request(url + path, body, {"content-type": JSON})
                with urllib.request.urlopen(asked) as reply:
                    self.send_response(200)
                    self.send_header("content-type", JSON)
                    self.end_headers()
                    self.wfile.write(reply.read())

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Relay)
        self._server.serve_forever(0.02)

    def close(self) -> None:
        self._held.close()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


@pytest.fixture
def late() -> Iterator[Late]:
    with ScriptedModels([Reply("Hello.")]) as models:
        server = Late(models)
        yield server
        server.close()


async def traced(work: Any) -> None:
    tracer, store = OtelTracer(), InMemoryLightningStore()
    with tracer.lifespan(store):
        claim = await store.start_rollout("task")
        async with tracer.trace_context(
            name="n", rollout_id=claim.rollout_id, attempt_id=claim.attempt.attempt_id
        ):
            await work()


async def test_a_sync_call_waits(late: Late):
    async def work() -> None:
        url = f"http://127.0.0.1:{late.port}{ATTEMPT}"
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            late.start()
            reply = client.chat.completions.create(**ASKED)
            assert reply.choices[0].message.content == "Hello."

    await traced(work)


async def test_an_async_call_waits(late: Late):
    async def work() -> None:
        url = f"http://127.0.0.1:{late.port}{ATTEMPT}"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            late.start()
            reply = await client.messages.create(**ASKED)
            assert reply.content[0].type == "text"

    await traced(work)


async def test_a_call_to_another_server_fails_at_once(late: Late):
    async def work() -> None:
        url = f"http://127.0.0.1:{late.port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            began = time.monotonic()
            with pytest.raises(openai.APIConnectionError):
                client.chat.completions.create(**ASKED)
            assert time.monotonic() - began < 0.9

    await traced(work)


async def test_patience_ends(late: Late, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy_wait, "PROXY_PATIENCE", 0.3)

    async def work() -> None:
        url = f"http://127.0.0.1:{late.port}{ATTEMPT}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client,
            pytest.raises(openai.APIConnectionError),
        ):
            client.chat.completions.create(**ASKED)

    await traced(work)


async def test_a_proxy_that_breaks_every_call_is_not_asked_for_ever():
    """It takes connections and never answers: no restart would change that."""
    calls = 0
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        nonlocal calls
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                if connection.recv(65536):
                    calls += 1

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()

    async def work() -> None:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{ATTEMPT}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client,
            pytest.raises(openai.APIConnectionError),
        ):
            client.chat.completions.create(**ASKED)

    await traced(work)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)
    assert calls == 4
