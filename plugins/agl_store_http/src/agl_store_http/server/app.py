"""The store API as an ASGI application over any store.

A request passes, in this order: CORS, the browser guard, the router, the token and its scope, the
body (read within limits, parsed once from its bytes into what the endpoint takes), the endpoint,
and the reply (written once to bytes). FastAPI routes requests and documents the routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from agl_core.metrics import MeasureCalls, build_tracker, is_recording, recording, sampled
from agl_core.plugins import AppSpec
from agl_core.store import LightningStore, installed_interceptors, intercept
from agl_serving import (
    BrowserGuard,
    Headers,
    HTTPError,
    Identity,
    Message,
    Receive,
    Scope,
    Send,
    TokenVerifier,
)
from agl_store_http.server.api import HOT_ENDPOINTS, ROUTES
from agl_store_http.server.database_health import DatabaseHealth
from agl_store_http.server.doors.hot_routes import HotRoutes
from agl_store_http.server.doors.measured import measured
from agl_store_http.server.doors.mounts import Mounts, refuse_websocket
from agl_store_http.server.doors.openapi import describe_requests
from agl_store_http.server.doors.routing import QUOTED_PATH, method_of
from agl_store_http.server.replies.failures import failure
from agl_store_http.server.replies.memory import ReplyMemory
from agl_store_http.server.replies.reply import Reply
from agl_store_http.server.views.summaries import Summaries
from agl_store_http.server.views.training import Training
from agl_store_http.server.writers import IssuedIds

__all__ = ["StoreApp", "StoreAppOptions"]

logger = logging.getLogger(__name__)

_NOBODY: Final = Identity("admin")
"""The caller of a server without auth: whoever can reach it may do everything."""


@dataclass(frozen=True)
class StoreAppOptions:
    """Options of the API. Picklable."""

    auth_token: str | None = None
    """The server's secret; None turns auth off."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the Host header may carry besides localhost and IP addresses."""
    cors_allow_origins: tuple[str, ...] = ()
    """Origins whose pages may call; ``"*"`` is all."""
    max_body_bytes: int = 64 * 1024 * 1024
    """Largest body taken, also after decompression."""
    watchdog_seconds: float = 10.0
    """How often the watchdog looks for attempts past their time; 0 turns it off."""
    mounts: tuple[AppSpec, ...] = ()
    """Apps of plugins."""
    tracker: tuple[Any, ...] = ()
    """Where metrics go: backends of kind ``metrics`` by name, or as a table."""


