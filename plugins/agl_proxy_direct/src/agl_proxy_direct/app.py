"""The proxy's ASGI application: routes each request to the code that answers it.

A path says which attempt a call belongs to and which protocol it speaks
(:func:`~agl_core.genai.parse_path`):

* calls of a known protocol: :class:`~agl_proxy_direct.model_call.ModelCallExchange`;
* other calls below ``/v1``: :class:`~agl_proxy_direct.passthrough.PassthroughExchange`;
* ``/control/...``: :mod:`agl_proxy_direct.control`;
* the list of models: :mod:`agl_proxy_direct.models_endpoint`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Final

from agl_core.genai import Route, dumps, parse_path
from agl_core.ids import generate_id
from agl_core.store import LightningStore
from agl_proxy_direct.access import AccessControl
from agl_proxy_direct.backends import Backend
from agl_proxy_direct.balancer import Balancer
from agl_proxy_direct.config import DirectProxyConfig
from agl_proxy_direct.continuation import Continuation
from agl_proxy_direct.control import CONTROL_PREFIX, control
from agl_proxy_direct.demands import Demands
from agl_proxy_direct.errors import CallError, error_body
from agl_proxy_direct.exchange import Exchange
from agl_proxy_direct.limits import Limits, RolloutLimits
from agl_proxy_direct.model_call import ModelCallExchange
from agl_proxy_direct.models_endpoint import describe_models
from agl_proxy_direct.passthrough import PassthroughExchange
from agl_proxy_direct.paths import normal_path
from agl_proxy_direct.pending_span import PendingSpan
from agl_proxy_direct.spool import Spool
from agl_proxy_direct.upstream import Upstream
from agl_proxy_direct.upstream_spec import UpstreamSpec
from agl_serving import (
    JSON,
    LOOPBACK,
    ClientGone,
    Headers,
    HTTPError,
    Message,
    Receive,
    Send,
    accepted_hosts,
    read_body,
    send_response,
)

__all__ = ["HEALTH_PATH", "ProxyApp"]

logger = logging.getLogger(__name__)

HEALTH_PATH: Final = "/health"
_MAX_BODY_BYTES: Final = 64 * 2**20
"""Larger than what providers accept; images of a conversation are in it."""
_MAX_CONTAINERS: Final = 1_000_000
"""Lists and objects of a body: each is a Python object of 56 bytes or more."""
_MAX_VALUES: Final = 4_000_000
"""Four million numbers are the ids of four million tokens, more than any context holds."""
_MAX_SPOOLED_BYTES: Final = 512 * 2**20
"""Memory for spans that wait while the store is away."""
_ABORT_SECONDS: Final = 1.0
"""Calls that are aborted end in milliseconds, unless an agent does not read its answer."""
_RETRY_SOON: Final = ((b"retry-after", b"1"),)


class ProxyApp:
    """ASGI application between agents and backends. For one event loop.

    Args:
        store: Store of the spans.
        backends: The backends to start with.
        config: Options of the proxy; those of its server are not used here.
        upstream_spec: The upstream that sends requests; HTTP by default.

    Attributes:
        upstream: Sends requests to backends; made when the server starts.
        spool: Spans on their way to the store; made when the server starts.
        continuation: Plans prompts, if calls continue their history; made when the server starts.
        loop: The event loop that serves, while it serves.
    """

    upstream: Upstream
    spool: Spool
    continuation: Continuation | None = None

    def __init__(
        self,
        store: LightningStore,
        backends: Sequence[Backend],
        config: DirectProxyConfig | None = None,
        upstream_spec: UpstreamSpec | None = None,
    ) -> None:
        self.config = config = config or DirectProxyConfig()
        self.upstream_spec = upstream_spec or UpstreamSpec()
        self.balancer = Balancer(backends, queue_timeout=config.queue_timeout)
        self.limits = Limits(
            RolloutLimits(
                config.max_calls_per_rollout,
                config.max_tokens_per_rollout,
                config.max_calls_per_minute,
            )
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        self._store = store
        self._access = AccessControl(
            config.auth_token,
            accepted_hosts(config.host or LOOPBACK, config.allowed_hosts),
            config.attempt_routes,
        )
        self.demands = Demands()
        self._exchanges: set[Exchange] = set()
        self._warned = False
        self._started_at = time.monotonic()

    @property
    def forwards_keys(self) -> bool:
        """Whether a backend without a key gets the caller's key; false if that is a proxy token."""
        return not self._access.uses_tokens

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
            path = normal_path(scope["path"])
            route = parse_path(path)
            if path == HEALTH_PATH:
                # Runners compare it with the age of an attempt: was the proxy away meanwhile?
                uptime = time.monotonic() - self._started_at
                await send_response(send, 200, dumps({"status": "ok", "uptime": round(uptime, 3)}))
                return
            identity = self._access.identify(headers)
            if path.startswith(CONTROL_PREFIX):
                name = path.removeprefix(CONTROL_PREFIX)
                await control(self, identity, scope["method"], name, headers, receive, send)
                return
            if scope["method"] == "HEAD" and (route.protocol or route.endpoint == "/"):
                # Claude Code asks so whether a server is there. It is not a call of a model.
                await send_response(send, 200, b"")
                return
            self._access.check_call(identity, scope["method"], route)
            if scope["method"] == "GET" and f"{route.endpoint}/".startswith("/models/"):
                page = describe_models(route.endpoint, self.balancer.models, identity.models)
                await send_response(send, 200, page)
                return
            body = await read_body(receive, headers, _MAX_BODY_BYTES)
            _check_values(body)
            await self._serve(route, scope, body, receive, send, identity.models)
        except ClientGone:
            return
        except CallError as error:
            await _send_error(send, route, error)
        except HTTPError as error:
            refused = CallError(error.status, str(error.detail), "refused", error.headers)
            await _send_error(send, route, refused)
        except Exception:
            error_id = generate_id(12)
            logger.exception("a call of %s failed (error_id %s)", scope["path"], error_id)
            message = f"the proxy failed; see error_id {error_id} in its log"
            await _send_error(send, route, CallError(500, message, "proxy_error"))

    async def _serve(
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
        is_model_call = route.protocol is not None and scope["method"] == "POST"
        kind = ModelCallExchange if is_model_call else PassthroughExchange
        exchange = kind(self, route, scope, body, receive, send, models)
        self._exchanges.add(exchange)
        try:
            await exchange.serve()
        finally:
            self._exchanges.discard(exchange)

    # -- used by exchanges and control calls -----------------------------------------------------

    async def reserve_span(self, rollout_id: str, attempt_id: str) -> PendingSpan:
        """Reserve the place of a call's span in the order of its attempt.

        Raises:
            CallError: 503, the store does not accept spans, so the call could not be recorded.
        """
        spool = self.spool
        if spool.full():
            await spool.wait_for_room(self.config.flush_timeout)
        if spool.full() or spool.failing_for(rollout_id) > self.config.flush_timeout:
            raise CallError(
                503,
                f"the store does not accept this proxy's spans "
                f"({spool.store_error or 'too slow'}); try again later",
                "store_unavailable",
                _RETRY_SOON,
            )
        return spool.reserve(rollout_id, attempt_id)

    def set_store(self, store: LightningStore) -> None:
        """Send spans to another store from now on."""
        self._store = store
        if self.loop is not None:
            self.spool.store = store
        if self.continuation is not None:
            self.continuation.store = store

    def update(self, backends: Iterable[Backend]) -> None:
        """Replace the backends at once."""
        backends = tuple(backends)
        self.balancer.update(backends)
        if self.loop is not None:
            self.upstream.update(backends)
        if self.continuation is not None:
            self.continuation.update()

    async def drain(self, deadline: float, *, abort: bool = False) -> int:
        """Pause, and wait until no call is in flight.

        Args:
            deadline: Longest wait, in seconds.
            abort: End the calls that are still in flight then, and return when they have ended.
                Their spans record it as an error. Calls that wait for a backend go on waiting, and
                so does one whose answer is whole and whose span is about to be stored.

        Returns:
            How many calls were still in flight at the deadline.
        """
        self.balancer.pause()
        try:
            async with asyncio.timeout(deadline):
                await self.balancer.wait_idle()
        except TimeoutError:
            left = self.balancer.in_flight
            if abort:
                for exchange in self._exchanges:
                    exchange.abort("the proxy was drained")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ABORT_SECONDS):
                        await self.balancer.wait_idle()
            return left
        return 0

    # -- lifespan --------------------------------------------------------------------------------

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                # The upstream's client session and the spool's tasks belong to this loop.
                self.loop = asyncio.get_running_loop()
                self.upstream = self.upstream_spec.connect()
                self.upstream.update(member.backend for member in self.balancer.members())
                self.spool = Spool(
                    self._store,
                    max_spans=self.config.max_spooled_spans,
                    max_bytes=_MAX_SPOOLED_BYTES,
                )
                if self.config.history == "continue":
                    self.continuation = Continuation(self.upstream, self._store)
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.spool.close(self.config.stop_timeout)
                await self.upstream.close()
                self.loop = None
                await send({"type": "lifespan.shutdown.complete"})
                return


def _check_values(body: bytes) -> None:
    """Refuse JSON of so many values that they take many times the memory of their bytes.

    An empty list takes 3 bytes of JSON and 64 of memory. Brackets inside text are counted as well:
    a prompt of a million tokens has fewer.

    Raises:
        CallError: 413.
    """
    if len(body) < _MAX_CONTAINERS:
        return
    if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS or body.count(b",") > _MAX_VALUES:
        raise CallError(413, "the body has too many values", "too_many_values")


async def _send_error(send: Send, route: Route, error: CallError) -> None:
    body = dumps(error_body(route.protocol, error.status, error.message, error.code))
    await send_response(send, error.status, body, (JSON, *error.headers))
