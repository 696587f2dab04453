"""The proxy as a pure ASGI application.

A path says whose call it is and in which protocol (:func:`~agl_core.genai.parse_path`).
Calls of a known protocol become a :class:`~agl_proxy_direct.call.Call`, the list of models is
answered here, control calls go to :mod:`agl_proxy_direct.control`, and everything else below
``/v1`` is passed on to the backend as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agl_core.genai import Route, dumps, parse_path
from agl_core.ids import generate_id
from agl_core.store.base import LightningStore
from agl_proxy_direct.backends import Backend, parse_model_list
from agl_proxy_direct.balancer import Balancer
from agl_proxy_direct.call import Call
from agl_proxy_direct.control import CONTROL_PREFIX, control
from agl_proxy_direct.exchange import Exchange
from agl_proxy_direct.failures import CallError, error_body
from agl_proxy_direct.http import HttpUpstream
from agl_proxy_direct.limits import Limits, RolloutLimits
from agl_proxy_direct.passthrough import PassedOn
from agl_proxy_direct.spool import Spool, Ticket
from agl_proxy_direct.upstream import Upstream
from agl_serving.guard import BrowserGuard
from agl_serving.messages import (
    JSON,
    ClientGone,
    Headers,
    HTTPError,
    Message,
    Receive,
    Send,
    read_body,
    send_response,
)
from agl_serving.tokens import Identity, TokenVerifier

__all__ = ["HEALTH_PATH", "Provision", "ProxyApp", "ProxyOptions"]

logger = logging.getLogger(__name__)

HEALTH_PATH: Final = "/health"
_NOBODY: Final = Identity("admin")
"""Who calls a proxy without auth: whoever can reach it may do everything."""
_RETRY_SOON: Final = ((b"retry-after", b"1"),)


ModelList = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Provision:
    """What stands behind a proxy: how its model list is read, and who sends its requests."""

    parse: Callable[[ModelList], tuple[Backend, ...]] = parse_model_list
    """Returns the backends of a model list; raises ConfigError."""
    connect: Callable[[], Upstream] = HttpUpstream
    """Called in the loop that serves."""


@dataclass(frozen=True)
class ProxyOptions:
    """What an operator chooses. Durations are seconds. Picklable."""

    auth_token: str | None = None
    """The secret whose tokens callers show; None asks nobody."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the Host header may carry besides localhost and IP addresses, without auth."""
    num_retries: int = 2
    """How often a call is tried again, on other backends and before its first byte."""
    queue_timeout: float = 600.0
    """How long a call waits for a free backend or for the end of a pause."""
    flush_timeout: float = 5.0
    """How long the end of an answer waits for its span to be stored."""
    stop_timeout: float = 30.0
    """How long a stop waits for spans to be stored."""
    max_spooled_spans: int = 20_000
    max_spooled_bytes: int = 512 * 2**20
    """What may wait for the store before new calls are refused."""
    max_body_bytes: int = 256 * 2**20
    limits: RolloutLimits = field(default_factory=RolloutLimits)


