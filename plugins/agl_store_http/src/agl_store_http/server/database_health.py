"""Whether the database behind a store answers, for those who probe the server."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from agl_core.store import LightningStore

__all__ = ["DatabaseHealth"]

logger = logging.getLogger(__name__)

_SECONDS: Final = 3.0
"""Longest wait for the database."""
_REMEMBERED: Final = 1.0
"""How long an answer holds, in seconds: whoever reaches the server may ask."""


class DatabaseHealth:
    """Asks a store for a record that it does not have. For one event loop."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._asked = -_REMEMBERED
        self._problem: str | None = None
        self._asking: asyncio.Task[str | None] | None = None

    async def problem(self) -> str | None:
        """Return why the database does not answer; None if it does."""
        if time.monotonic() - self._asked < _REMEMBERED:
            return self._problem
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="agl-database-health")
        return await asyncio.shield(self._asking)

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._store.get_worker_by_id("agl-health")
            self._problem = None
        except TimeoutError:
            self._problem = f"the database did not answer within {_SECONDS:g} seconds"
        except Exception as error:  # a store raises what its driver raises
            # The message may name hosts and accounts, and anyone may ask for the health.
            logger.warning("the database does not answer: %s", error)
            self._problem = f"the database does not answer ({type(error).__name__})"
        finally:
            self._asked, self._asking = time.monotonic(), None
        return self._problem
