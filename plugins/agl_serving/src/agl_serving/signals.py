"""Helpers of commands that serve until Ctrl+C."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import Final

__all__ = ["freeze_memory", "stop_signal"]

_YOUNG_OBJECTS: Final = 10_000


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


def freeze_memory() -> None:
    """Make garbage collection cheaper in a process that only serves, once it has started.

    The objects of the start-up live until the exit: they are never scanned again. New objects are
    scanned after 10,000 instead of 700 allocations, when those of most requests are gone: a store
    server stores 10 % more OTLP spans per CPU second (``tests/benchmark/bench_server.py``).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
