"""Calls of a proxy's application without sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agl_core.genai import Protocol, SseSplitter, get_protocol
from agl_proxy_direct import DirectProxyConfig, ProxyApp, UpstreamSpec, parse_model_list

ENTRY = {
    "model_name": "q",
    "litellm_params": {"model": "hosted_vllm/q", "api_base": "http://127.0.0.1:1/v1"},
}


class ProxyInMemory:
    """The application of a proxy over an upstream in memory; use as an async context manager."""

    def __init__(self, store: Any, upstream: Any, **options: Any) -> None:
        config = DirectProxyConfig(**{"history": "continue", **options})
        spec = UpstreamSpec(connect=lambda: upstream)
        self.app = ProxyApp(store, parse_model_list([ENTRY]), config, spec)
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ProxyInMemory:
        self._task = asyncio.create_task(
            self.app({"type": "lifespan"}, self._inbox.get, self._outbox.put)
        )
        await self._inbox.put({"type": "lifespan.startup"})
        await self._outbox.get()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._inbox.put({"type": "lifespan.shutdown"})
        await self._outbox.get()
        assert self._task is not None
        await self._task

    async def chat(
        self, attempt: Any, body: dict[str, Any], protocol: Protocol = "chat"
    ) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of a call, by default of chat; a stream is assembled."""
        spoken = get_protocol(protocol)
        ids = f"/rollout/{attempt.rollout_id}/attempt/{attempt.attempt.attempt_id}"
        sent: list[Any] = []
        request = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        forever = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if request:
                return request.pop()
            await forever.wait()
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": ids + "/v1" + spoken.endpoint,
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        await self.app(scope, receive, send)
        status = sent[0]["status"]
        raw = b"".join(message.get("body", b"") for message in sent[1:])
        if status != 200 or not body.get("stream"):
            return status, json.loads(raw)
        assembler = spoken.assembler(body.get("n") or 1)
        for event in SseSplitter(2**20).feed(raw):
            if event.data != b"[DONE]":
                assembler.feed(json.loads(event.data))
        return status, assembler.result()
