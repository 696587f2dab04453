"""One uvicorn server on one socket: its configuration, its stop, and the health probe.

Imported by the launcher's threads and processes only; importing it loads uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import uvicorn

from agl_core.errors import LaunchError
from agl_serving.request_heads import TimedHeads

if TYPE_CHECKING:
    from socket import socket

    from agl_serving.launcher import PythonServerLauncherArgs

__all__ = ["ASGIApp", "SocketServer", "probe_health", "run_in_new_loop"]

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
ASGIApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

_GRACEFUL_SECONDS: Final = 5
"""Requests in progress get this long; then a stop is a stop."""
_DATE_HEADER_SECONDS: Final = 1.0
"""The header's resolution."""


class Connections(set[Any]):
    """The open connections of a server, whose end can be awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._one_closed = asyncio.Event()

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._one_closed.set()

    def remove(self, connection: Any) -> None:
        super().remove(connection)
        self._one_closed.set()

    async def all_closed(self) -> None:
        while self:
            self._one_closed.clear()
            await self._one_closed.wait()


class SocketServer(uvicorn.Server):
    """Serves an app on a bound socket until :meth:`stop`.

    Differs from uvicorn's own server in five ways. It does not change the process's signal
    handlers (a library must not take Ctrl+C from the application). It stops at once, where uvicorn
    looks every 0.1 s whether it should, and whether its connections are closed. It notifies the app
    (``begin_shutdown()``, if it has that method) before it waits for open requests, so that long
    polls can end early. It limits the time for the head of a request. It leaves no connection open:
    neither one that was accepted while it stopped, nor one whose request outlasted the graceful
    time. Belongs to the loop that it is created in.
    """

    def __init__(
        self,
        app: ASGIApp,
        args: PythonServerLauncherArgs,
    ) -> None:
        self._stop = asyncio.Event()
        protocol = partial(TimedHeads, head_seconds=args.timeout_request_head, stopping=self._stop)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("Any", protocol),
                lifespan="auto",
                log_config=None,
                access_log=args.access_log,
                timeout_keep_alive=int(args.timeout_keep_alive),
                timeout_graceful_shutdown=_GRACEFUL_SECONDS,
                proxy_headers=False,
                server_header=False,
                ws="auto",
                ssl_certfile=args.ssl_certfile,
                ssl_keyfile=args.ssl_keyfile,
            )
        )
        self.server_state.connections = self._connections = Connections()
        self._app: Any = app
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[Any] | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()

    def stop(self) -> None:
        """Ask the server to stop; safe from any thread, any number of times."""
        if not self._loop.is_closed():
            # The loop may close between the check and the call; then the server has stopped anyway.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop_here)

    def _stop_here(self) -> None:
        self._stop.set()
        if not self.started and self._running is not None:
            self._running.cancel()  # a hanging start-up checks no event

    async def run_on(self, listener: socket) -> None:
        """Serve until stopped.

        Raises:
            LaunchError: The app's start-up failed.
        """
        self._running = asyncio.current_task()
        failure = LaunchError("the app's start-up failed; its log says why")
        try:
            await self._serve(sockets=[listener])
        except SystemExit as error:
            raise failure from error
        except asyncio.CancelledError:
            if self._stop.is_set():
                failure = LaunchError("the server was stopped while it started")
                raise failure from None
            raise
        finally:
            if not self.ready.done():
                self.ready.set_exception(failure)
                self.ready.exception()  # this call raises the same error

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.ready.done():
            self.ready.set_result(None)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_HEADER_SECONDS):
                    await self._stop.wait()
                    return

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        begin_shutdown = getattr(self._app, "begin_shutdown", None)
        if begin_shutdown is not None:
            begin_shutdown()
        await self._accept_no_more()
        for closable in (*self.servers, *(sockets or ())):
            closable.close()
        for connection in list(self._connections):
            connection.shutdown()  # as soon as its response is complete
        try:
            async with asyncio.timeout(_GRACEFUL_SECONDS):
                await self._connections.all_closed()
                if self.server_state.tasks:  # of clients that are gone
                    await asyncio.wait(self.server_state.tasks)
        except TimeoutError:
            self._cancel_requests()
        await self.lifespan.shutdown()
        for connection in self._connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    def _cancel_requests(self) -> None:
        tasks = self.server_state.tasks
        logger.warning("cancelled %d requests, %d s after the stop", len(tasks), _GRACEFUL_SECONDS)
        for task in tasks:
            task.cancel("the server stops")

    async def _accept_no_more(self) -> None:
        """Stop accepting, and let the loop finish what it has accepted.

        asyncio forgets a connection, and leaves its socket open, if its server is closed between
        the accept and the start of its transport, two turns of the loop later.
        """
        if isinstance(self._loop, asyncio.SelectorEventLoop):
            for server in self.servers:
                for listener in server.sockets:
                    self._loop.remove_reader(listener)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def run_in_new_loop(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function in a new event loop: uvloop if the platform has it."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_as_coroutine(main))


async def _as_coroutine(main: Callable[[], Awaitable[None]]) -> None:
    await main()


def probe_health(url: str, deadline: float) -> None:
    """Block until a GET of ``url`` answers 200.

    Args:
        url: Health URL of one of our own servers; its certificate is not checked.
        deadline: End of the wait, on the clock of :func:`time.monotonic`.

    Raises:
        LaunchError: The deadline passed.
    """
    parts = urlsplit(url)
    pause = 0.01
    last = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        if parts.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.netloc, timeout=left, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=left)
        try:
            connection.request("GET", parts.path or "/")
            with connection.getresponse() as response:
                status = response.status
            if status == 200:
                return
            last = f"status {status}"
        except (OSError, http.client.HTTPException) as error:
            last = str(error) or type(error).__name__
        finally:
            connection.close()
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))  # no event across processes
        pause = min(pause * 2, 0.5)
    raise LaunchError(f"the server did not become healthy in time: GET {url} gave {last}")
