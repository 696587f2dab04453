"""Stop events within a process and across processes.

They implement :class:`~agl_core.types.ExecutionEvent`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
from multiprocessing.connection import wait as wait_for_connections
from typing import TYPE_CHECKING, Any

from agl_core.store._wakeup import Wakeup

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext


class ThreadingEvent:
    """An event for the threads of one process and the event loops in them."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: set[Wakeup] = set()

    def set(self) -> None:
        with self._lock:
            self._event.set()
            for waiter in self._waiters:
                waiter.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)

    async def wait_async(self) -> None:
        waiter = Wakeup()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.add(waiter)
        try:
            await waiter.wait()
        finally:
            with self._lock:
                self._waiters.discard(waiter)


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
        return bool(wait_for_connections([self._reader], timeout))

    async def wait_async(self) -> None:
        if not self.is_set():
            await wait_readable(self._reader)


async def wait_readable(connection: Connection[Any, Any] | int) -> None:
    """Wait in a task until a pipe can be read or its other end is gone.

    Args:
        connection: A connection, or the sentinel of a process (readable when the process ends).
    """
    wakeup = Wakeup()
    if sys.platform == "win32":  # its proactor loop cannot watch pipes
        threading.Thread(target=_wait_and_wake, args=(connection, wakeup), daemon=True).start()
        await wakeup.wait()
        return
    loop = asyncio.get_running_loop()
    # Duplicate the descriptor: a loop keeps one callback per descriptor.
    descriptor = os.dup(connection if isinstance(connection, int) else connection.fileno())
    try:
        loop.add_reader(descriptor, wakeup.set)
        await wakeup.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _wait_and_wake(connection: Connection[Any, Any] | int, wakeup: Wakeup) -> None:
    wait_for_connections([connection])
    wakeup.set()
