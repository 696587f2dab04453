"""A model server whose answers are scripted, on real HTTP, in OpenAI's and Anthropic's protocols.

::

    with ScriptedModels([Reply("Hello"), Reply(error_status=429)]) as models:
        client = OpenAI(base_url=models.base_url, api_key="none")
        ...
        assert models.requests[0].body["messages"][-1]["content"] == "Hi"

The server does not imitate a model: its answers come from the script. It follows the protocols
exactly, so that official SDKs, proxies and adapters can be tested with it. That includes streams,
tools, token ids, log-probabilities, errors and delays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import uvicorn

from agl_scripted import messages, openai, responses
from agl_scripted.script import Reply, prompt_tokens, tokenize
from agl_scripted.templates import ChatTemplate, TemplateError

__all__ = ["Script", "ScriptedModels", "SeenRequest"]

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as the server saw it."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    number: int
    """Ordinal of the request, from 0."""


Script = Callable[[SeenRequest], Reply] | Sequence[Reply]
"""A function of the request, or replies in order, the last of which repeats."""


class _Cut(Exception):
    """Raised to make the server cut the connection."""


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether uvicorn should log this record; a cut from the script is not logged."""
    return not (record.exc_info and record.exc_info[0] is _Cut)


class _Server(uvicorn.Server):
    """Stops at once: uvicorn's own stop takes 0.2 seconds, which each test of a suite would pay."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Stop serving; called in any thread."""
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in [each for server in self.servers for each in server.sockets]:
            self._loop.remove_reader(listener)
        # A connection that was accepted just now becomes known two steps later. A server that is
        # closed before would drop it without closing its socket.
        for _ in range(3):
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            transport: Any = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield


