"""HTTP over ASGI for servers without a framework: bodies within limits, replies, error details."""

from __future__ import annotations

import asyncio
import re
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    MutableMapping,
    Sequence,
)
from functools import partial
from math import isfinite
from typing import Any, Final, TypeVar

from pydantic_core import ValidationError, from_json

__all__ = [
    "JSON",
    "ClientGone",
    "HTTPError",
    "Headers",
    "Message",
    "Receive",
    "Send",
    "Stream",
    "error_details",
    "read_body",
    "reject_non_finite",
    "send_response",
    "send_stream",
    "while_connected",
]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[bytes, bytes]
T = TypeVar("T")

JSON: Final = (b"content-type", b"application/json")


class HTTPError(Exception):
    """Ends a request with a status and a JSON body of ``detail`` (and ``error_type``)."""

    def __init__(
        self,
        status: int,
        detail: Any,
        *,
        error_type: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.error_type = error_type
        self.headers = headers


class ClientGone(Exception):
    """The client closed the connection before its reply was ready; no reply can be sent."""


class Stream:
    """A reply whose body is sent in chunks until they end, the client leaves or the server stops.

    ``chunks`` is closed in each of these cases.

    Args:
        chunks: The body.
        headers: The headers.
        status: The HTTP status.
        endless: Whether any end is a proper one, as of a stream of events. Another body that the
            server cuts off when it stops must not look whole.
    """

    __slots__ = ("chunks", "endless", "headers", "status")

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: Sequence[tuple[bytes, bytes]],
        status: int = 200,
        *,
        endless: bool = False,
    ) -> None:
        self.chunks = chunks
        self.headers = headers
        self.status = status
        self.endless = endless


async def send_stream(
    stream: Stream, send: Send, receive: Receive, stopping: asyncio.Future[None]
) -> None:
    """Send a stream; return when it has ended."""
    whole = stream.endless

    async def send_all() -> None:
        nonlocal whole
        async for chunk in stream.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        whole = True

    await send(
        {"type": "http.response.start", "status": stream.status, "headers": list(stream.headers)}
    )
    try:
        await while_connected(send_all(), receive, stopping)
    finally:
        await stream.chunks.aclose()
    if whole:
        await send({"type": "http.response.body", "body": b""})
    # Else the server closes the connection: a client takes the last chunk for the end of the body.


