"""Calls a function again whenever a store changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from agl_core.errors import AglError
from agl_core.store import LightningStore

LEAST_SECONDS: Final = 0.5
"""Changes that follow each other faster are shown together."""


async def watch(
    store: LightningStore, show: Callable[[], Awaitable[object]], seconds: float
) -> None:
    """Call ``show`` now, after each change of the store, and after ``seconds`` without one.

    Runs until it is cancelled. A store without events is read each ``seconds``.
    """
    changed = asyncio.Event()
    listener = None
    if store.capabilities.get("events"):
        listener = asyncio.create_task(_listen(store, changed), name="agl-top-events")
    try:
        while True:
            changed.clear()
            await show()
            # A limit on the rate, not a wait for something.
            await asyncio.sleep(min(LEAST_SECONDS, seconds))
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), seconds)
    finally:
        if listener is not None:
            listener.cancel()
            await asyncio.wait({listener})


async def _listen(store: LightningStore, changed: asyncio.Event) -> None:
    """Set ``changed`` at each event; a stream that breaks leaves the reading by the clock."""
    with suppress(AglError, NotImplementedError):  # the latter: a server without events
        async for _ in store.events():
            changed.set()
