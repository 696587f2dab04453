"""Requests that are tried again: one connection pool per event loop, health probes, error types."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pydantic_core import from_json

from agl_core.errors import (
    AglError,
    InvalidArgumentError,
    PermissionDeniedError,
    StoreUnavailableError,
    error_class,
)
from agl_core.waits import REMIND_SECONDS, SILENT_SECONDS
from agl_store_http.client.config import API_PREFIX

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Reply", "RequestFailed", "StoreFailedError", "Transport", "refusal"]

_MOST_REQUESTS: Final = 32
"""Requests at a time in one event loop; opening a connection costs more than a request."""
_PROBE_SECONDS: Final = 1.0
"""Between two tries to reach a server that was reached before."""
_LARGE: Final = 2**20
"""Bytes above which a body is written in pieces; aiohttp warns that it would block the loop."""
_RENEWAL_PAUSE: Final = 60.0
"""Seconds between two requests for a new token, if the server fails."""
_RENEWED_AFTER: Final = 0.5
"""Part of a token's life after which it is replaced: a server may be away for the other half."""

_TRY_AGAIN: Final = frozenset({408, 429})
"""Statuses of 4xx that say when to ask and not what: 429 comes from gateways."""
_LONGEST_RETRY_AFTER: Final = 60.0
"""Seconds; gateways count requests per minute. Longer, and a stuck runner would look alive."""
_FAILED: Final = 500
"""The status of a failure in the server; 502 to 504 come from gateways that do not reach it."""
_MAX_KEY_LENGTH: Final = 200
"""Characters that a server takes; a longer key is replaced by its digest."""

logger = logging.getLogger(__name__)

# Sessions of a process that forked. Closing them here would take the parent's connections out of
# the event queue that both share, so they are kept, untouched, until this process ends.
_inherited: Final[list[Any]] = []


class Reply(NamedTuple):
    """A server's reply.

    Attributes:
        body: The body.
        tries: Requests that it took; after the first, an earlier one may have done the work.
    """

    body: bytes
    tries: int


class StoreFailedError(StoreUnavailableError):
    """The server can be reached and failed, maybe with this request only."""


class RequestFailed(Exception):
    """A server's refusal, before it is known what it means to the caller.

    Attributes:
        status: HTTP status.
        error_type: Class of the error that the store raised, if the server says so.
        detail: The reason.
        retry_after: Seconds that the server, or a gateway before it, wants to be left alone.
    """

    def __init__(
        self, status: int, error_type: str | None, detail: str, retry_after: float = 0.0
    ) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.status = status
        self.error_type = error_type
        self.detail = detail

    @property
    def is_final(self) -> bool:
        """Whether trying again cannot help."""
        return 400 <= self.status < 500 and self.status not in _TRY_AGAIN

    @property
    def is_missing_route(self) -> bool:
        """Whether the server does not know the route, rather than what was asked for."""
        return self.status in (404, 405) and self.error_type is None

    def as_store_error(self) -> AglError:
        """Return what a local store would raise."""
        message = self.detail or f"the store server answered with status {self.status}"
        if self.error_type in ("ValueError", "TypeError"):  # the reference's servers say no more
            return InvalidArgumentError(message)
        if self.error_type is not None and error_class(self.error_type) is not AglError:
            return error_class(self.error_type)(message)
        if self.status in (401, 403):
            return PermissionDeniedError(message)
        if self.is_final:
            return InvalidArgumentError(message)
        kind = StoreFailedError if self.status == _FAILED else StoreUnavailableError
        return kind(f"the store server failed with status {self.status}: {message}")


