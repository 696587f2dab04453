"""Remembers the replies to creating calls, so that a retry gets the first call's reply.

A client sends each creating call with a key of its own and repeats the key when it retries. The
first call with a key runs; a second one waits for it, or gets its remembered reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from agl_serving.messages import Response

__all__ = ["ReplyMemory"]

RETENTION_SECONDS: Final = 300.0
"""Longer than a client with the default schedule (four tries of 30 s) goes on retrying."""
MAX_BYTES: Final = 64 * 1024 * 1024
_ENTRY_BYTES: Final = 400


class ReplyMemory:
    """Bounded by age and by bytes; the oldest replies go first. For one event loop.

    Args:
        retention: Seconds that a reply is remembered.
        max_bytes: What all remembered replies together may take.
    """

    def __init__(self, retention: float = RETENTION_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        self._retention = retention
        self._max_bytes = max_bytes
        self._bytes = 0
        self._running: dict[str, asyncio.Future[None]] = {}
        self._replies: dict[str, tuple[float, Response]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._replies)

    async def once(
        self, key: str, run: Callable[[], Awaitable[Response | None]]
    ) -> Response | None:
        """Return the reply remembered under ``key``, or run and remember.

        Args:
            key: Names the call: the client's key and what distinguishes calls that share it.
            run: Makes the reply. None means that nothing was done and nothing is to be remembered;
                so does an exception.
        """
        while (running := self._running.get(key)) is not None:
            await asyncio.shield(running)
        known = self._replies.get(key)
        if known is not None:
            return known[1]
        done = self._running[key] = asyncio.get_running_loop().create_future()
        try:
            reply = await run()
            if reply is not None:
                self._remember(key, reply)
            return reply
        finally:
            del self._running[key]
            done.set_result(None)

    async def forget(self, key: str) -> Response | None:
        """Forget the reply under ``key``, once its call has ended, and return it."""
        while (running := self._running.get(key)) is not None:
            await asyncio.shield(running)
        known = self._replies.pop(key, None)
        if known is None:
            return None
        self._bytes -= _size(key, known[1])
        return known[1]

    def _remember(self, key: str, reply: Response) -> None:
        now = time.monotonic()
        self._replies[key] = (now, reply)
        self._bytes += _size(key, reply)
        while self._replies:
            oldest = next(iter(self._replies))
            stored, old = self._replies[oldest]
            if self._bytes <= self._max_bytes and now - stored < self._retention:
                break
            del self._replies[oldest]
            self._bytes -= _size(oldest, old)


def _size(key: str, reply: Response) -> int:
    return len(reply.body) + len(key) + _ENTRY_BYTES
