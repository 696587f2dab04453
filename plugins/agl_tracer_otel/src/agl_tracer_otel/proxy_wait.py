"""Lets model calls wait for a proxy that is away, instead of failing the agent.

A proxy restarts within seconds; the clients' own retries last 1.5 s. The call is repeated as a
whole if the proxy sent no response: a model call changes nothing, so it may happen twice.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any, Final

from agl_core.proxy import PROXY_PATIENCE, proxy_move

_logger = logging.getLogger(__name__)

_MOST_REPEATS: Final = 3
"""A call that fails more often has another cause than a proxy's restart."""
_CONNECT_SECONDS: Final = 5.0
"""Longest wait for the proxy's port: a network answers, or drops packets, within it."""
_PAUSE: Final = 0.2
"""Seconds between two looks; nobody tells an agent's process that another one has started."""


class ProxyWait:
    """The waits of one call.

    Args:
        client: A client of OpenAI's or Anthropic's kind, whose base URL is that of a proxy.
    """

    def __init__(self, client: Any) -> None:
        url = client.base_url
        self._address: tuple[str, int] = (
            url.host,
            url.port or (443 if url.scheme == "https" else 80),
        )
        self._repeats = 0

    def repeats(self, error: Exception) -> bool:
        """Return whether the call is to be repeated, once the proxy takes connections."""
        names = {base.__name__ for base in type(error).__mro__}
        if "APIConnectionError" not in names or "APITimeoutError" in names:
            return False
        self._repeats += 1
        if self._repeats > _MOST_REPEATS:
            return False
        _logger.warning("the proxy at %s:%d is away: a model call waits for it", *self._address)
        return True

    def wait(self) -> bool:
        """Block until the proxy takes connections; return whether it did in time.

        The wait also ends when the runner sees that the attempt's proxies have moved.
        """
        deadline = time.monotonic() + PROXY_PATIENCE
        while not self._is_open():
            if _is_in_vain(deadline):
                return False
            time.sleep(_PAUSE)
        return True

    async def wait_async(self) -> bool:
        """Wait as :meth:`wait` does, without blocking the event loop."""
        deadline = time.monotonic() + PROXY_PATIENCE
        while not await asyncio.to_thread(self._is_open):
            if _is_in_vain(deadline):
                return False
            await asyncio.sleep(_PAUSE)
        return True

    def _is_open(self) -> bool:
        try:
            socket.create_connection(self._address, _CONNECT_SECONDS).close()
        except OSError:
            return False
        return True


def _is_in_vain(deadline: float) -> bool:
    """Return whether a wait ends without the proxy: too late, or it is elsewhere now."""
    move = proxy_move.get()
    return time.monotonic() > deadline or (move is not None and move.has_happened())
