"""What commands that serve until Ctrl+C have in common."""

from __future__ import annotations

import asyncio
import gc
import signal

__all__ = ["freeze_memory", "stop_signal"]


def stop_signal() -> asyncio.Event:
    """Return an event that Ctrl+C and SIGTERM set. Call it in the loop that serves."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:
            # Windows: Ctrl+C arrives as KeyboardInterrupt and cancels what serves instead.
            break
    return stop


def freeze_memory() -> None:
    """Spare the garbage collector what start-up made, which lives as long as the process."""
    gc.collect()
    gc.freeze()
