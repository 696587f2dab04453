"""Runs of a trainer inside a running event loop, such as that of every notebook cell."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def outside_loop() -> Generator[None]:
    """Leave this thread's running event loop, so that ``asyncio.run`` works; return to it after.

    The loop waits meanwhile, as for any code that blocks. A thread of its own would not do: Ctrl+C
    and signals reach the main thread only. The functions are those that asyncio documents for
    libraries that extend it.
    """
    loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    if loop is None:
        yield
        return
    task = asyncio.current_task()
    if task is not None:
        asyncio.tasks._leave_task(loop, task)  # pyright: ignore[reportPrivateUsage]
    asyncio._set_running_loop(None)  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # pyright: ignore[reportPrivateUsage]
        asyncio.set_event_loop(loop)  # asyncio.run has unset it
        if task is not None:
            asyncio.tasks._enter_task(loop, task)  # pyright: ignore[reportPrivateUsage]
