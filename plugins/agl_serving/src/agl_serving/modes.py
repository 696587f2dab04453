"""Servers in the running loop, in a thread, or in processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import pickle
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import AglError, LaunchError, error_text
from agl_serving.signals import freeze_memory
from agl_serving.uvicorn_server import SocketServer, run_in_new_loop

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from socket import socket
    from types import FrameType

    from agl_serving.launcher import PythonServerLauncherArgs

__all__ = ["LoopServing", "ProcessServing", "Serving", "ThreadServing"]

logger = logging.getLogger(__name__)

_KILL_SECONDS: Final = 5.0
"""Longest wait for a killed process: it ends at once, unless it is stuck in a device."""
_NOT_PICKLED: Final = (
    AttributeError,
    TypeError,
    pickle.PicklingError,
    multiprocessing.ProcessError,
)
"""What ``start`` of a process raises if its arguments cannot be pickled."""


class Serving(ABC):
    """One run of an app on a listening socket, which it owns from :meth:`start` on."""

    def __init__(
        self,
        app: Callable[..., Any],
        factory: bool,
        args: PythonServerLauncherArgs,
        listener: socket,
    ) -> None:
        self._app = app
        self._factory = factory
        self._args = args
        self._listener = listener

    @abstractmethod
    async def start(self) -> None:
        """Return when connections are accepted and the app's start-up is done."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop and release the port; idempotent."""

    @abstractmethod
    async def wait(self) -> None:
        """Return when serving has ended, or raise what ended it."""

    @abstractmethod
    def is_alive(self) -> bool: ...


class LoopServing(Serving):
    """A task of the loop that starts it."""

    _task: asyncio.Task[None] | None = None
    _server: SocketServer | None = None

    async def start(self) -> None:
        app = self._app() if self._factory else self._app
        self._server = SocketServer(app, self._args)
        self._task = asyncio.create_task(self._server.run_on(self._listener), name="agl-server")
        await asyncio.shield(self._server.ready)

    async def stop(self) -> None:
        if self._task is not None and self._server is not None:
            self._server.stop()
            await asyncio.wait([self._task])
        self._listener.close()

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.shield(self._task)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()


class ThreadServing(Serving):
    """A daemon thread with its own loop."""

    _thread: threading.Thread | None = None
    _server: SocketServer | None = None
    _error: BaseException | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if ready.done():
                return
            if error is None:
                ready.set_result(None)
            else:
                ready.set_exception(error)

        def tell(error: BaseException | None) -> None:
            # The starter's loop may already be closed when the server ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        def main() -> None:
            try:
                run_in_new_loop(lambda: self._serve(tell))
            except BaseException as error:
                self._error = error
                tell(error)

        self._thread = threading.Thread(target=main, name="agl-server", daemon=True)
        self._thread.start()
        await ready

    async def _serve(self, tell: Callable[[BaseException | None], None]) -> None:
        self._server = server = SocketServer(
            self._app() if self._factory else self._app, self._args
        )
        server.ready.add_done_callback(lambda done: None if done.exception() else tell(None))
        await server.run_on(self._listener)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        await self._join(self._args.thread_join_timeout)
        self._listener.close()
        if self.is_alive():
            raise LaunchError(
                f"the server thread did not end within {self._args.thread_join_timeout:g} s"
            )

    async def wait(self) -> None:
        await self._join(None)
        if self._error is not None:
            raise LaunchError(f"the server ended: {self._error}") from self._error

    async def _join(self, timeout: float | None) -> None:
        if self._thread is not None and self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout)

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()


class ProcessServing(Serving):
    """Daemon processes that accept from one socket."""

    def __init__(
        self,
        app: Callable[..., Any],
        factory: bool,
        args: PythonServerLauncherArgs,
        listener: socket,
    ) -> None:
        super().__init__(app, factory, args, listener)
        self._processes: list[BaseProcess] = []

    async def start(self) -> None:
        context = multiprocessing.get_context(self._args.start_method)
        pipes: list[Connection] = []
        for index in range(self._args.n_workers):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_process_main,
                args=(self._app, self._factory, self._args, self._listener, there),
                name=f"agl-server-{index}",
                daemon=True,
            )
            try:
                process.start()
            except _NOT_PICKLED as error:
                raise LaunchError(
                    f"the app cannot be pickled ({context.get_start_method()}): {error}"
                ) from error
            finally:
                there.close()
            self._processes.append(process)
            pipes.append(here)
        # Only the children accept connections. If the socket stayed open here, connections made
        # after the last child died would hang instead of being refused.
        self._listener.close()
        try:
            await asyncio.gather(*(asyncio.to_thread(self._hear, pipe) for pipe in pipes))
        finally:
            for pipe in pipes:
                pipe.close()

    def _hear(self, pipe: Connection) -> None:
        """Wait for a process's message: an error, or an empty text once it serves."""
        try:
            heard: str = pipe.recv() if pipe.poll(self._args.startup_timeout) else "no answer"
        except EOFError:
            heard = "it died"
        if heard:
            raise LaunchError(f"a server process did not start: {heard}")

    async def stop(self) -> None:
        self._listener.close()
        alive = [process for process in self._processes if process.is_alive()]
        for process in alive:
            process.terminate()
        await asyncio.to_thread(_join_all, alive, self._args.process_join_timeout)
        for process in alive:
            if process.is_alive():
                process.kill()
        await asyncio.to_thread(_join_all, alive, _KILL_SECONDS)
        left = [str(process.pid) for process in alive if process.is_alive()]
        if left:
            raise LaunchError(f"server processes did not end: {', '.join(left)}")

    async def wait(self) -> None:
        sentinels = [process.sentinel for process in self._processes]
        if not sentinels:
            return
        while not (
            ready := await asyncio.to_thread(multiprocessing.connection.wait, sentinels, 1.0)
        ):
            continue  # wait in slices, so that the thread of a cancelled wait ends soon
        ended = [process for process in self._processes if process.sentinel in ready]
        # A process closes its sentinel shortly before its exit code is available.
        await asyncio.to_thread(_join_all, ended, _KILL_SECONDS)
        codes = {process.name: process.exitcode for process in ended if process.exitcode}
        if codes:
            raise LaunchError(f"a server process ended by itself (exit codes {codes})")

    def is_alive(self) -> bool:
        return any(process.is_alive() for process in self._processes)


def _join_all(processes: list[BaseProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def _process_main(
    app: Callable[..., Any],
    factory: bool,
    args: PythonServerLauncherArgs,
    listener: socket,
    starter: Connection,
) -> None:
    # Ctrl+C reaches the whole foreground group; the starter decides when its servers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def main() -> None:
        server = SocketServer(app() if factory else app, args)

        def stop(_signal: int, _frame: FrameType | None) -> None:
            server.stop()

        signal.signal(signal.SIGTERM, stop)
        _stop_with_parent(server)
        serving = asyncio.create_task(server.run_on(listener))
        await asyncio.shield(server.ready)
        freeze_memory()
        starter.send("")
        starter.close()
        await serving

    try:
        run_in_new_loop(main)
    except Exception as error:
        if starter.closed:
            raise
        # The starter raises the error in the parent process.
        logger.debug("the server process did not start", exc_info=error)
        starter.send(str(error) if isinstance(error, AglError) else error_text(error))
        sys.exit(1)


def _stop_with_parent(server: SocketServer) -> None:
    """Stop the server when the process that started it dies, so that no orphan holds the port."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([sentinel])
        server.stop()

    threading.Thread(target=watch, name="agl-parent-watch", daemon=True).start()
