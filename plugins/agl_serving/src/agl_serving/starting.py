"""Starting processes beside a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

__all__ = ["start_in_thread"]

T = TypeVar("T")


async def start_in_thread(begin: Callable[[], T], undo: Callable[[T], Awaitable[object]]) -> T:
    """Return ``begin()``, which starts a process, without holding the event loop meanwhile.

    A fork of a large process and the reading of an interpreter from a busy disk take seconds.

    Args:
        begin: Called in a thread.
        undo: Ends what was begun, if the caller is cancelled meanwhile.

    Raises:
        CancelledError: The caller was cancelled; nothing that was begun is left.
        Exception: What ``begin`` raises.
    """
    begun = asyncio.ensure_future(asyncio.to_thread(begin))
    try:
        return await asyncio.shield(begun)
    except asyncio.CancelledError:
        while not begun.done():
            with suppress(asyncio.CancelledError):  # again; a thread cannot be interrupted
                await asyncio.wait((begun,))
        if begun.exception() is None:
            await undo(begun.result())
        raise
