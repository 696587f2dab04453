"""Requests and notes both ways, over one socket between a proxy's process and its parent.

A frame is its length in four bytes and a pickle of ``(kind, number, name or error, content)``. Only
the two processes hold the socket, so no other process can send a pickle.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, cast

from agl_core.errors import AglError, LaunchError, error_class, error_text

__all__ = ["Link", "LinkClosedError"]

_REQUEST: Final = 0
_NOTE: Final = 1
_RESULT: Final = 2
_ERROR: Final = 3
_HEAD_BYTES: Final = 4

Handler: TypeAlias = Callable[[str, tuple[Any, ...]], Awaitable[Any]]
Listener: TypeAlias = Callable[[str, tuple[Any, ...]], None]


class LinkClosedError(LaunchError):
    """The other process has closed its end, or is dead."""


class Link(asyncio.Protocol):
    """One end of the connection. Belongs to the event loop that it is created in.

    Args:
        answer: Returns the result of a request, given its name and arguments. What it raises is
            raised at the other end: an error of agl as its own class, any other as an AglError.
        listen: Takes a note, which has no result.

    Attributes:
        closed: Done when the connection is closed at either end.
    """

    def __init__(self, answer: Handler, listen: Listener) -> None:
        self._answer = answer
        self._listen = listen
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._requests = 0
        self._results: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    async def connect(self, end: socket.socket) -> None:
        """Take over one end of a socket pair."""
        end.setblocking(False)
        await self._loop.create_connection(lambda: self, sock=end)

    async def request(self, name: str, *arguments: Any) -> Any:
        """Return the other end's result, or raise its error.

        Raises:
            LinkClosedError: The connection is closed, or closes before the result.
        """
        if self.closed.done():
            raise LinkClosedError("the connection to the proxy's process is closed")
        self._requests += 1
        number = self._requests
        result = self._results[number] = self._loop.create_future()
        self._write(_REQUEST, number, name, arguments)
        try:
            return await result
        finally:
            del self._results[number]

    def note(self, name: str, *arguments: Any) -> None:
        """Send a note, unless the connection is closed."""
        if not self.closed.done():
            self._write(_NOTE, 0, name, arguments)

    def close(self) -> None:
        """Close the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEAD_BYTES:
            end = start + _HEAD_BYTES + int.from_bytes(buffer[start : start + _HEAD_BYTES])
            if len(buffer) < end:
                break
            frame = bytes(buffer[start + _HEAD_BYTES : end])
            start = end
            self._receive(*pickle.loads(frame))  # noqa: S301 -- from our own process
        if start:
            del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        for result in self._results.values():
            if not result.done():
                result.set_exception(LinkClosedError("the proxy's process is gone"))

    # -- frames ----------------------------------------------------------------------------------

    def _write(self, kind: int, number: int, name: str, content: Any) -> None:
        assert self._transport is not None
        frame = pickle.dumps((kind, number, name, content), pickle.HIGHEST_PROTOCOL)
        self._transport.write(len(frame).to_bytes(_HEAD_BYTES) + frame)

    def _receive(self, kind: int, number: int, name: str, content: Any) -> None:
        if kind == _NOTE:
            self._listen(name, content)
        elif kind == _REQUEST:
            task = self._loop.create_task(self._reply(number, name, content))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            result = self._results.get(number)
            if result is None or result.done():
                return
            if kind == _RESULT:
                result.set_result(content)
            else:
                result.set_exception(error_class(name)(content))

    async def _reply(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            kind, known, content = _RESULT, "", await self._answer(name, arguments)
        except AglError as error:
            kind, known, content = _ERROR, type(error).__name__, str(error)
        except Exception as error:
            kind, known, content = _ERROR, "AglError", error_text(error)
        if not self.closed.done():
            self._write(kind, number, known, content)