class Transport:
    """Sends requests to one server, again where that may help.

    A failed connection, a timeout, 408, 429 and 5xx are tried again: the server's health is probed
    with ``health_retry_delays`` between the probes, and only a healthy server gets the request
    again, after the next of ``retry_delays``, or later if it says so. A server that has answered
    before is probed for ``reconnect_timeout`` seconds from the call's first failure. Usable from
    any number of loops, threads and processes; picklable, without its connections.
    """

    def __init__(
        self,
        address: str,
        *,
        retry_delays: Sequence[float],
        health_retry_delays: Sequence[float],
        reconnect_timeout: float = 0.0,
        request_timeout: float,
        connection_timeout: float,
        auth_token: str | None,
    ) -> None:
        self.address = address.rstrip("/")
        self.retry_delays = tuple(retry_delays)
        self.health_retry_delays = tuple(health_retry_delays)
        self.reconnect_timeout = reconnect_timeout
        self.request_timeout = request_timeout
        self.connection_timeout = connection_timeout
        self.auth_token = auth_token
        # Only tokens that a server has signed end. When it ends is known with the first renewal.
        self._renew_at = -math.inf if (auth_token or "").startswith("eyJ") else math.inf
        self._was_reached = False
        self._tell_at = -math.inf
        """When the log may name the server again that calls wait for, in monotonic seconds."""
        self._lost_at: float | None = None
        """When a call failed after which none has succeeded, in monotonic seconds."""
        self.has_events = True
        """False once the server has refused the event stream: an older one lacks the route."""
        self._start_empty()

    def _start_empty(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sessions: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._urls: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_pid", "_lock", "_sessions", "_urls"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._renew_at < math.inf:
            self._renew_at = -math.inf  # another machine's monotonic clock began at another time
        self._lost_at = None
        self._tell_at = -math.inf
        self._start_empty()

    # -- requests --------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        key: str | None = None,
        extra_seconds: float = 0.0,
        seconds: float | None = None,
    ) -> Reply:
        """Send a request to the API until there is an answer.

        Args:
            method: HTTP method.
            path: Path below ``/v1/agl``, percent-encoded.
            body: JSON.
            params: Query string.
            key: Idempotency key, with which several tries do the work once; see :meth:`new_key`.
            extra_seconds: How much longer than ``request_timeout`` the server may take.
            seconds: Longest time for all tries together; None is no limit.

        Raises:
            RequestFailed: The server refused, or failed each time.
            StoreUnavailableError: The server could not be reached.
            TimeoutError: The first try had no answer within ``seconds``, or the server was lost
                during them and may still come back.
        """
        failures: list[Exception] = []
        try:
            async with asyncio.timeout(seconds):
                return await self._call(method, path, body, params, key, extra_seconds, failures)
        except TimeoutError:
            if not failures or self._may_come_back():
                raise
            raise self._unavailable(failures) from failures[-1]

    def _may_come_back(self) -> bool:
        """Whether a server that has answered was lost so lately that a supervisor may start it."""
        lost = self._lost_at
        since = 0.0 if lost is None else time.monotonic() - lost
        return self._was_reached and since < self.reconnect_timeout

    def _unavailable(self, failures: Sequence[Exception]) -> Exception:
        if isinstance(failures[-1], RequestFailed):
            return failures[-1]
        reason = str(failures[-1]) or type(failures[-1]).__name__
        return StoreUnavailableError(
            f"the store server at {self.address} does not answer ({reason}); tried {len(failures)}x"
        )

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        params: Mapping[str, str] | None,
        key: str | None,
        extra_seconds: float,
        failures: list[Exception],
    ) -> Reply:
        import aiohttp

        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        delays = iter(self.retry_delays)
        lost_at: float | None = None
        while True:
            try:
                content = await self._once(method, path, body, headers, params, extra_seconds)
                self._was_reached, self._lost_at = True, None
                self._tell_at = -math.inf
                return Reply(content, len(failures) + 1)
            except RequestFailed as error:
                if error.is_final:
                    raise
                failures.append(error)
                asked_for = error.retry_after
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                failures.append(error)
                asked_for = 0.0
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            if self._lost_at is None:
                self._lost_at = now
            delay = next(delays, None) if await self._is_healthy(lost_at) else None
            if delay is None:
                raise self._unavailable(failures) from failures[-1]
            await asyncio.sleep(max(delay, asked_for))

    def new_key(self, path: str, place: int | bytes = 0) -> str:
        """Return a key for one creating call.

        Args:
            path: Path of the request.
            place: Tells apart the requests of one call to a server whose store is this client: a
                number, or the body.
        """
        from agl_core.store import current_request_key

        # A server whose store is another server hands on the key it was given, so that a retry is
        # recognised by the last of them even when those in between were restarted.
        outer = current_request_key.get()
        if outer is None:
            return uuid.uuid4().hex
        name = hashlib.sha256(place).hexdigest()[:16] if isinstance(place, bytes) else place
        key = f"{outer}/{name}>{path}" if name else f"{outer}>{path}"
        if len(key) <= _MAX_KEY_LENGTH:
            return key
        return hashlib.sha256(key.encode()).hexdigest()

    async def try_once(
        self, method: str, path: str, body: bytes | None, *, key: str, seconds: float
    ) -> bytes | None:
        """Send a request that nothing depends on; None if it failed or took too long."""
        import aiohttp

        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        try:
            async with asyncio.timeout(seconds):
                return await self._once(method, path, body, headers, None, 0.0)
        except (RequestFailed, aiohttp.ClientError, OSError, TimeoutError) as error:
            logger.debug("%s %s was in vain: %s", method, path, error)
            return None

    async def _once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        params: Mapping[str, str] | None,
        extra_seconds: float,
    ) -> bytes:
        if time.monotonic() >= self._renew_at:
            await self._renew_token()
        connections = self._connections()
        data = io.BytesIO(body) if body is not None and len(body) > _LARGE else body
        options: dict[str, Any] = {"headers": headers, "data": data}
        if params:
            options["params"] = params
        if extra_seconds > 0:
            options["timeout"] = self._timeout(extra_seconds)
        # A waiting call holds a connection for long: counted, it would block the others.
        async with (
            connections.limit if extra_seconds <= 0 else contextlib.nullcontext(),
            connections.session.request(method, self.url(path), **options) as response,
        ):
            content = await response.read()
            if response.status < 300:
                return content
            failed = refusal(response.status, content)
            failed.retry_after = _seconds_of(response.headers.get("Retry-After"))
            raise failed

    def renewal_due_in(self) -> float | None:
        """Return the seconds until a request replaces the token; None if none will."""
        return None if self._renew_at == math.inf else max(0.0, self._renew_at - time.monotonic())

    async def _renew_token(self) -> None:
        """Replace a token long before it ends, so that a runner may run for weeks."""
        self._renew_at = time.monotonic() + _RENEWAL_PAUSE  # one call asks, and others go on
        async with self.session().post(self.url("/token")) as response:
            content = await response.read()
            if response.status != 200:
                # Another scope, or an older server: the token holds until it ends.
                self._renew_at = math.inf if response.status < 500 else self._renew_at
                return
        renewed: Any = from_json(content)
        if renewed["token"] is None:
            self._renew_at = math.inf
            return
        self.auth_token = str(renewed["token"])
        self._renew_at = time.monotonic() + float(renewed["seconds"]) * _RENEWED_AFTER
        with self._lock:
            known = list(self._sessions.values())
        for connections in known:
            connections.session.headers["Authorization"] = f"Bearer {self.auth_token}"

    async def _is_healthy(self, lost_at: float) -> bool:
        """Probe a server until it answers, or was lost for too long."""
        import aiohttp

        if not self.health_retry_delays:
            return True
        began = time.monotonic()
        longest = max(
            sum(self.health_retry_delays), self.reconnect_timeout if self._was_reached else 0.0
        )
        for delay in self._probe_delays(lost_at):
            try:
                async with self.session().get(self.url("/health")) as response:
                    if response.status == 200:
                        return True
            except (aiohttp.ClientError, OSError, TimeoutError):
                # No answer is the answer: not healthy yet.
                await asyncio.sleep(0)
            if delay is not None:
                await asyncio.sleep(delay)
            now = time.monotonic()
            if now - began > SILENT_SECONDS < longest and now > self._tell_at:
                self._tell_at = now + REMIND_SECONDS  # once for all calls that wait
                logger.warning(
                    "Waiting for the store server at %s, for at most %d s", self.address, longest
                )
        return False

    def _probe_delays(self, lost_at: float) -> Iterator[float | None]:
        """Yield the pauses after the probes of a lost server; None after the last one."""
        yield from self.health_retry_delays
        while self._was_reached and time.monotonic() - lost_at < self.reconnect_timeout:
            yield _PROBE_SECONDS
        yield None

    # -- connections -----------------------------------------------------------------------------

    def url(self, path: str) -> Any:
        """Return the URL of a path of the API, parsed once for the paths that recur."""
        from yarl import URL

        known = self._urls.get(path)
        if known is None:
            known = URL(self.address + API_PREFIX + path, encoded=True)
            if len(self._urls) < 64:
                self._urls[path] = known
        return known

    def session(self) -> aiohttp.ClientSession:
        """Return the running loop's session, making it at its first use."""
        return self._connections().session

    def _connections(self) -> _Connections:
        if self._pid != os.getpid():
            _inherited.append(self._sessions)
            self._start_empty()
        loop = asyncio.get_running_loop()
        connections = self._sessions.get(loop)
        if connections is None or connections.session.closed:
            connections = _Connections(self._new_session())
            with self._lock:  # other threads have loops of their own
                self._sessions[loop] = connections
                for dead in [known for known in self._sessions if known.is_closed()]:
                    del self._sessions[dead]
        return connections

    def _new_session(self) -> aiohttp.ClientSession:
        import aiohttp

        headers = {"Accept": "application/json"}
        if self.auth_token:
            headers["Authorization"] = f"Bearer {self.auth_token}"
        return aiohttp.ClientSession(
            # Every waiting dequeue holds a connection: a limit would let them block the others.
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            timeout=self._timeout(0.0),
        )

    def _timeout(self, extra_seconds: float) -> aiohttp.ClientTimeout:
        import aiohttp

        total = self.request_timeout + extra_seconds
        return aiohttp.ClientTimeout(
            total=total,
            sock_read=total,
            connect=self.connection_timeout,
            sock_connect=self.connection_timeout,
        )

    async def close(self) -> None:
        """Close the connections of every loop of this process; the transport stays usable."""
        if self._pid != os.getpid():
            return
        here = asyncio.get_running_loop()
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        for loop, connections in sessions.items():
            if loop is here:
                await connections.close()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(connections.close(), loop)


