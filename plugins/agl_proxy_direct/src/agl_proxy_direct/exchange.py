"""Base of one proxied request: the span, cancellation when the agent leaves, and error replies."""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

from agl_core.genai import Json, Route, dumps
from agl_core.metrics import Metric, is_recording, record
from agl_core.semconv import INFRASTRUCTURE_CODES, INFRASTRUCTURE_HEADER
from agl_proxy_direct.call_span import CallRecord, parse_traceparent, span_fields
from agl_proxy_direct.errors import CallError, error_body, error_event
from agl_proxy_direct.upstream import UpstreamError, UpstreamResponse
from agl_serving import JSON, Message, Receive, Send

if TYPE_CHECKING:
    from agl_proxy_direct.app import ProxyApp
    from agl_proxy_direct.limits import Reservation
    from agl_proxy_direct.pending_span import PendingSpan

__all__ = ["Exchange"]

_CALL: Final = ("model", "status")
CALL_SECONDS: Final = Metric(
    "histogram", "agl.proxy.latency", "Time of calls.", _CALL, "s", count="agl.proxy.total"
)
TOKENS: Final = Metric(
    "counter", "agl.proxy.tokens", "Tokens of calls.", ("model", "type"), "tokens"
)

_TRIES_BEFORE: Final = b"x-stainless-retry-count"
"""Header of OpenAI's and Anthropic's SDKs: how often the client has sent this call before."""
_BYTES_PER_TOKEN: Final = 4
"""Usual for English text, where a backend reports no usage."""
_REFUSED: Final = re.compile(r"backend_\d+")
"""Error type of a call that a backend answered with an HTTP status: no token was generated."""
_CLIENT_CLOSED: Final = 499
"""nginx's status for a client that closed its connection; recorded in the span and never sent."""