class ProxyApp:
    """ASGI application between agents and backends. For one event loop.

    Args:
        store: Where spans go.
        backends: Who answers.
        options: See :class:`ProxyOptions`.
        provision: See :class:`Provision`.
    """

    upstream: Upstream
    spool: Spool

    def __init__(
        self,
        store: LightningStore,
        backends: Sequence[Backend],
        options: ProxyOptions | None = None,
        provision: Provision | None = None,
    ) -> None:
        self.options = options = options or ProxyOptions()
        self.provision = provision or Provision()
        self.balancer = Balancer(backends, queue_timeout=options.queue_timeout)
        self.limits = Limits(options.limits)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._store = store
        self._tokens = TokenVerifier(options.auth_token) if options.auth_token else None
        self._guard = None if self._tokens else BrowserGuard(options.allowed_hosts)
        self._exchanges: set[Exchange] = set()
        self._warned = False

    @property
    def forwards_keys(self) -> bool:
        """Whether a backend without a key is shown the caller's; never where that is a token."""
        return self._tokens is None

    # -- ASGI ------------------------------------------------------------------------------------

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        route = parse_path(scope["path"])
        try:
            if scope["path"] == HEALTH_PATH:
                await send_response(send, 200, b'{"status":"ok"}')
                return
            if self._guard is not None:
                self._guard.check(headers)
            identity = self._identify(headers)
            if scope["path"].startswith(CONTROL_PREFIX):
                await control(self, identity, scope, headers, receive, send)
                return
            self._authorize(identity, route)
            if scope["method"] == "GET" and route.endpoint.partition("/models")[0] == "":
                await self._list_models(route, send, identity.models)
                return
            body = await read_body(receive, headers, self.options.max_body_bytes)
            await self._relay(route, scope, body, receive, send, identity.models)
        except ClientGone:
            return
        except CallError as error:
            await _tell(send, route, error)
        except HTTPError as error:
            told = CallError(error.status, str(error.detail), "refused", error.headers)
            await _tell(send, route, told)
        except Exception:
            error_id = generate_id(12)
            logger.exception("a call of %s failed (error_id %s)", scope["path"], error_id)
            message = f"the proxy failed; its log says why under {error_id}"
            await _tell(send, route, CallError(500, message, "proxy_error"))

    async def _relay(
        self,
        route: Route,
        scope: Message,
        body: bytes,
        receive: Receive,
        send: Send,
        models: frozenset[str] | None,
    ) -> None:
        if route.rollout_id is None and not self._warned:
            self._warned = True
            logger.warning(
                "calls without a rollout in their URL are not recorded; "
                "use as_resource() or /rollout/<id>/attempt/<id>/v1"
            )
        kind = Call if route.protocol and scope["method"] == "POST" else PassedOn
        exchange = kind(self, route, scope, body, receive, send, models)
        self._exchanges.add(exchange)
        try:
            await exchange.serve()
        finally:
            self._exchanges.discard(exchange)

    # -- who may do what -------------------------------------------------------------------------

    def _identify(self, headers: Headers) -> Identity:
        if self._tokens is None:
            return _NOBODY
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not token:
            token = headers.get(b"x-api-key", b"")
        identity = self._tokens.identify(token.strip()) if token else None
        if identity is None:
            raise CallError(
                401,
                "this proxy needs a token as API key, and takes only valid ones",
                "invalid_api_key",
                ((b"www-authenticate", b"Bearer"),),
            )
        return identity

    def _authorize(self, identity: Identity, route: Route) -> None:
        if identity.scope == "read":
            raise CallError(403, "a token of scope read may not call models", "forbidden")
        if identity.scope == "attempt":
            if (route.rollout_id, route.attempt_id) == (identity.rollout_id, identity.attempt_id):
                return
            raise CallError(
                403, f"this token is bound to attempt {identity.attempt_id}", "forbidden"
            )

    # -- what calls use --------------------------------------------------------------------------

    async def open_ticket(self, rollout_id: str, attempt_id: str) -> Ticket:
        """Return the place of a call's span.

        Raises:
            CallError: 503, the store does not take spans, so that the call could not be recorded.
        """
        spool = self.spool
        if spool.full():
            await spool.room(self.options.flush_timeout)
        if spool.full() or spool.troubled_for() > self.options.flush_timeout:
            raise CallError(
                503,
                f"the store does not take this proxy's spans ({spool.trouble or 'too slow'}); "
                "try again later",
                "store_unavailable",
                _RETRY_SOON,
            )
        return spool.open(rollout_id, attempt_id)

    async def _list_models(self, route: Route, send: Send, models: frozenset[str] | None) -> None:
        names = [name for name in self.balancer.models if models is None or name in models]
        data = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "agl",
                "type": "model",  # the last three are what Anthropic's clients read
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
            }
            for name in names
        ]
        wanted = route.endpoint.removeprefix("/models").strip("/")
        if not wanted:
            page = {"object": "list", "data": data, "has_more": False}
            await send_response(send, 200, dumps(page))
            return
        found = next((item for item in data if item["id"] == wanted), None)
        if found is None:
            raise CallError(404, f"no model {wanted!r} here", "model_not_found")
        await send_response(send, 200, dumps(found))

    # -- life ------------------------------------------------------------------------------------

    def set_store(self, store: LightningStore) -> None:
        """Send spans to another store from now on."""
        self._store = store
        if self.loop is not None:
            self.spool.store = store

    def update(self, backends: Iterable[Backend]) -> None:
        """Replace the backends at once."""
        backends = tuple(backends)
        self.balancer.update(backends)
        if self.loop is not None:
            self.upstream.update(backends)

    async def drain(self, deadline: float, *, abort: bool = False) -> int:
        """Pause, and wait until no call is in flight.

        Args:
            deadline: Longest wait, in seconds.
            abort: End the calls that are still in flight then; their spans say so.

        Returns:
            How many calls were still in flight at the deadline.
        """
        self.balancer.pause()
        try:
            async with asyncio.timeout(deadline):
                await self.balancer.idle()
        except TimeoutError:
            left = self.balancer.in_flight
            if abort:
                for exchange in self._exchanges:
                    exchange.abort("the proxy was drained")
            return left
        return 0

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.loop = asyncio.get_running_loop()
                self.upstream = self.provision.connect()
                self.upstream.update(member.backend for member in self.balancer.members())
                self.spool = Spool(
                    self._store,
                    max_spans=self.options.max_spooled_spans,
                    max_bytes=self.options.max_spooled_bytes,
                )
                self.started = time.time()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.spool.close(self.options.stop_timeout)
                await self.upstream.close()
                self.loop = None
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _tell(send: Send, route: Route, error: CallError) -> None:
    body = dumps(error_body(route.protocol, error.status, error.message, error.code))
    await send_response(send, error.status, body, (JSON, *error.headers))
