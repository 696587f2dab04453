"""A transport that sends the head of a response together with its first part.

uvicorn writes them one after the other, and event loops send what is written at once: two system
calls for each response, and two packets that wake the client twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["JoinedWrites"]

_MOST_COPIED: Final = 64 * 1024
"""Bytes of a first part: copying more of it, to join it, takes longer than a system call."""
_HEAD_START: Final = b"HTTP/1.1 "
"""A part of a body that begins so waits for a turn, too; nothing else happens to it."""


class JoinedWrites:
    """Holds a response's head until the next write, or the next turn of the loop.

    For the loop's thread. What is not here is the given transport's.

    Args:
        transport: A connection of the running loop.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self.is_closing = transport.is_closing  # asked with each request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head and len(data) <= _MOST_COPIED:
            data, self._head = self._head + data, b""
        elif self._head:
            self._send_head()
        elif data.startswith(_HEAD_START):
            self._head = data
            self._loop.call_soon(self._send_head)
            return
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self._send_head()
        self._transport.write_eof()

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)
