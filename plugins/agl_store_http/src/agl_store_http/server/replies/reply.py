"""A reply of the store server: bytes, written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic_core import to_json
from starlette.responses import Response

from agl_serving import JSON, Message, Receive, Send

__all__ = ["NoReply", "Reply", "problem"]

_PART_BYTES: Final = 256 * 1024
"""About what a socket's buffers hold."""


class Reply(Response):
    """A response whose body is bytes already: nothing is serialised or rendered again.

    Args:
        body: The body, JSON unless the headers say otherwise.
        status: HTTP status.
        headers: Headers besides Content-Length.
    """

    def __init__(
        self, body: bytes, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = (JSON,)
    ) -> None:
        self.body = body
        self.status_code = status
        self.background = None
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        start: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            # Middleware adds to the list; this object may be sent again to a retry.
            "headers": list(self.raw_headers),
        }
        await send(start)
        body, at = self.body, 0
        # The server waits after each part until the client has read most of it.
        while len(body) - at > _PART_BYTES:
            part = body[at : at + _PART_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
            at += _PART_BYTES
        await send({"type": "http.response.body", "body": body[at:]})


class NoReply(Response):
    """Sends nothing, because the client closed the connection."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        return None


def problem(
    status: int, detail: Any, headers: Sequence[tuple[bytes, bytes]] = (), **more: Any
) -> Reply:
    """Return an error reply: JSON with ``detail`` and ``more``."""
    return Reply(to_json({"detail": detail, **more}), status, (JSON, *headers))