async def send_response(
    send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (JSON,)
) -> None:
    """Send a whole response; ``headers`` are those beside its length."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


# -- request bodies --------------------------------------------------------------------------------


_BODY_SECONDS: Final = 120
"""Longest time from the end of a request's headers to the end of its body."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the whole body.

    Raises:
        HTTPError: 413, as soon as more than ``limit`` bytes are announced or received; 408 if the
            body is not complete in time.
        ClientGone: The connection closed before the end of the body.
    """
    announced = headers.get(b"content-length")
    if announced is not None and int(announced) > limit:
        raise _too_large(limit)
    first = _Begun(receive())
    if first.is_done and not first.message.get("more_body"):
        # Nearly every body is there, whole. A timer would cost a twentieth of a small request.
        return _part(first.message, limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            message = await first
            while True:
                parts.append(_part(message, limit, size))
                size += len(parts[-1])
                if not message.get("more_body"):
                    return b"".join(parts)
                message = await receive()
    except TimeoutError:
        detail = f"the body was not complete after {_BODY_SECONDS} seconds"
        raise HTTPError(408, detail, headers=((b"connection", b"close"),)) from None


def _part(message: Message, limit: int, before: int = 0) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if before + len(body) > limit:
        raise _too_large(limit)
    return body


class _Begun:
    """A call of ``receive`` that has run as far as it can without waiting. Awaited at most once.

    Attributes:
        is_done: Whether it needed no wait.
        message: What it returned then.
    """

    __slots__ = ("_steps", "_waits_for", "is_done", "message")

    def __init__(self, call: Awaitable[Message]) -> None:
        self._steps = call.__await__()
        self._waits_for: Any = None
        self.is_done = False
        self.message: Message = {}
        try:
            self._waits_for = next(self._steps)
        except StopIteration as done:
            self.is_done, self.message = True, done.value

    def __await__(self) -> Generator[Any, Any, Message]:
        if self.is_done:
            return self.message
        steps, waits_for = self._steps, self._waits_for
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, sent)
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value


def _too_large(limit: int) -> HTTPError:
    return HTTPError(413, f"the body is larger than the {limit} bytes this server takes")


# Signs of a number beyond the largest double, 1.8e308: a large exponent, or many digits.
_EXPONENT: Final = re.compile(rb"e\+?[0-9]{3}")
_UPPER_EXPONENT: Final = re.compile(rb"E\+?[0-9]{3}")
_MANY_DIGITS: Final = b"0" * 309
_DIGITS_AS_ZEROS: Final = bytes(ord("0") if 48 <= code <= 57 else 32 for code in range(256))


def reject_non_finite(body: bytes, *, overflow: bool, parsed: Any = None) -> None:
    """Refuse NaN and infinities, which the parser accepts although they are not valid JSON.

    Args:
        body: A JSON document that the parser has accepted.
        overflow: Also refuse numbers in valid notation beyond the largest double.
        parsed: The document as values, if the caller has them; else it is parsed again.

    Raises:
        HTTPError: 422.
    """
    # Searching the bytes (fastest for a single letter) costs little compared to parsing them, while
    # walking the parsed values costs as much again. A match may be inside a string.
    if (
        (b"N" in body and b"NaN" in body)
        or (b"I" in body and b"Infinity" in body)
        or (overflow and _may_overflow(body))
    ) and not _is_finite(from_json(body) if parsed is None else parsed):
        raise HTTPError(
            422,
            [{"type": "finite_number", "loc": ["body"], "msg": "NaN and infinities are not JSON"}],
        )


def _may_overflow(body: bytes) -> bool:
    # Two searches for one letter: one search for either takes twice as long.
    if _EXPONENT.search(body) or _UPPER_EXPONENT.search(body):
        return True
    # A regular expression takes 20 times as long in a body that is full of short numbers.
    return _MANY_DIGITS in body.translate(_DIGITS_AS_ZEROS)


def _is_finite(value: Any) -> bool:
    waiting: list[Iterable[Any]] = [[value]]
    while waiting:
        values = waiting.pop()
        # A long list holds values of few types, and looking at each in Python takes much longer.
        kinds = set(map(type, values))
        if float in kinds and not all(isfinite(each) for each in values if isinstance(each, float)):
            return False
        if dict in kinds:
            waiting += [each.values() for each in values if isinstance(each, dict)]
        if list in kinds:
            waiting += [each for each in values if isinstance(each, list)]
    return True


_MAX_DETAILS: Final = 20
"""Mistakes that a reply names: a body may have a million."""
_MAX_DETAIL_CHARS: Final = 500
"""Characters of a mistake, which may repeat the value."""


def error_details(error: ValidationError, where: str) -> list[dict[str, Any]]:
    """Return the first invalid fields in FastAPI's format; ``where`` is ``body`` or ``query``."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    details = [
        {"type": item["type"], "loc": [where, *map(_cut, item["loc"])], "msg": _cut(item["msg"])}
        for item in found[:_MAX_DETAILS]
    ]
    if len(found) > _MAX_DETAILS:
        more = f"{len(found) - _MAX_DETAILS} more values are not valid"
        details.append({"type": "too_many_errors", "loc": [where], "msg": more})
    return details


def _cut(value: Any) -> Any:
    return value[:_MAX_DETAIL_CHARS] if isinstance(value, str) else value


# -- waiting ---------------------------------------------------------------------------------------


async def while_connected(
    work: Coroutine[Any, Any, T], receive: Receive, stopping: asyncio.Future[None]
) -> tuple[T | None, bool]:
    """Run long work while its client is connected and the server runs.

    Args:
        work: The work; if it is cancelled it must either have no effect or return its result.
        receive: The request's ``receive``; the rest of its body is dropped.
        stopping: Done when the server shuts down.

    Returns:
        The result, or None if the work was cancelled; and whether the client is still there.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        connected = not gone.done()
        gone.cancel()
        if not task.done():
            task.cancel()
    try:
        return await task, connected
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        return None, connected


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
