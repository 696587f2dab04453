"""Health checks of the rollout servers, so that no rollout waits for a dead one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import aiohttp
import anyio

from agl_core.errors import LLMServerError

__all__ = ["HealthWatch"]

_TRIES = 3
"""A server that reopens its socket after new weights refuses one call, or two."""
_PAUSE_SECONDS = 0.5
"""Between two tries: a socket is reopened in less."""
_ANSWER_SECONDS = 60.0
"""A busy engine may answer slowly; after this time it counts as hung."""


class HealthWatch:
    """Checks the servers at an interval, and at once after :meth:`suspect`.

    Args:
        interval: Seconds between two checks.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._addresses: Sequence[str] = ()
        self._wake = anyio.Event()

    def watch(self, addresses: Sequence[str]) -> None:
        """Check these servers, each ``host:port``, from now on."""
        self._addresses = list(addresses)

    def suspect(self) -> None:
        """Check at once; called in the event loop."""
        self._wake.set()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            LLMServerError: A server does not answer.
        """
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                with anyio.move_on_after(self._interval):
                    await self._wake.wait()
                self._wake = anyio.Event()
                for address in self._addresses:
                    await _check(session, address)


async def _check(session: aiohttp.ClientSession, address: str) -> None:
    began = time.monotonic()
    problem = ""
    for _ in range(_TRIES):
        try:
            async with session.get(f"http://{address}/health") as reply:
                if reply.status < 500:
                    return
                problem = f"status {reply.status}"
        except TimeoutError:
            problem = f"no answer within {time.monotonic() - began:.0f} s"
            break
        except (aiohttp.ClientError, OSError) as error:
            problem = str(error) or type(error).__name__
        await anyio.sleep(_PAUSE_SECONDS)  # time for a server to reopen its socket
    raise LLMServerError(f"the rollout server at {address} is gone: {problem}")
