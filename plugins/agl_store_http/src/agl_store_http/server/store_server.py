"""A store on a port, which is itself a store wherever it travels."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from agl_core.env import LightningEnvVar
from agl_core.errors import ConfigError, LaunchError
from agl_core.store import (
    InterceptedStore,
    Interceptor,
    LightningStore,
    LightningStoreCapabilities,
    Next,
    StoreCall,
    innermost,
    with_installed,
)
from agl_serving import (
    ATTEMPT_TOKEN_SECONDS,
    LOOPBACK,
    LaunchMode,
    PythonServerLauncher,
    PythonServerLauncherArgs,
    accepted_hosts,
    is_loopback,
    mint_token,
)
from agl_store_http.client import LightningStoreClient
from agl_store_http.client.config import API_PREFIX
from agl_store_http.server.app import StoreApp, StoreAppOptions
from agl_store_kit import LightningStoreThreaded

__all__ = ["DEFAULT_PORT", "HEALTH_PATH", "LightningStoreServer", "check_exposure"]

DEFAULT_PORT: Final = 4747
"""As in version 0.3."""
HEALTH_PATH: Final = "/v1/agl/health"
_NO_PROCESS: Final = 0
"""An id that no process has which runs Python: that of the owner of a pickled copy."""


def check_exposure(host: str, auth_token: str | None, insecure: bool) -> None:
    """Refuse to let a network in without a token.

    Raises:
        ConfigError: The host is reachable from other machines, there is no token, and ``insecure``
            is off.
    """
    if not (is_loopback(host) or auth_token or insecure):
        raise ConfigError(
            f"on {host} anyone on the network could read and change this store: set a token "
            f"(--auth-token, AGL_AUTH_TOKEN), or allow it with --insecure (insecure=True)"
        )


class LightningStoreServer(InterceptedStore):
    """Serves a store over HTTP, and is that store for whoever holds it.

    In the process that made it, calls go straight to the inner store. In any other process - a
    fork, or wherever a pickled copy arrives - they go over HTTP to the one true store, unless the
    inner store can itself be shared by processes. Start and stop it where it was made.

    Args:
        store: The store to serve; it is not closed with the server.
        host: Interface; None is loopback. Any other needs a token or ``insecure``.
        port: Port; None is 4747, 0 takes a free one.
        cors_allow_origins: Origins whose pages may call; None allows none.
        launch_mode: See :class:`PythonServerLauncherArgs`.
        launcher_args: Everything else about serving; host, port and mode too, as in 0.3.
        n_workers: Processes (mode ``mp``), for stores that processes can share.
        auth_token: The server's secret; None takes AGL_AUTH_TOKEN, if that is set.
        insecure: Let a network in without a token.
        options: Everything else about the API.

    Raises:
        ConfigError: The arguments contradict each other, or the store cannot be served this way.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str | None = None,
        port: int | None = None,
        cors_allow_origins: str | Sequence[str] | None = None,
        launch_mode: LaunchMode = "thread",
        launcher_args: PythonServerLauncherArgs | None = None,
        n_workers: int = 1,
        *,
        auth_token: str | None = None,
        insecure: bool = False,
        options: StoreAppOptions | None = None,
    ) -> None:
        given = launcher_args or PythonServerLauncherArgs()
        if (given.host and host) or (given.port is not None and port is not None):
            raise ConfigError("give host and port to the server or in launcher_args, not to both")
        host, port = host or given.host, given.port if port is None else port
        if given.launch_mode != "asyncio":  # the default of launcher_args
            if launch_mode not in ("thread", given.launch_mode):
                raise ConfigError("launch_mode and the one in launcher_args differ")
            launch_mode = given.launch_mode
        capabilities, name = store.capabilities, type(innermost(store)).__name__
        if not capabilities.get("async_safe"):
            raise ConfigError(f"{name} is not async_safe and cannot be served")
        if launch_mode == "mp" and not capabilities.get("zero_copy"):
            raise ConfigError(
                f"{name} is not zero_copy: its data stays in one process; "
                "serve it with launch_mode='thread', or use a store that processes can share"
            )
        if launch_mode == "thread" and not capabilities.get("thread_safe"):
            # The owner calls from its loop while the server calls from its own.
            store = LightningStoreThreaded(store)
        store = with_installed(store)  # for the owner's calls, too
        token = auth_token or os.environ.get(LightningEnvVar.AGL_AUTH_TOKEN) or None
        bound = host or LOOPBACK
        check_exposure(bound, token, insecure)
        origins = cors_allow_origins or ()
        options = options or StoreAppOptions()
        app_options = replace(
            options,
            auth_token=token,
            allowed_hosts=accepted_hosts(bound, options.allowed_hosts),
            cors_allow_origins=(origins,) if isinstance(origins, str) else tuple(origins),
        )
        self._owner = os.getpid()
        self._token = token
        self._client: LightningStoreClient | None = None
        self._shared = bool(capabilities.get("zero_copy"))
        in_processes = launch_mode == "mp"
        self._address = ""
        self._launcher: PythonServerLauncher | None = PythonServerLauncher(
            functools.partial(StoreApp, store, app_options)
            if in_processes
            else StoreApp(store, app_options),
            replace(
                given,
                host=bound,
                port=DEFAULT_PORT if port is None else port,
                launch_mode=launch_mode,
                n_workers=max(n_workers, given.n_workers),
                healthcheck_url=given.healthcheck_url or HEALTH_PATH,
            ),
            factory=in_processes,
        )
        super().__init__(store, (_Served(self),))

    # -- life ------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """URL that others reach the server at; known once it has started."""
        if self._launcher is None:
            return self._address
        return self._launcher.access_endpoint

    @property
    def server_address(self) -> str:
        """Base URL of the API, as in 0.3, e.g. ``http://127.0.0.1:4747/v1/agl``."""
        return self.server_address_root + API_PREFIX

    @property
    def server_address_root(self) -> str:
        """The ``endpoint``, under its name of 0.3."""
        return self.endpoint

    async def start(self) -> None:
        """Start; LaunchError if the port is taken or the server does not become healthy."""
        await self._own_launcher("start").start()

    async def stop(self) -> None:
        """Stop, ending long polls; idempotent."""
        await self._own_launcher("stop").stop()

    async def run_forever(self) -> None:
        """Start, and serve until cancelled."""
        await self._own_launcher("run").run_forever()

    def is_running(self) -> bool:
        """Whether this process runs the server."""
        return self._launcher is not None and self.is_own() and self._launcher.is_running()

    def is_own(self) -> bool:
        """Whether this process made the server."""
        return os.getpid() == self._owner

    def mint_attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        """Return a token bound to an attempt; None if the server needs no tokens."""
        if self._token is None:
            return None
        return mint_token(
            self._token,
            "attempt",
            lifetime=ATTEMPT_TOKEN_SECONDS,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
        )

    def _own_launcher(self, action: str) -> PythonServerLauncher:
        if self._launcher is None or not self.is_own():
            raise LaunchError(f"only the process that made a store server can {action} it")
        return self._launcher

    # -- elsewhere -------------------------------------------------------------------------------

    def _remote(self) -> LightningStoreClient | None:
        """Return the client of the server; None where calls go straight to the store."""
        if self._shared or self.is_own():
            return None
        if self._client is None:
            self._client = LightningStoreClient(self.endpoint, auth_token=self._token)
        return self._client

    def __reduce__(self) -> tuple[Any, ...]:
        # The store stays where it is; a copy elsewhere talks to it over HTTP. Its address is only
        # known once the server has started, which is when a copy has something to talk to.
        elsewhere = {
            "_address": self.endpoint,
            "_launcher": None,
            "_client": None,
            "_owner": _NO_PROCESS,
            "_shared": False,
        }
        return _copy_elsewhere, (type(self), {**self._own_attributes(), **elsewhere})


