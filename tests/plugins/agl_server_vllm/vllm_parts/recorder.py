"""An HTTP relay that records a server's responses byte for byte."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web


@dataclass
class Recorded:
    """A recorded call to the server."""

    path: str
    request: dict[str, Any]
    answer: bytes = b""

    def token_ids(self) -> tuple[list[int], list[int], list[float]]:
        """Return prompt ids, response ids and log-probabilities, as the server sent them."""
        if not self.answer.startswith(b"data:"):
            bodies = [json.loads(self.answer)]
        else:
            lines = [line[6:] for line in self.answer.splitlines() if line.startswith(b"data: ")]
            bodies = [json.loads(line) for line in lines if line != b"[DONE]"]
        prompt: list[int] = []
        ids: list[int] = []
        logprobs: list[float] = []
        for body in bodies:
            choice = (body["choices"] or [{}])[0]
            prompt += body.get("prompt_token_ids") or choice.get("prompt_token_ids") or []
            ids += choice.get("token_ids") or []
            said = choice.get("logprobs") or {}
            logprobs += [entry["logprob"] for entry in said.get("content") or ()]
            logprobs += said.get("token_logprobs") or []
        return prompt, ids, logprobs


class Recorder:
    """The relay; an async context manager.

    Attributes:
        calls: The calls, in order.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.calls: list[Recorded] = []

    async def __aenter__(self) -> Recorder:
        self._session = aiohttp.ClientSession()
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/{path:.*}", self._relay)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        recorded = Recorded(request.path, await request.json())
        self.calls.append(recorded)
        headers = {"content-type": "application/json"}
        async with self._session.post(
            self._url + request.path_qs, data=await request.read(), headers=headers
        ) as reply:
            out = web.StreamResponse(
                status=reply.status, headers={"content-type": reply.headers["content-type"]}
            )
            await out.prepare(request)
            async for chunk in reply.content.iter_any():
                recorded.answer += chunk
                await out.write(chunk)
            await out.write_eof()
            return out
