"""Runs an ASGI app in this loop, in a thread, or in processes, and detects when it is ready.

::

    launcher = PythonServerLauncher(app, PythonServerLauncherArgs(launch_mode="thread"))
    await launcher.start()          # returns when the app answers
    ...                             # launcher.access_endpoint
    await launcher.stop()

The store server and the LLM proxies use it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agl_core.errors import LaunchError
from agl_serving.sockets import LOOPBACK, bind_socket, is_wildcard, outbound_address, url_host

if TYPE_CHECKING:
    from socket import socket

    from agl_serving.modes import Serving

__all__ = ["LaunchMode", "PythonServerLauncher", "PythonServerLauncherArgs"]

logger = logging.getLogger(__name__)

LaunchMode = Literal["asyncio", "thread", "mp"]


@dataclass(frozen=True)
class PythonServerLauncherArgs:
    """Options for serving an app. Durations are in seconds."""

    port: int | None = None
    """Port to bind; None takes a free one."""
    host: str | None = None
    """Interface to bind; None is loopback, ``0.0.0.0`` every one."""
    access_host: str | None = None
    """Host in URLs for clients; None is the bound host (loopback for a wildcard), ``"auto"`` the
    machine's outbound address."""
    launch_mode: LaunchMode = "asyncio"
    """``asyncio``: a task of the calling loop; ``thread``: a daemon thread with its own loop;
    ``mp``: processes."""
    n_workers: int = 1
    """Processes that share the port (mode ``mp``)."""
    healthcheck_url: str | None = None
    """Path that must answer 200 before the start is complete; None checks only the app's own
    start-up."""
    log_level: int = logging.INFO
    access_log: bool = False
    startup_timeout: float = 60.0
    kill_unhealthy_server: bool = True
    """Stop a server that did not become healthy (mode ``asyncio``; the others always stop it)."""
    thread_join_timeout: float = 10.0
    process_join_timeout: float = 10.0
    timeout_keep_alive: int = 30
    """Time after which an idle connection is closed."""
    timeout_request_head: float = 30.0
    """Time after which a connection is closed whose request line and headers are not complete."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    start_method: Literal["fork", "forkserver", "spawn"] | None = None
    """Start method of processes; None is the platform's default. All but fork need a picklable
    app."""


class PythonServerLauncher:
    """One app and its server.

    Not thread-safe: one owner starts and stops it. Picklable before and while it runs; the copy has
    the address but can neither stop nor start the original's server.

    Args:
        app: The ASGI app, or with ``factory`` a callable that returns it.
        args: Options for serving it.
        factory: Whether ``app`` must be called to create the app where it runs, such as in a child
            process.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        args: PythonServerLauncherArgs | None = None,
        *,
        factory: bool = False,
    ) -> None:
        self.args = args or PythonServerLauncherArgs()
        if self.args.n_workers < 1:
            raise LaunchError(f"n_workers must be at least 1, not {self.args.n_workers}")
        if self.args.n_workers > 1 and self.args.launch_mode != "mp":
            raise LaunchError("several workers need launch_mode='mp'")
        self._app = app
        self._factory = factory
        self._host = self.args.host or LOOPBACK
        self._port = self.args.port or None
        self._serving: Serving | None = None

    # -- addresses -------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """URL with the bound host; the port is known after the start, or if one was given."""
        return self._url(self._host)

    @property
    def access_endpoint(self) -> str:
        """URL for clients."""
        return self._url(self.access_host)

    @property
    def access_host(self) -> str:
        given = self.args.access_host
        if given == "auto":
            return outbound_address()
        if given is not None:
            return given
        return LOOPBACK if is_wildcard(self._host) else self._host

    @property
    def health_url(self) -> str | None:
        """URL that :meth:`start` probes."""
        path = self.args.healthcheck_url
        if path is None:
            return None
        host = LOOPBACK if is_wildcard(self._host) else self._host
        return self._url(host) + "/" + path.lstrip("/")

    @property
    def port(self) -> int:
        """The bound port; LaunchError before the start if none was given."""
        if self._port is None:
            raise LaunchError("the port is not known before the server has started")
        return self._port

    def _url(self, host: str) -> str:
        scheme = "https" if self.args.ssl_certfile else "http"
        return f"{scheme}://{url_host(host)}:{self.port}"

    # -- life cycle ------------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._serving is not None and self._serving.is_alive()

    async def start(self) -> None:
        """Bind, serve, and return once the app answers.

        Raises:
            LaunchError: It runs already, the port is taken, or the app did not start or did not
                become healthy within ``startup_timeout``; then the server is stopped again.
        """
        if self.is_running():
            raise LaunchError(f"the server at {self.endpoint} runs already")
        if self._serving is not None:
            await self._serving.stop()
            self._serving = None
        deadline = time.monotonic() + self.args.startup_timeout
        listener = bind_socket(self._host, self._port)
        self._port = int(listener.getsockname()[1])
        serving = self._new_serving(listener)
        try:
            async with asyncio.timeout(self.args.startup_timeout):
                await serving.start()
        except BaseException as error:
            await serving.stop()
            listener.close()
            if isinstance(error, TimeoutError):
                raise LaunchError(
                    f"the server did not start within {self.args.startup_timeout:g} s"
                ) from error
            raise
        self._serving = serving
        await self._become_healthy(deadline)
        logger.debug("serving at %s (%s)", self.endpoint, self.args.launch_mode)

    async def _become_healthy(self, deadline: float) -> None:
        from agl_serving.uvicorn_server import probe_health

        if self.health_url is None:
            return
        try:
            await asyncio.to_thread(probe_health, self.health_url, deadline)
        except BaseException:
            if self.args.kill_unhealthy_server or self.args.launch_mode != "asyncio":
                await self.stop()
            raise

    async def stop(self) -> None:
        """Stop gracefully, then by force; return when the port is free. Idempotent.

        Raises:
            LaunchError: A thread or process did not end in time.
        """
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.stop()

    async def wait(self) -> None:
        """Return when the server has ended; LaunchError if it ended by itself with an error."""
        if self._serving is not None:
            await self._serving.wait()

    async def run_forever(self) -> None:
        """Start, and serve until cancelled (Ctrl+C cancels) or until the server ends."""
        await self.start()
        try:
            await self.wait()
        finally:
            await self.stop()

    def _new_serving(self, listener: socket) -> Serving:
        from agl_serving import modes

        made = {"asyncio": modes.LoopServing, "thread": modes.ThreadServing}.get(
            self.args.launch_mode, modes.ProcessServing
        )
        return made(self._app, self._factory, self.args, listener)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_serving": None}
