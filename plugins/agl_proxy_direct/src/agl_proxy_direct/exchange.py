"""What every call has, whatever it asks for: an agent that may leave, a span, and one ending."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

from agl_core.genai import Route, dumps
from agl_proxy_direct.capture import CallRecord, parse_traceparent, span_fields
from agl_proxy_direct.failures import CallError, error_body, error_event
from agl_proxy_direct.upstream import UpstreamError
from agl_serving.messages import JSON, Message, Receive, Send

if TYPE_CHECKING:
    from agl_proxy_direct.app import ProxyApp
    from agl_proxy_direct.spool import Ticket

__all__ = ["Exchange"]


class Exchange(ABC):
    """A request and its answer; served once.

    Args:
        app: Whose backends, spool and limits it uses.
        route: What its path says.
        scope: ASGI scope of the request.
        body: Its body.
        receive: ASGI receive; tells when the agent goes away.
        send: ASGI send.
        models: The models its caller may use; None for all.
    """

    def __init__(
        self,
        app: ProxyApp,
        route: Route,
        scope: Message,
        body: bytes,
        receive: Receive,
        send: Send,
        models: frozenset[str] | None,
    ) -> None:
        self._app = app
        self._route = route
        self._method: str = scope["method"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._query: str = scope["query_string"].decode("latin-1")
        self._body = body
        self._receive = receive
        self._send = send
        self._models = models
        self._clock = time.monotonic()
        self._begun = False
        self._ended: CallError | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ticket: Ticket | None = None
        self._record = CallRecord(route.protocol, self._method, route.endpoint, time.time())

    @abstractmethod
    async def _exchange(self) -> None:
        """Do it; raise CallError or UpstreamError if that fails."""

    async def serve(self) -> None:
        """Answer; every way that a call can end ends here, and leaves a span."""
        self._task = task = cast("asyncio.Task[Any]", asyncio.current_task())
        watch = asyncio.create_task(self._watch())
        try:
            try:
                await self._open()
                await self._exchange()
            except UpstreamError as error:
                await self._tell(error)
            except CallError as error:
                await self._fail(error)
        except asyncio.CancelledError:
            ended = self._ended or CallError(503, "the proxy was stopped", "proxy_stopped")
            self._record.error, self._record.error_type = ended.message, ended.code
            self._file()
            if self._ended is None:
                raise
            task.uncancel()
            if ended.status != _GONE:
                await self._fail(ended)
        except Exception as error:
            self._record.error, self._record.error_type = repr(error), type(error).__name__
            raise
        finally:
            watch.cancel()
            self._file()

    def abort(self, why: str) -> None:
        """End the call with an error."""
        self._end(CallError(503, why, "aborted", ((b"retry-after", b"1"),)))

    def _end(self, why: CallError) -> None:
        if self._ended is None and self._task is not None:
            self._ended = why
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._end(CallError(_GONE, "the agent closed the connection", "client_disconnected"))

    async def _open(self) -> None:
        rollout_id, attempt_id = self._route.rollout_id, self._route.attempt_id
        if rollout_id is None or attempt_id is None:
            return
        for name, value in self._headers:
            if name == b"traceparent" and (parent := parse_traceparent(value)) is not None:
                self._record.trace_id, self._record.parent_id = parent
        self._ticket = await self._app.open_ticket(rollout_id, attempt_id)

    def _check_model(self, model: str) -> None:
        if self._models is not None and model not in self._models:
            raise CallError(403, f"this token may not use the model {model!r}", "model_forbidden")

    # -- the span --------------------------------------------------------------------------------

    def _file(self) -> None:
        """Hand the span to the spool, once."""
        ticket, record = self._ticket, self._record
        if ticket is None or ticket.filed:
            return
        record.end_time = record.start_time + time.monotonic() - self._clock
        ticket.file(span_fields(record))
        if record.response is not None:
            usage: dict[str, Any] = record.response.get("usage") or {}
            self._app.limits.spend(ticket.rollout_id, usage.get("total_tokens") or 0)

    async def _commit(self, status: int) -> None:
        """See the span into the store, or at least into the spool."""
        self._record.status = status
        self._file()
        if self._ticket is not None:
            await self._app.spool.stored(self._ticket, self._app.options.flush_timeout)

    # -- to the agent ----------------------------------------------------------------------------

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _answer(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        await self._begin(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})

    async def _fail(self, error: CallError) -> None:
        self._record.error, self._record.error_type = error.message, error.code
        await self._commit(error.status)
        if self._begun:
            told = error_event(self._route.protocol, error)
            await self._send({"type": "http.response.body", "body": told})
            return
        body = error_body(self._route.protocol, error.status, error.message, error.code)
        await self._answer(error.status, dumps(body), [JSON, *error.headers])

    async def _tell(self, error: UpstreamError) -> None:
        """Say that the backend failed."""
        await self._fail(CallError(error.status, error.message, error.code))


_GONE = 499
"""The status that logs show for a client that closed its connection; nobody is answered with it."""
