"""Notices that a rollout server is gone, so that nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import aiohttp
import anyio

from agl_core.errors import LLMServerError

__all__ = ["HealthWatch"]

_TRIES = 3
_PAUSE_SECONDS = 0.5
_ANSWER_SECONDS = 60.0
"""A busy engine may take long to answer; one that hangs is given up after this."""


class HealthWatch:
    """Looks at the servers in an interval, and at once when there is reason to.

    Args:
        interval: Seconds between two looks.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._addresses: Sequence[str] = ()
        self._wake = anyio.Event()

    def watch(self, addresses: Sequence[str]) -> None:
        """Look after these servers, ``host:port`` each, from now on."""
        self._addresses = list(addresses)

    def suspect(self) -> None:
        """Look soon; called in the loop."""
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
                    await _look(session, address)


async def _look(session: aiohttp.ClientSession, address: str) -> None:
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
        await anyio.sleep(_PAUSE_SECONDS)  # a server that restarts its socket is back by then
    raise LLMServerError(f"the rollout server at {address} is gone: {problem}")
