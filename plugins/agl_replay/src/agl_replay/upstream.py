"""The upstream of a replaying proxy: answers from a recording instead of a model server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from agl_core import semconv
from agl_core.genai import CodecError, Json, dumps, get_protocol, loads
from agl_proxy_direct import (
    Backend,
    HttpUpstream,
    Upstream,
    UpstreamError,
    UpstreamRequest,
    UpstreamResponse,
    error_body,
)
from agl_replay.answers import answer_body, answer_chunks
from agl_replay.recording import RecordedCall
from agl_replay.session import ReplaySession

__all__ = ["ReplayUpstream", "Sessions"]

Sessions = Mapping[tuple[str, str], ReplaySession]
"""Sessions by rollout and attempt of the replay."""

_ERRORS: Final = {
    "AuthenticationError": 401,
    "BadRequestError": 400,
    "ConflictError": 409,
    "InternalServerError": 500,
    "NotFoundError": 404,
    "PermissionDeniedError": 403,
    "RateLimitError": 429,
    "UnprocessableEntityError": 422,
}
"""HTTP status by the exception of OpenAI's and Anthropic's clients."""
_RETRY: Final = (b"retry-after-ms", b"1")
_NO_RETRY: Final = (b"x-should-retry", b"false")
"""Headers that both clients obey. A replay does not wait between the tries that it repeats."""
_LEFT: Final = "client_disconnected"


class ReplayUpstream(Upstream):
    """Answers calls from the recordings of sessions, and sends others to the sessions' models.

    A live call is relayed as the agent made it. Whatever records the agent's calls without a replay
    records it: the run's proxy, or the tracer.

    Args:
        sessions: The sessions; entries may be added at any time.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._http = HttpUpstream()

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        route = request.route
        ids = (route.rollout_id or "", route.attempt_id or "") if route else ("", "")
        session = self._sessions.get(ids)
        if session is None:
            raise _refusal(403, "this attempt is not a replay", "not_a_replay")
        if route is None or route.protocol is None or request.call is None:
            raise _refusal(400, "this call is not recorded, so it is not replayed", "not_recorded")
        found = session.take(route.protocol, request.call)
        if isinstance(found, RecordedCall):
            return _replayed(found, request)
        if found == "live":
            assert session.models is not None
            model = str(request.call.get("model"))
            backend = session.models.backend(model, route.protocol)
            relayed = replace(
                request, backend=backend, endpoint=route.endpoint, body=dict(request.call)
            )
            response = await self._http.send(relayed)
            response.recorded = True
            return response
        if session.divergence is not None:
            raise _refusal(400, str(session.divergence), "replay_divergence")
        message = f"the replay stops here, after call {session.answered}"
        raise _refusal(400, message, "replay_end")

    def update(self, backends: Iterable[Backend]) -> None:
        """Ignore the backends: replies are recorded ones."""

    async def close(self) -> None:
        await self._http.close()


def _refusal(status: int, message: str, code: str) -> UpstreamError:
    return UpstreamError(status, message, code, backend_fault=False)


def _replayed(call: RecordedCall, request: UpstreamRequest) -> UpstreamResponse:
    """Return the recorded response of a call."""
    body, protocol = _as_asked(call, request), request.protocol
    assert protocol is not None
    attributes, number = call.span.attributes, call.number
    failure = _failure(call)
    streamed = bool(body.get("stream"))
    begun = "gen_ai.output.messages" in attributes
    if failure is not None and not (streamed and begun):
        if call.recorder == "tracer" or failure.code == f"backend_{failure.status}":
            error = _error_bytes(request, failure)
            # A client's own retries are calls of their own for a proxy, not for a tracer.
            return _Response(number, failure.status, [error], None, retry=call.recorder == "proxy")
        return _Response(number, failure.status, [], failure, wait=_waited(call, failure))
    if not begun or not get_protocol(protocol).has_messages:
        raise _refusal(400, f"the answer of call {call.number} is not recorded", "not_recorded")
    try:
        if streamed:
            chunks = answer_chunks(attributes, protocol, body, whole=failure is None)
        else:
            chunks = [answer_body(attributes, protocol, body)]
    except CodecError as error:
        message = f"the answer of call {call.number} cannot be replayed: {error}"
        raise _refusal(400, message, "not_replayable") from error
    wait = 0.0 if failure is None else _waited(call, failure)
    return _Response(number, 200, chunks, failure, streamed=streamed, wait=wait)


def _as_asked(call: RecordedCall, request: UpstreamRequest) -> Json:
    """Return the request, with the fields that the recorded answer has.

    A proxy asks for token ids itself and removes them from the answer. In the trace of an agent
    they are only if the agent's server sent them.
    """
    body: Any = request.body
    if call.recorder == "proxy":
        return dict(body)
    assert request.protocol is not None
    logprobs = get_protocol(request.protocol).sampled_logprobs
    return {**body, "return_token_ids": True, "logprobs": logprobs}


def _failure(call: RecordedCall) -> UpstreamError | None:
    """Return the recorded error of a call."""
    status = call.span.status
    if status.status_code != "ERROR":
        return None
    attributes = call.span.attributes
    kind = str(attributes.get("error.type") or "recorded_error")
    recorded: Any = attributes.get("http.response.status_code")
    number = int(recorded) if recorded is not None else _ERRORS.get(kind, 502)
    if number < 400:  # the error came within a stream
        number = 502
    return UpstreamError(number, status.description or kind, kind, backend_fault=False)


def _error_bytes(request: UpstreamRequest, failure: UpstreamError) -> bytes:
    text = failure.message.encode()
    try:
        if isinstance(loads(text), dict):
            return text
    except ValueError:
        pass
    return dumps(error_body(request.protocol, failure.status, failure.message, failure.code))


def _waited(call: RecordedCall, failure: UpstreamError) -> float:
    """Return for how many seconds an answer stays open for the agent to leave, as it once did."""
    start, end = call.span.start_time, call.span.end_time
    if failure.code != _LEFT or start is None or end is None:
        return 0.0
    return 2 * max(0.0, end - start)


class _Response(UpstreamResponse):
    """A response that is known from the beginning.

    Args:
        number: Number of the recorded call.
        status: HTTP status.
        pieces: The body.
        failure: Raised after the body.
        streamed: Whether the body is a stream of events.
        wait: Seconds before the failure.
        retry: Whether the client may try again after an error status.
    """

    def __init__(
        self,
        number: int,
        status: int,
        pieces: list[bytes],
        failure: UpstreamError | None,
        *,
        streamed: bool = False,
        wait: float = 0.0,
        retry: bool = False,
    ) -> None:
        kind = b"text/event-stream" if streamed else b"application/json"
        self.status = 200 if failure is not None else status
        self.headers = [(b"content-type", kind)]
        if status >= 400:
            self.headers.append(_RETRY if retry else _NO_RETRY)
        self.streamed = streamed
        self.attributes = {semconv.REPLAYED_CALL: number}
        self._pieces = pieces
        self._failure = failure
        self._wait = wait

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._failure is not None:
            if self._wait:
                await asyncio.sleep(self._wait)
            raise self._failure

    async def close(self) -> None:
        """Nothing to close."""
