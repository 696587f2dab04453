"""Bodies of answers whose form is not the one that was asked for.

Some servers send a stream of events under another content type, a whole answer to a call for a
stream, or a stream to a call for a whole answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, cast

from agl_core.genai import (
    NO_EXTRA_FIELDS,
    Json,
    Protocol,
    get_protocol,
    loads,
    response_events,
)
from agl_proxy_direct.errors import error_in
from agl_proxy_direct.relay import StreamRelay
from agl_proxy_direct.upstream import UpstreamResponse

__all__ = ["EVENTS", "as_stream", "begins_with_event", "parse_answer", "peek"]

EVENTS: Final = (b"content-type", b"text/event-stream")
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of the lines of events (WHATWG HTML, section 9.2.6)."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def begins_with_event(body: bytes) -> bool:
    """Return whether a body begins as a stream of events does."""
    if body[:1] == b"{":  # nearly all answers
        return False
    return body.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(_FIELDS)


async def peek(response: UpstreamResponse) -> UpstreamResponse:
    """Return a response that says whether its body, not its content type, is a stream of events."""
    rest = response.chunks()
    blank: list[bytes] = []
    async for chunk in rest:
        text = chunk if blank else chunk.removeprefix(_BYTE_ORDER_MARK)
        blank.append(chunk)
        if text.strip():  # each byte is looked at once: a server may send blanks without end
            break
    return _Peeked(response, b"".join(blank), rest)


class _Peeked(UpstreamResponse):
    def __init__(
        self, response: UpstreamResponse, first: bytes, rest: AsyncGenerator[bytes]
    ) -> None:
        self.status = response.status
        self.headers = response.headers
        self.attributes = response.attributes
        self.streamed = begins_with_event(first)
        self._response, self._first, self._rest = response, first, rest

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes]:
        yield self._first
        async for chunk in self._rest:
            yield chunk

    async def close(self) -> None:
        await self._rest.aclose()
        await self._response.close()


def parse_answer(body: bytes, protocol: Protocol) -> tuple[Json, tuple[str, int] | None]:
    """Return the answer in a body; and message and status of its error, if it is one.

    Raises:
        ValueError: The body has no JSON object. Other errors of ``MALFORMED``: an event of its
            stream has other types than the protocol has.
    """
    if not begins_with_event(body):
        answer = loads(body)
        if not isinstance(answer, dict):
            raise ValueError("not a JSON object")
        answer = cast("Json", answer)
        return answer, error_in(answer, protocol)
    relay = StreamRelay(protocol, protocol, NO_EXTRA_FIELDS, {})
    relay.feed(body)
    relay.end()
    if not relay.events:
        raise ValueError("no event of the stream is a JSON object")
    answer, error = relay.assembler.result(), relay.assembler.error
    if error is None and not relay.complete:
        error = "the stream ended early"
    return answer, error_in(answer, protocol) if error is None else (error, 502)


def as_stream(
    answer: Json, source: Protocol, target: Protocol, *, usage: bool, request: Json
) -> bytes:
    """Return the body of a stream for a whole answer; see :func:`agl_core.genai.response_events`.

    Raises:
        CodecError: The target has no equivalent.
    """
    spoken = get_protocol(target)
    events = response_events(source, target, answer, usage=usage, request=request)
    return b"".join([*map(spoken.event, events), spoken.stream_end])