class _Connections:
    """A session that is closed with its event loop, unless :meth:`close` came first.

    A loop has no hook for its end, but it does close the asynchronous generators that were begun
    in it, and what they have in a ``finally`` still runs in it.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.limit = asyncio.Semaphore(_MOST_REQUESTS)
        self._life = self._live()
        with contextlib.suppress(StopIteration):
            self._life.__anext__().send(None)

    async def _live(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.session.close()

    async def close(self) -> None:
        await self._life.aclose()


def _seconds_of(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 if it has none, or names a date."""
    digits = (retry_after or "").strip()
    return min(float(digits), _LONGEST_RETRY_AFTER) if digits.isdecimal() else 0.0


def refusal(status: int, content: bytes) -> RequestFailed:
    """Read an error answer, whoever wrote it."""
    try:
        document: Any = from_json(content)
        detail: Any = document["detail"]
        error_type: Any = document.get("error_type")
        error_id: Any = document.get("error_id")
        if isinstance(detail, list):
            problems = cast("list[dict[str, Any]]", detail)
            detail = "; ".join(
                f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in problems
            )
    except (ValueError, TypeError, KeyError, AttributeError):
        return RequestFailed(status, None, content[:500].decode(errors="replace"))
    text = f"{detail} (error_id {error_id})" if error_id else str(detail)
    return RequestFailed(status, error_type if isinstance(error_type, str) else None, text)