def _copy_elsewhere(
    cls: type[LightningStoreServer], attributes: dict[str, Any]
) -> LightningStoreServer:
    made = object.__new__(cls)
    vars(made).update(attributes)
    client = made._remote()  # pyright: ignore[reportPrivateUsage]
    assert client is not None
    InterceptedStore.__init__(made, client, (_Served(made),))
    return made


class _Served(Interceptor):
    """The outermost interceptor of a server: other processes call the server over HTTP.

    Args:
        server: The server.
    """

    travels: ClassVar[bool] = False  # the server makes one for its copy

    def __init__(self, server: LightningStoreServer) -> None:
        self._server = server

    async def around(self, call: StoreCall, next: Next) -> Any:
        remote = self._server._remote()  # pyright: ignore[reportPrivateUsage]
        if remote is not None:
            return await call.on(remote)
        if call.name != "close":
            return await next(call)
        return await self._server.stop() if self._server.is_own() else None

    def around_sync(self, call: StoreCall, next: Next) -> Any:
        server = self._server
        if call.name == "otlp_traces_endpoint":
            return f"{server.endpoint}/v1/traces"
        if call.name == "attempt_token":
            return server.mint_attempt_token(*call.args, **call.kwargs)
        remote = server._remote()  # pyright: ignore[reportPrivateUsage]
        answer = next(call) if remote is None else call.on(remote)
        if call.name == "capabilities":
            served = LightningStoreCapabilities(
                thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True
            )
            return {**answer, **served}
        return answer
