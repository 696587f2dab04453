"""The stop event across processes; it implements :class:`~agl_core.types.ExecutionEvent`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import wait as wait_for_connections
from typing import TYPE_CHECKING, Any

from agl_exec_cs.waits import wait_in_steps

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext

__all__ = ["MultiprocessingEvent", "wait_readable"]


class MultiprocessingEvent:
    """An event for several processes; hand it to children through their arguments.

    It is a pipe that holds one message while the flag is set. Waiting processes poll the pipe and
    do not read it, so a process killed while it waits leaves no state behind.
    (``multiprocessing.Event`` would make the next ``set`` wait for the dead process.)
    :meth:`clear` must not run at the same time as another :meth:`clear` or :meth:`set`.

    Args:
        context: Creates the pipe; None takes the context of the default start method.
    """

    def __init__(self, context: BaseContext | None = None) -> None:
        reader, writer = (context or multiprocessing).Pipe(duplex=False)
        self._reader: Connection[Any, Any] = reader
        self._writer: Connection[Any, Any] = writer

    def set(self) -> None:
        if not self.is_set():
            self._writer.send_bytes(b"1")

    def clear(self) -> None:
        while self._reader.poll(0):
            self._reader.recv_bytes()

    def is_set(self) -> bool:
        return self._reader.poll(0)

    def wait(self, timeout: float | None = None) -> bool:
        return wait_in_steps(lambda step: bool(wait_for_connections([self._reader], step)), timeout)

    async def wait_async(self) -> None:
        if not self.is_set():
            await wait_readable(self._reader)


async def wait_readable(connection: Connection[Any, Any] | int) -> None:
    """Wait in a task until a pipe can be read or its other end is gone.

    Args:
        connection: A connection, or the sentinel of a process (readable when the process ends).
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    if sys.platform == "win32":  # its proactor loop cannot watch pipes

        def wait() -> None:
            wait_for_connections([connection])
            with suppress(RuntimeError):  # the loop is closed, and no task waits
                loop.call_soon_threadsafe(readable.set)

        threading.Thread(target=wait, daemon=True).start()
        await readable.wait()
        return
    # Duplicate the descriptor: a loop keeps one callback per descriptor.
    descriptor = os.dup(connection if isinstance(connection, int) else connection.fileno())
    try:
        loop.add_reader(descriptor, readable.set)
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
