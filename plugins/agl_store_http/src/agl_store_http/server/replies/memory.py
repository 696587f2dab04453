"""The memory of replies that makes retries safe.

A client sends each creating call with a key of its own and repeats the key when it retries. The
first call with a key runs; a second one waits for it, or gets its remembered reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from agl_serving import HTTPError
from agl_store_http.server.replies.reply import Reply

__all__ = ["ReplyMemory"]

RETENTION_SECONDS: Final = 600.0
"""Longer than a client with the default options goes on retrying: it waits 300 s for a lost server,
and four tries take 50 s each, of which up to 20 s wait for work."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Replies that are remembered; the oldest go first."""
_ENTRY_BYTES: Final = 400
"""What a reply takes beside its body: about three objects of Python."""


class ReplyMemory:
    """Bounded by age and by bytes; the oldest replies go first. For one event loop.

    Args:
        retention: Seconds that a reply is remembered.
        max_bytes: Size limit of all remembered replies together.
    """

    def __init__(self, retention: float = RETENTION_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        self._retention = retention
        self._max_bytes = max_bytes
        self._bytes = 0
        self._running: dict[str, asyncio.Future[None]] = {}
        self._replies: dict[str, tuple[float, Reply, bytes]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._replies)

    async def once(
        self, key: str, run: Callable[[], Awaitable[Reply | None]], request: bytes = b""
    ) -> Reply | None:
        """Return the reply remembered under ``key``, or run and remember.

        Args:
            key: Names the call: the client's key and what distinguishes calls that share it.
            run: Makes the reply. None means that nothing was done and nothing is to be remembered;
                so does an exception.
            request: Digest of the request.

        Raises:
            HTTPError: 422, the key belongs to another request.
        """
        while (running := self._running.get(key)) is not None:
            await asyncio.shield(running)
        known = self._replies.get(key)
        if known is not None:
            if known[2] != request:
                raise HTTPError(422, "this Idempotency-Key was used for another request body")
            return known[1]
        done = self._running[key] = asyncio.get_running_loop().create_future()
        try:
            reply = await run()
            if reply is not None:
                self._remember(key, reply, request)
            return reply
        finally:
            del self._running[key]
            done.set_result(None)

    async def forget(self, key: str) -> Reply | None:
        """Forget the reply under ``key``, once its call has ended, and return it."""
        while (running := self._running.get(key)) is not None:
            await asyncio.shield(running)
        known = self._replies.pop(key, None)
        if known is None:
            return None
        self._bytes -= _size(key, known[1])
        return known[1]

    def _remember(self, key: str, reply: Reply, request: bytes) -> None:
        now = time.monotonic()
        self._replies[key] = (now, reply, request)
        self._bytes += _size(key, reply)
        while self._replies:
            oldest = next(iter(self._replies))
            stored, old, _ = self._replies[oldest]
            if self._bytes <= self._max_bytes and now - stored < self._retention:
                break
            del self._replies[oldest]
            self._bytes -= _size(oldest, old)


def _size(key: str, reply: Reply) -> int:
    return len(reply.body) + len(key) + _ENTRY_BYTES