class Exchange(ABC):
    """One request and its response; an instance serves once.

    Args:
        app: The application whose backends, spool and limits are used.
        route: The parsed path.
        scope: ASGI scope of the request.
        body: Body of the request.
        receive: ASGI receive; reports when the agent disconnects.
        send: ASGI send.
        models: Names of the models that the caller may use; None for all.
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
        self._started_at = time.monotonic()
        self._headers_sent = False
        self._next_event = 0
        """Number of the next event of a stream, in a protocol that numbers them."""
        self._sends_events = False
        self._in_flight = False
        """Whether it holds a backend."""
        self._ended_by: CallError | None = None
        self._task: asyncio.Task[Any] | None = None
        self._span: PendingSpan | None = None
        self._reservation: Reservation | None = None
        self._record = CallRecord(route.protocol, self._method, route.endpoint, time.time())

    @abstractmethod
    async def _proxy(self) -> None:
        """Send the request to a backend and its response to the agent.

        Raises:
            CallError: The proxy refuses the call.
            UpstreamError: No backend gave a response.
        """

    async def serve(self) -> None:
        """Answer the request, and submit its span on every outcome."""
        self._task = task = cast("asyncio.Task[Any]", asyncio.current_task())
        watch = asyncio.create_task(self._watch_disconnect())
        try:
            try:
                await self._reserve_span()
                await self._proxy()
            except UpstreamError as error:
                await self._send_upstream_error(error)
            except CallError as error:
                await self._send_error(error)
        except asyncio.CancelledError:
            ended_by = self._ended_by or CallError(503, "the proxy was stopped", "proxy_stopped")
            self._record.error, self._record.error_type = ended_by.message, ended_by.code
            self._record.status = ended_by.status
            self._submit_span()
            if self._ended_by is None:
                raise
            task.uncancel()
            if ended_by.status != _CLIENT_CLOSED:
                await self._send_error(ended_by)
        except Exception as error:
            self._record.error, self._record.error_type = repr(error), type(error).__name__
            raise
        finally:
            watch.cancel()
            try:
                self._submit_span()
            finally:
                self._settle()
            if is_recording():
                self._record_metrics()

    def abort(self, why: str) -> None:
        """End the call with status 503, if it is in flight and its answer is not whole yet."""
        if not self._in_flight or (self._span is not None and self._span.submitted):
            return
        self._end(CallError(503, why, "aborted", ((b"retry-after", b"1"),)))

    def _end(self, why: CallError) -> None:
        if self._ended_by is None and self._task is not None:
            self._ended_by = why
            self._task.cancel()

    async def _watch_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._end(
            CallError(_CLIENT_CLOSED, "the agent closed the connection", "client_disconnected")
        )

    def _check_model(self, model: str) -> None:
        if self._models is not None and model not in self._models:
            raise CallError(403, f"this token may not use the model {model!r}", "model_forbidden")

    # -- the span --------------------------------------------------------------------------------

    async def _reserve_span(self) -> None:
        rollout_id, attempt_id = self._route.rollout_id, self._route.attempt_id
        if rollout_id is None or attempt_id is None:
            return
        for name, value in self._headers:
            if name == b"traceparent" and (parent := parse_traceparent(value)) is not None:
                self._record.trace_id, self._record.parent_id = parent
            elif name == _TRIES_BEFORE and value.isdigit() and len(value) < 4 and int(value):
                self._record.extra["http.request.resend_count"] = int(value)
        self._span = await self._app.reserve_span(rollout_id, attempt_id)

    def _submit_span(self) -> None:
        """Hand the span to the spool, once."""
        span, record = self._span, self._record
        if span is None or span.submitted:
            return
        record.end_time = record.start_time + time.monotonic() - self._started_at
        span.submit(span_fields(record))
        self._settle()

    def _settle(self) -> None:
        """Count the call's tokens against the budget of its rollout, once."""
        if self._reservation is not None:
            self._reservation.settle(_tokens_taken(self._record, len(self._body)))

    def _record_metrics(self) -> None:
        call = self._record
        # An agent may ask for any name; only those of backends become labels.
        model = call.model if call.backend else "unknown"
        status = str(call.status or call.error_type or _CLIENT_CLOSED)
        record(CALL_SECONDS, time.monotonic() - self._started_at, model, status)
        usage: Any = (call.response or {}).get("usage")
        if isinstance(usage, dict):
            for name, kind in (("prompt_tokens", "prompt"), ("completion_tokens", "completion")):
                tokens = cast("Json", usage).get(name)
                if isinstance(tokens, int) and tokens > 0:
                    record(TOKENS, tokens, model, kind)

    async def _store_span(self, status: int) -> None:
        """Wait until the span is in the store, for at most ``flush_timeout`` seconds.

        Called before the last bytes of a response: an agent that has its whole response may return
        and end its attempt, and the attempt must not end without this span.
        """
        self._record.status = status
        self._submit_span()
        if self._span is not None:
            await self._app.spool.wait_stored(self._span, self._app.config.flush_timeout)

    # -- to the agent ----------------------------------------------------------------------------

    async def _copy(self, response: UpstreamResponse) -> None:
        """Relay a response unchanged."""
        if response.status >= 400:
            self._record.error = f"the backend answered {response.status}"
            self._record.error_type = f"backend_{response.status}"
        await self._send_headers(response.status, response.headers)
        async with aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._store_span(response.status)
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_headers(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._headers_sent:
            self._headers_sent = True
            self._sends_events = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in headers
            )
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_response(
        self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        await self._send_headers(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})

    async def _send_error(self, error: CallError) -> None:
        self._record.error, self._record.error_type = error.message, error.code
        await self._store_span(error.status)
        if self._headers_sent and not self._sends_events:
            return  # without an end of the body the server closes the connection: it is cut off
        if self._headers_sent:
            event = error_event(self._route.protocol, error, self._next_event)
            await self._send({"type": "http.response.body", "body": event})
            return
        body = error_body(self._route.protocol, error.status, error.message, error.code)
        headers = [JSON, *error.headers]
        if error.code in INFRASTRUCTURE_CODES:
            # Runners read it: the attempt did not fail by its agent.
            headers.append((INFRASTRUCTURE_HEADER.encode(), error.code.encode()))
        await self._send_response(error.status, dumps(body), headers)

    async def _send_upstream_error(self, error: UpstreamError) -> None:
        """Report that no backend gave a response."""
        await self._send_error(CallError(error.status, error.message, error.code))


def _tokens_taken(call: CallRecord, body_bytes: int) -> int:
    """Return the tokens of prompt and response.

    If the backend did not say, since it does not or the agent left before, they are counted by
    their ids, or estimated by the size of the texts.
    """
    response = call.response or {}
    usage: Any = response.get("usage")
    tokens: Any = cast("Json", usage).get("total_tokens") if isinstance(usage, dict) else None
    said = max(0, tokens) if isinstance(tokens, int) else None
    if said is not None and call.error is None:
        return said
    if not call.tries or _REFUSED.fullmatch(call.error_type or ""):
        return 0
    # Anthropic's first event says what the prompt took, and one token of the answer.
    return max(said or 0, _prompt_tokens(response, body_bytes) + _generated_tokens(response))


def _prompt_tokens(response: Json, body_bytes: int) -> int:
    ids = response.get("prompt_token_ids")
    return (
        len(cast("list[Any]", ids)) if isinstance(ids, list) else 1 + body_bytes // _BYTES_PER_TOKEN
    )


def _generated_tokens(response: Json) -> int:
    tokens = 0
    choices: Any = response.get("choices")
    for choice in cast("list[Json]", choices) if isinstance(choices, list) else ():
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            tokens += len(cast("list[Any]", ids))
        else:
            text = choice.get("message") or choice.get("text") or ""
            tokens += len(dumps(text)) // _BYTES_PER_TOKEN
    return tokens