class StoreApp:
    """ASGI application that serves one store. For one event loop at a time.

    Args:
        store: The store.
        options: See :class:`StoreAppOptions`.
        close_store: Close the store when the server stops.

    Raises:
        ConfigError: The auth token is too short.
        PluginBrokenError: A mounted app cannot be made.
    """

    def __init__(
        self,
        store: LightningStore,
        options: StoreAppOptions | None = None,
        *,
        close_store: bool = False,
    ) -> None:
        self._close_store = close_store
        self.options = options = options or StoreAppOptions()
        self._trackers = build_tracker(options.tracker)
        measured = (MeasureCalls(),) if self._trackers else ()
        self.store = store = intercept(store, *installed_interceptors(), *measured)
        self.tokens = TokenVerifier(options.auth_token) if options.auth_token else None
        self.replies = ReplyMemory()
        self.undelivered: dict[str, Reply] = {}
        """Claims that a worker whose client sends no keys did not get, by worker id."""
        self.issued = IssuedIds()
        self._read_anew()
        self._guard = (
            None
            if self.tokens is not None
            else BrowserGuard(options.allowed_hosts, options.cors_allow_origins)
        )
        self._api = self._new_api()
        self._hot = HotRoutes(ROUTES, HOT_ENDPOINTS)
        self._outermost = _with_cors(self._serve, options.cors_allow_origins)
        self._stopping: asyncio.Future[None] | None = None

    def _read_anew(self) -> None:
        """Make what reads the store for one event loop."""
        self.summaries = Summaries(self.store)
        self.training = Training(self.store)
        self.database = DatabaseHealth(self.store)

    def _new_api(self) -> FastAPI:
        api = _StoreAPI(
            title="LightningStore Server",
            version=version("agl-core"),
            description="Tasks, spans and tunable resources of agents in training.",
            routes=[*ROUTES],
            # Both pages would load their scripts from another host.
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _router_failure},
        )
        api.state.store_app = self
        api.router.routes.append(Mounts(self.options.mounts, self.store, self))
        return api

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the routes, as ``/openapi.json`` serves it."""
        return self._api.openapi()

    @property
    def stopping(self) -> asyncio.Future[None]:
        """Done once the server shuts down; what long polls watch."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
        return self._stopping

    def identify(self, scopes: frozenset[Scope] | None, headers: Headers) -> Identity:
        """Return the caller.

        Args:
            scopes: Scopes that may call besides ``admin``; None lets everyone in.
            headers: The request's.

        Raises:
            HTTPError: 401 without a valid token, 403 if its scope is another.
        """
        if self.tokens is None or scopes is None:
            return _NOBODY
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if not token:
            raise _unauthorized("this server needs a token: Authorization: Bearer <token>")
        identity = self.tokens.identify(token.strip()) if kind.lower() == b"bearer" else None
        if identity is None:
            raise _unauthorized("the token is not valid here, or has expired")
        if identity.scope != "admin" and identity.scope not in scopes:
            raise HTTPError(
                403,
                f"a token of scope {identity.scope} may not do this",
                error_type="PermissionDeniedError",
            )
        return identity

    # -- ASGI ------------------------------------------------------------------------------------

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if logger.isEnabledFor(logging.DEBUG) and scope["type"] == "http":
            send = _logged(scope, send)
        await self._outermost(scope, receive, send)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._api(scope, receive, send)
            return
        headers: Headers = dict(scope["headers"])
        if self._guard is not None:
            try:
                self._guard.check(headers)
            except HTTPError as error:
                await self._refuse(error, scope, receive, send)
                return
        if scope["type"] == "http" and await self._hot.answer(self, scope, headers, receive, send):
            return
        raw_path: bytes = scope["raw_path"]
        if b"%2f" in raw_path.lower():
            # An encoded slash belongs to an id: it must not split the path.
            quoted = raw_path.decode("latin-1")
            scope = {**scope, "path": quoted, QUOTED_PATH: scope["path"]}
        if is_recording() and scope["type"] == "http":
            await measured(self._api, scope, receive, send)
        else:
            await self._api(scope, receive, send)

    async def _refuse(self, error: HTTPError, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await refuse_websocket(error, receive, send)
        else:
            await failure(error, scope["method"], scope["path"])(scope, receive, send)

    # -- life ------------------------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """End long polls and streams; called by the server before it waits for requests."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._stopping = asyncio.get_running_loop().create_future()
        self._read_anew()  # a server that starts again may have another loop
        watchdog = None
        if self.options.watchdog_seconds > 0:
            watchdog = asyncio.create_task(self._watch(), name="agl-watchdog")
        try:
            with recording(*self._trackers):
                async with sampled(self.store) if self._trackers else nullcontext():
                    yield
        finally:
            self.begin_shutdown()
            if watchdog is not None:
                watchdog.cancel()
                await asyncio.wait({watchdog})
            await self.training.close()
            if self._close_store:
                await self.store.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.options.watchdog_seconds)
            try:
                await self.store.run_watchdog()
            except Exception:
                # The next round may find the store well again; without the watchdog no attempt
                # would ever time out.
                logger.exception("the watchdog's round failed")


def _logged(scope: Message, send: Send) -> Send:
    """Wrap ``send``: one line per request with its status and how long it took."""
    started = time.perf_counter()
    status = 0

    async def logged(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            took = (time.perf_counter() - started) * 1000
            logger.debug("%s %s: %d, %.1f ms", scope["method"], scope["path"], status, took)
        await send(message)

    return logged


class _StoreAPI(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            describe_requests(document, ROUTES)
        assert self.openapi_schema is not None
        return self.openapi_schema


def _with_cors(app: Any, origins: tuple[str, ...]) -> Any:
    """Put CORS (Fetch standard, "CORS protocol") around an app, if origins are named."""
    named = [origin.rstrip("/") for origin in origins if origin]
    if not named:
        return app
    return CORSMiddleware(
        app,
        allow_origins=[] if "*" in named else named,
        # Starlette would send "*" itself, and browsers refuse it together with credentials.
        allow_origin_regex=".*" if "*" in named else None,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_credentials=True,
        expose_headers=["*"],
    )


async def _router_failure(request: Request, error: Any) -> Reply:
    if error.status_code != 405:
        return failure(error, request.method, request.url.path)
    found = [route for route in ROUTES if route.path_regex.match(request.scope["path"])]
    allowed = sorted({method_of(route) for route in found})
    headers = ((b"allow", ", ".join(allowed).encode()),)
    error = HTTPError(405, "Method Not Allowed", headers=headers)
    return failure(error, request.method, request.url.path)


def _unauthorized(detail: str) -> HTTPError:
    return HTTPError(
        401,
        detail,
        error_type="PermissionDeniedError",
        headers=((b"www-authenticate", b"Bearer"),),
    )
