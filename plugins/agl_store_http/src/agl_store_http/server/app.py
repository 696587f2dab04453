"""The store API as an ASGI application over any store.

What happens to a request, in order: the browser guard, the router, the token and its scope, the
body (read within limits, parsed once from its bytes into what the handler takes), the handler, and
the reply (written once to bytes). Whatever goes wrong on the way ends in :meth:`StoreApp._failure`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import ValidationError

from agl_core import errors
from agl_core.ids import generate_id
from agl_core.plugins._spec import AppSpec
from agl_core.store.base import LightningStore
from agl_core.store.request_key import current_request_key
from agl_serving.guard import BrowserGuard
from agl_serving.messages import (
    JSON,
    ClientGone,
    Headers,
    HTTPError,
    Message,
    Receive,
    Response,
    Send,
    Stream,
    error_details,
    problem,
    read_body,
    reject_non_finite,
    send_response,
    send_stream,
)
from agl_serving.tokens import Identity, Scope, TokenVerifier
from agl_store_http.server.api import ENDPOINTS
from agl_store_http.server.cors import CrossOrigin
from agl_store_http.server.endpoints import Endpoint, Request, Router
from agl_store_http.server.mounts import Mounts
from agl_store_http.server.openapi import DOCUMENTS
from agl_store_http.server.querystring import parse_query
from agl_store_http.server.replies import ReplyMemory

__all__ = ["StoreApp", "StoreAppOptions"]

logger = logging.getLogger(__name__)

_NOBODY: Final = Identity("admin")
"""Who calls a server without auth: whoever can reach it may do everything."""
_MAX_KEY_LENGTH: Final = 200

_STATUS_OF: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.NotFoundError, 404),
    (errors.InvalidArgumentError, 400),
    (errors.PermissionDeniedError, 403),
    (errors.SpansEvictedError, 410),
    (errors.RunEndedError, 410),
    (errors.StoreUnavailableError, 503),
    (errors.StoreDataError, 507),
)


@dataclass(frozen=True)
class StoreAppOptions:
    """What an operator chooses about the API. Picklable."""

    auth_token: str | None = None
    """The server's secret; None asks nobody for a token."""
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
        self.store = store
        self.max_body_bytes = options.max_body_bytes
        self.tokens = TokenVerifier(options.auth_token) if options.auth_token else None
        self.replies = ReplyMemory()
        self.undelivered: dict[str, Response] = {}
        """Claims that a worker whose client sends no keys did not get, by worker id."""
        self._guard = (
            None
            if self.tokens is not None
            else BrowserGuard(options.allowed_hosts, options.cors_allow_origins)
        )
        self._cors = CrossOrigin(options.cors_allow_origins)
        self._mounts = Mounts(options.mounts, store)
        self._router = Router()
        for endpoint in (*ENDPOINTS, *DOCUMENTS):
            self._router.add(endpoint.method, endpoint.path, (endpoint, endpoint.parser()))
        self._stopping: asyncio.Future[None] | None = None
        self._watchdog: asyncio.Task[None] | None = None

    @property
    def stopping(self) -> asyncio.Future[None]:
        """Done once the server shuts down; what long polls watch."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
        return self._stopping

    def reply_key(self, request: Request, *more: str | None) -> str:
        """Return the name that a creating call's reply is remembered under.

        Callers of different rights never share one, whatever keys they choose.
        """
        who = request.identity
        return repr((who.scope, who.rollout_id, who.attempt_id, request.params, more, request.key))

    def store_key(self, name: str) -> str:
        """Return the key that a store may remember the call of this reply key under."""
        return hashlib.sha256(name.encode()).hexdigest()[:40]

    # -- ASGI ------------------------------------------------------------------------------------

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        method: str = scope["method"]
        path: str = scope["path"]
        status = 200
        try:
            if self._cors and (preflight := self._cors.preflight(method, headers)) is not None:
                await send_response(send, preflight.status, preflight.body, preflight.headers)
                return
            if self._guard is not None:
                self._guard.check(headers)
            found = self._router.find(method, path, scope["raw_path"])
            if found is None:
                if await self._mounted(scope, headers, receive, send):
                    return
                raise self._unknown(path, scope["raw_path"])
            (endpoint, parse), params = found
            status = endpoint.status
            identity = self._identify(endpoint.scopes, headers)
            body = await self._body(endpoint, parse, scope, headers, receive)
            key = headers.get(b"idempotency-key")
            request = Request(
                self,
                params,
                body,
                identity,
                headers,
                receive,
                None if key is None else _checked_key(key),
            )
            if identity.scope == "attempt" and endpoint.binding is not None:
                for rollout_id, attempt_id in endpoint.binding(request):
                    identity.require_attempt(rollout_id, attempt_id)
            if request.key is None:
                reply = await endpoint.handler(request)
            else:
                reply = await self._remembered(endpoint, request)
        except ClientGone:
            return
        except Exception as error:
            reply = self._failure(error, method, path)
        extra = self._cors.headers(headers) if self._cors else ()
        if type(reply) is bytes:
            await send_response(send, status, reply, (JSON, *extra) if extra else _JSON_ONLY)
        elif isinstance(reply, Response):
            await send_response(send, reply.status, reply.body, (*reply.headers, *extra))
        elif isinstance(reply, Stream):
            reply.headers = (*reply.headers, *extra)
            await send_stream(reply, send, receive, self.stopping)

    # -- steps of a request ----------------------------------------------------------------------

    def _unknown(self, path: str, raw_path: bytes) -> HTTPError:
        methods = self._router.methods(path, raw_path)
        if not methods:
            return HTTPError(404, "Not Found")
        allow = ", ".join(sorted(methods)).encode()
        return HTTPError(405, "Method Not Allowed", headers=((b"allow", allow),))

    def _identify(self, scopes: frozenset[Scope] | None, headers: Headers) -> Identity:
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

    async def _body(
        self,
        endpoint: Endpoint,
        parse: Callable[[bytes], Any] | None,
        scope: Message,
        headers: Headers,
        receive: Receive,
    ) -> Any:
        if endpoint.query:
            return parse_query(endpoint.body, scope["query_string"])
        if endpoint.method == "GET":
            return None
        body = await read_body(receive, headers, self.max_body_bytes)
        if parse is None:
            return body
        if not body:
            if endpoint.body_optional:
                return parse(b"{}")
            raise HTTPError(422, [{"type": "missing", "loc": ["body"], "msg": "Field required"}])
        media_type = headers.get(b"content-type", JSON[1])
        if media_type != JSON[1] and not _is_json(media_type):
            raise HTTPError(415, "the body must be application/json")
        parsed = parse(body)
        reject_non_finite(body, overflow=not endpoint.keeps_infinity)
        return parsed

    async def _remembered(self, endpoint: Endpoint, request: Request) -> bytes | Response | Stream:
        name = self.reply_key(request, endpoint.method, endpoint.path)
        reset = current_request_key.set(self.store_key(name))
        try:
            if not endpoint.creates:
                return await endpoint.handler(request)

            async def run() -> Response:
                reply = await endpoint.handler(request)
                return Response(endpoint.status, reply) if type(reply) is bytes else reply  # pyright: ignore[reportReturnType]

            reply = await self.replies.once(name, run)
            assert reply is not None
            return reply
        finally:
            current_request_key.reset(reset)

    def _failure(self, error: Exception, method: str, path: str) -> Response:
        """Turn what went wrong into an answer; what is not the caller's fault is logged."""
        if isinstance(error, HTTPError):
            more = {"error_type": error.error_type} if error.error_type else {}
            answer = problem(error.status, error.detail, **more)
            answer.headers = (*answer.headers, *error.headers)
            return answer
        if isinstance(error, ValidationError):
            return problem(422, error_details(error, "body"))
        for kind, status in _STATUS_OF:
            if isinstance(error, kind):
                return problem(status, str(error), error_type=type(error).__name__)
        error_id = generate_id(12)
        logger.error("%s %s failed (error_id %s)", method, path, error_id, exc_info=error)
        return problem(
            500, "Internal server error", error_type=type(error).__name__, error_id=error_id
        )

    # -- mounted apps ----------------------------------------------------------------------------

    async def _mounted(
        self, scope: Message, headers: Headers, receive: Receive, send: Send
    ) -> bool:
        found = self._mounts.find(scope["path"])
        if found is None:
            return False
        spec, app, prefix = found
        if prefix == "" and scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
            return False
        self._identify(_MOUNT_SCOPES[spec.scope], headers)
        await app({**scope, "root_path": scope.get("root_path", "") + prefix}, receive, send)
        return True

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        try:
            if self._guard is not None:
                self._guard.check(headers)
            if await self._mounted(scope, headers, receive, send):
                return
        except HTTPError as error:
            logger.debug("websocket refused: %s", error)
        await receive()
        await send({"type": "websocket.close", "code": 1008})

    # -- life ------------------------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        """End long polls and streams; called by the server before it waits for requests."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._stopping = asyncio.get_running_loop().create_future()
                if self.options.watchdog_seconds > 0:
                    self._watchdog = asyncio.create_task(self._watch(), name="agl-watchdog")
                await send({"type": "lifespan.startup.complete"})
            else:
                self.begin_shutdown()
                if self._watchdog is not None:
                    self._watchdog.cancel()
                    await asyncio.wait({self._watchdog})
                if self._close_store:
                    await self.store.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.options.watchdog_seconds)
            try:
                await self.store.run_watchdog()
            except Exception:
                # The next round may find the store well again; without the watchdog no attempt
                # would ever time out.
                logger.exception("the watchdog's round failed")


_JSON_ONLY: Final = (JSON,)
_MOUNT_SCOPES: Final[dict[str, frozenset[Scope] | None]] = {
    "public": None,
    "read": frozenset({"read", "algorithm"}),
    "admin": frozenset(),
}


def _unauthorized(detail: str) -> HTTPError:
    return HTTPError(
        401,
        detail,
        error_type="PermissionDeniedError",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def _is_json(media_type: bytes) -> bool:
    plain = media_type.partition(b";")[0].strip().lower()
    return plain == JSON[1] or (plain.startswith(b"application/") and plain.endswith(b"+json"))


def _checked_key(key: bytes) -> str:
    if not 0 < len(key) <= _MAX_KEY_LENGTH:
        raise HTTPError(400, f"an Idempotency-Key has 1 to {_MAX_KEY_LENGTH} characters")
    return key.decode("latin-1")