class ScriptedModels:
    """The scripted server; a context manager. Runs in its own thread, on a free loopback port.

    Thread-safe: ``requests`` only grows, and ``script`` may be replaced at any time.

    Args:
        script: The answers; see :data:`Script`. By default every request gets ``Reply("ok")``.
        models: Names that ``/v1/models`` lists.
        always: Parameters that the server adds to every request, such as ``return_token_ids``.
            ``requests`` shows the requests without them.
        template: The model's chat template. The server refuses chat requests as it would, with
            status 400 and without asking the script, and makes the prompt's tokens by it.

    Attributes:
        requests: Requests seen so far, in order of arrival.
        disconnects: Number of clients that left before the end of their reply.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        models: Sequence[str] = ("scripted",),
        always: Mapping[str, Any] | None = None,
        template: ChatTemplate | None = None,
    ) -> None:
        self.script: Script = script or [Reply("ok")]
        self.models = list(models)
        self._always = dict(always or {})
        self._template = template
        self.requests: list[SeenRequest] = []
        self.disconnects = 0
        self.port = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Root URL of the server, for Anthropic's client."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI's client."""
        return self.url + "/v1"

    def __enter__(self) -> ScriptedModels:
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        # IPPROTO_TCP is explicit: asyncio switches Nagle's algorithm off only for such sockets.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(self, log_config=None, access_log=False, lifespan="off")
        started = threading.Event()

        async def main() -> None:
            self._server = _Server(config)
            serving = asyncio.ensure_future(self._server.serve([listener]))
            await asyncio.sleep(0)
            started.set()
            await serving

        def serve() -> None:
            with contextlib.closing(listener):
                asyncio.run(main())

        # The socket listens from now on, so that early clients wait in its backlog.
        listener.listen(2048)
        self._thread = threading.Thread(target=serve, name="scripted-models", daemon=True)
        self._thread.start()
        started.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server and self._thread:
            self._server.stop()
            self._thread.join(10)
        logging.getLogger("uvicorn.error").removeFilter(_is_news)

    # -- serving ---------------------------------------------------------------------------------

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        path: str = scope["path"].rstrip("/")
        if scope["method"] == "GET":
            await self._get(path, send)
            return
        raw = b""
        more = True
        while more:
            message = await receive()
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {k.decode().lower(): v.decode() for k, v in scope["headers"]}
        seen = SeenRequest(path, json.loads(raw or b"{}"), headers, len(self.requests))
        self.requests.append(seen)
        reply = self._refusal(seen) or self._reply_to(seen)
        if reply.drop_after == 0:
            await asyncio.sleep(reply.delay)
            _cut(send)
            await self._disconnected(receive)
            return
        watch = asyncio.ensure_future(self._disconnected(receive))
        answer = asyncio.ensure_future(self._answer(seen, reply, send))
        await asyncio.wait({watch, answer}, return_when=asyncio.FIRST_COMPLETED)
        watch.cancel()
        if not answer.done():
            self.disconnects += 1
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
        else:
            answer.result()

    async def _disconnected(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue

    def _refusal(self, seen: SeenRequest) -> Reply | None:
        chat = seen.path.endswith("/chat/completions")
        chat = chat or (seen.path.endswith("/tokenize") and "messages" in seen.body)
        if self._template is not None and chat:
            try:
                self._template.prompt(seen.body)
            except TemplateError as error:
                return Reply(error_status=400, error_message=str(error))
        return None

    def _reply_to(self, seen: SeenRequest) -> Reply:
        if callable(self.script):
            return self.script(seen)
        return self.script[min(seen.number, len(self.script) - 1)]

    async def _get(self, path: str, send: Send) -> None:
        if path.endswith("/models"):
            data = [{"id": name, "object": "model", "owned_by": "agl"} for name in self.models]
            await _send_json(send, 200, {"object": "list", "data": data})
        elif path.endswith("/health"):
            await _send_json(send, 200, {})
        else:
            await _send_json(send, 404, {"detail": "not found"})

    async def _answer(self, seen: SeenRequest, reply: Reply, send: Send) -> None:
        if reply.delay:
            await asyncio.sleep(reply.delay)
        anthropic = seen.path.endswith("/messages")
        streamed = bool(seen.body.get("stream"))
        if reply.garbage is not None:
            kind = "text/event-stream" if streamed else "application/json"
            await _send(send, 200, reply.garbage, kind, reply.headers)
        elif reply.error_status:
            body = messages.error(reply) if anthropic else openai.error(reply)
            await _send_json(send, reply.error_status, body, reply.headers)
        elif seen.path.endswith("/embeddings"):
            await _send_json(send, 200, _embeddings(seen.body))
        elif seen.path.endswith("/tokenize"):
            if self._template is not None and "messages" in seen.body:
                prompt = self._template.prompt(seen.body)
            else:
                prompt = prompt_tokens(seen.body)
            ids = [token.id for token in prompt]
            await _send_json(send, 200, {"tokens": ids, "count": len(ids)})
        else:
            await self._generate(seen, reply, send, streamed=streamed)

    async def _generate(
        self, seen: SeenRequest, reply: Reply, send: Send, *, streamed: bool
    ) -> None:
        response_id = f"scripted-{seen.number}"
        request = {**seen.body, **self._always}
        protocols: dict[str, tuple[Any, Any]] = {
            "/chat/completions": (
                partial(openai.chat, template=self._template),
                partial(openai.chat_stream, template=self._template),
            ),
            "/completions": (openai.completion, openai.completion_stream),
            "/responses": (responses.response, responses.response_stream),
            "/messages": (messages.message, messages.message_stream),
        }
        for suffix, (whole, stream) in protocols.items():
            if seen.path.endswith(suffix):
                if streamed:
                    chunks = stream(request, reply, response_id)
                    named = suffix in ("/responses", "/messages")
                    await _send_stream(send, chunks, reply, named=named)
                else:
                    body = whole(request, reply, response_id)
                    await _send_json(send, 200, body, reply.headers)
                return
        await _send_json(send, 404, {"detail": f"no route {seen.path}"})


def _cut(send: Send) -> None:
    """Cut the connection. ASGI has no call for that, and uvicorn answers an error with a 500."""
    cycle: Any = getattr(send, "__self__")  # noqa: B009 -- functions do not declare it
    cycle.transport.abort()


def _embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    texts = body.get("input", "")
    texts = [texts] if isinstance(texts, str) else texts
    data = [
        {"object": "embedding", "index": i, "embedding": [float(len(tokenize(text))), 1.0]}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "data": data, "model": body.get("model"), "usage": usage}


async def _send(
    send: Send, status: int, body: bytes, content_type: str, headers: Mapping[str, str]
) -> None:
    raw = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    raw += [(k.encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def _send_json(
    send: Send, status: int, body: Any, headers: Mapping[str, str] | None = None
) -> None:
    await _send(send, status, json.dumps(body).encode(), "application/json", headers or {})


async def _send_stream(
    send: Send, chunks: Iterator[dict[str, Any]], reply: Reply, *, named: bool
) -> None:
    head = [(b"content-type", b"text/event-stream")]
    head += [(k.encode(), v.encode()) for k, v in reply.headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    for number, chunk in enumerate(chunks):
        if number == reply.drop_after:
            raise _Cut
        if number and reply.chunk_delay:
            await asyncio.sleep(reply.chunk_delay)
        event = f"event: {chunk['type']}\n" if named else ""
        text = f"{event}data: {json.dumps(chunk)}\n\n"
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
    end = b"" if named else b"data: [DONE]\n\n"
    await send({"type": "http.response.body", "body": end})
