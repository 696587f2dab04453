"""A store server without what version 0.3 lacks."""

from __future__ import annotations

import json
import re

from agl_core.store import LightningStore
from agl_serving import Message, Receive, Send
from agl_store_http import StoreApp

__all__ = ["OlderApp"]

_LATER_ROUTES = re.compile(
    r"/v1/agl/(events|time|training.*|spans/.*batch|rollouts/(counts|summaries|[^/]+/calls))"
    r"|/v1/agl/.*/return"
)
_LATER_ORDERS = ("reward", "duration")


class OlderApp:
    """Answers 404 on later routes, ignores filters by mode, and refuses later orders."""

    def __init__(self, store: LightningStore) -> None:
        self._app = StoreApp(store)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _LATER_ROUTES.fullmatch(scope["path"]):
            await _reply(send, 404, {"detail": "Not Found"})
            return
        if scope["type"] != "http" or scope["path"] != "/v1/agl/rollouts/search":
            await self._app(scope, receive, send)
            return
        query = json.loads(await _body(receive))
        query.pop("mode_in", None)
        if query.get("sort_by") in _LATER_ORDERS:
            await _reply(send, 400, {"detail": f"Invalid sort_by: {query['sort_by']}"})
            return
        body = json.dumps(query).encode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))

        changed: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return changed.pop() if changed else await receive()

        await self._app({**scope, "headers": headers}, again, send)


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _reply(send: Send, status: int, content: object) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
