"""Connections that uvicorn would leave open: slow heads of requests, slow readers, and late ones.

A client that sends its request line and headers byte by byte would hold a connection for as long as
it likes ("slowloris"). uvicorn's keep-alive timeout ends with the first byte. A client that does
not read its response would hold the connection, and what is to be sent, as long. And uvicorn closes
the connections that it knows when it begins to stop; one that was just accepted comes later.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agl_serving.joined_writes import JoinedWrites

__all__ = ["TimedHeads"]

READ_SECONDS: Final = 30.0
"""Longest time that a client may take to read what is buffered for it: at most 320 KiB here."""

_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedHeads(HttpToolsProtocol):
    """uvicorn's protocol, which closes a connection whose request has no complete head in time.

    The time for a head runs from the connection, or from the first byte of a later request on it.
    Responses in progress, such as long polls and streams, and idle connections are not limited. It
    also cuts off a client that does not read: what is buffered for it must drain in time. Trailers
    are dropped.

    It also passes the parts of a body on without copying each of them twice, and sends the head of
    a response together with its first part.

    Args:
        head_seconds: Longest time until a request's head is complete, in seconds.
        stopping: Set when the server begins to stop; later connections are closed.
        options: Arguments of uvicorn's protocol.
    """

    def __init__(self, *, head_seconds: float, stopping: asyncio.Event, **options: Any) -> None:
        super().__init__(**options)
        self._head_seconds = head_seconds
        self._stopping = stopping
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_message = self._in_head = False
        self._drain_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport)))
        if self._stopping.is_set():
            transport.close()
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_drain_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_drain_timer()
        self._drain_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_drain_timer()
        super().resume_writing()

    def _stop_drain_timer(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A head that came as a whole needs no timer. Line breaks before a request belong to no
        # message, but end uvicorn's keep-alive timeout.
        if self._in_head or (not self._in_message and not data.strip(b"\r\n")):
            self._start_timer()

    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        # Fields after a chunked body are not headers (RFC 9110, section 6.5.1): whoever checks a
        # request's headers on its way here does not look at them. They go into a list of their own.
        # uvicorn reads the headers of a request for a WebSocket again.
        assert self.parser is not None  # it calls this
        if not (self.parser.should_upgrade() and self._should_upgrade()):
            self.headers = []

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self.cycle.body:
            # uvicorn would copy the part into a bytearray, and from there into bytes.
            self.cycle.body = cast("bytearray", b"")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._expire)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expire(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer()  # a request sent ahead of the response to the one before
            return
        self.transport.write(_TIMEOUT)
        self.transport.close()
