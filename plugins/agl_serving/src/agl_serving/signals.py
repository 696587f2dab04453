"""Helpers of commands that serve until Ctrl+C."""

from __future__ import annotations

import asyncio
import signal

from agl_core.garbage import freeze_memory

__all__ = ["freeze_memory", "stop_signal"]


def stop_signal() -> asyncio.Event:
    """Return an event that Ctrl+C and SIGTERM set. Call it in the server's loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:
            # Windows: Ctrl+C raises KeyboardInterrupt instead and cancels the server.
            break
    return stop
