"""LiteLLM's results and errors as HTTP responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import httpx

from agl_core.genai import DONE, dumps
from agl_proxy_direct import UpstreamError, UpstreamResponse, error_body, response_headers
from agl_proxy_litellm.backends import LiteLLMBackend
from agl_proxy_litellm.library import library
from agl_proxy_litellm.tap import Tap
from agl_serving import JSON

__all__ = ["RawStream", "TranslatedStream", "error_response", "whole_response"]

_EVENTS: Final = [(b"content-type", b"text/event-stream")]


class BufferedResponse(UpstreamResponse):
    """A response whose body is in memory."""

    streamed = False

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    async def read(self) -> bytes:
        return self._body

    async def chunks(self) -> AsyncGenerator[bytes]:
        yield self._body

    async def close(self) -> None:
        pass


def whole_response(result: Any, tap: Tap, backend: LiteLLMBackend) -> UpstreamResponse:
    """Return the response for a result that is not a stream."""
    if tap.status and backend.speaks_openai:
        return BufferedResponse(tap.status, response_headers(tap.headers), tap.take())
    return BufferedResponse(200, [JSON], _json(result))


class RawStream(UpstreamResponse):
    """A stream as the server sends it. LiteLLM sends the request and does not read the response.

    Args:
        result: LiteLLM's stream; it is closed and never read.
        tap: The server's bytes.
        backend: The backend that answers.
    """

    status = 200
    streamed = True

    def __init__(self, result: Any, tap: Tap, backend: LiteLLMBackend) -> None:
        self.headers = response_headers(tap.headers)
        self._result = result
        self._tap = tap
        self._backend = backend
        self._deadline = _Deadline(backend)

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes]:
        if seen := self._tap.take():
            yield seen
        while piece := await self._next():
            yield piece

    async def _next(self) -> bytes:
        try:
            async with self._deadline.next():
                return await self._tap.next()
        except Exception as error:
            raise stream_error(error, self._tap, self._backend) from error

    async def close(self) -> None:
        await self._tap.close()
        await _close(self._result)


class TranslatedStream(UpstreamResponse):
    """A stream of LiteLLM's chunk objects, written as server-sent events.

    Args:
        result: LiteLLM's stream.
        tap: The server's bytes, if LiteLLM was given a tapped client.
        backend: The backend that answers.
    """

    status = 200
    streamed = True

    def __init__(self, result: Any, tap: Tap, backend: LiteLLMBackend) -> None:
        self.headers = list(_EVENTS)
        self._result = result
        self._stream: AsyncIterator[Any] = aiter(result)
        self._tap = tap
        self._backend = backend
        self._deadline = _Deadline(backend)
        self._first: Any = None

    async def start(self) -> None:
        """Wait for the first chunk, since some providers report errors with it."""
        self._first = await anext(self._stream, None)

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes]:
        chunk, has_content = self._first, False
        while chunk is not None:
            has_content = has_content or any(_has_content(choice) for choice in chunk.choices)
            yield b"data: " + _json(chunk) + b"\n\n"
            try:
                async with self._deadline.next():
                    chunk = await anext(self._stream, None)
            except Exception as error:
                raise stream_error(error, self._tap, self._backend) from error
        if not has_content:
            # LiteLLM turns a stream that it cannot parse into an empty one.
            message = f"{_where(self._backend)} sent a stream that LiteLLM cannot parse"
            raise UpstreamError(502, message, "backend_garbage")
        yield DONE

    async def close(self) -> None:
        await self._tap.close()
        await _close(self._result)


def _has_content(choice: Any) -> bool:
    if hasattr(choice, "delta"):
        return bool(choice.delta.model_dump(exclude_none=True))
    return choice.text is not None  # a text completion


class _Deadline:
    """Timeouts of a stream: for the next piece, and for the whole."""

    def __init__(self, backend: LiteLLMBackend) -> None:
        self._silence = backend.read_timeout
        self._end = time.monotonic() + backend.timeout

    def next(self) -> asyncio.Timeout:
        return asyncio.timeout(min(self._silence, self._end - time.monotonic()))


async def _close(result: Any) -> None:
    close = getattr(result, "aclose", None)
    if close is not None:
        await close()


def stream_error(error: Exception, tap: Tap, backend: LiteLLMBackend) -> UpstreamError:
    """Return the error that ended a response."""
    litellm, where = library(), _where(backend)
    cause = tap.error or error
    if isinstance(cause, (TimeoutError, litellm.Timeout, httpx.TimeoutException)):
        return UpstreamError(504, f"{where} did not answer in time", "timeout")
    if isinstance(cause, httpx.ConnectError):
        message = f"{where} refuses connections: {cause}"
        return UpstreamError(502, message, "backend_unreachable")
    if tap.error is not None:
        message = f"{where} broke the connection: {cause or type(cause).__name__}"
        return UpstreamError(502, message, "connection_broken")
    return UpstreamError(502, f"{where} failed: {_message(error)}", "backend_error")


async def error_response(error: Exception, tap: Tap, backend: LiteLLMBackend) -> UpstreamResponse:
    """Return the backend's error response for an exception of LiteLLM.

    Args:
        error: The exception.
        tap: The server's bytes.
        backend: The backend.

    Raises:
        UpstreamError: The backend did not answer, so there is no response.
    """
    litellm = library()
    if isinstance(tap.error, httpx.ConnectTimeout):
        limit = f"within {backend.connect_timeout:g} s"
        message = f"{_where(backend)} could not be connected to {limit}"
        raise UpstreamError(504, message, "connect_timeout") from error
    if tap.error is not None or isinstance(error, (TimeoutError, litellm.Timeout)):
        raise stream_error(error, tap, backend) from error
    if tap.status and backend.speaks_openai:
        # Includes a status 200 that LiteLLM could not parse: the proxy parses it itself.
        body = tap.take() + b"".join([piece async for piece in tap.pieces()])
        return BufferedResponse(tap.status, response_headers(tap.headers), body)
    status = getattr(error, "status_code", None)
    # LiteLLM also has status 500 for a server that broke the connection or answered malformed.
    if (
        not isinstance(status, int)
        or status == 500
        or isinstance(error, litellm.APIConnectionError)
    ):
        raise stream_error(error, tap, backend) from error
    headers: list[tuple[bytes, bytes]] = [JSON]
    for sent in (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    ):
        if sent and "retry-after" in sent:
            headers.append((b"retry-after", str(sent["retry-after"]).encode("latin-1")))
            break
    code = getattr(error, "code", None)
    body = error_body("chat", status, _message(error), None if code is None else str(code))
    return BufferedResponse(status, headers, dumps(body))


def _where(backend: LiteLLMBackend) -> str:
    return f"the backend {backend.api_base} of model {backend.model_name!r}"


def _message(error: Exception) -> str:
    message = str(getattr(error, "message", None) or error)
    # The text after the first mark describes the router's group, which always has one backend here.
    # After the others come LiteLLM's own files and lines, and advice to report them.
    for mark in ("\n\nLiteLLM: model group", "Traceback (most", "\n\nThis looks like a bug"):
        message = message.partition(mark)[0]
    return message.strip()[:2000]


def _json(result: Any) -> bytes:
    return result.model_dump_json(exclude_none=True, exclude_unset=True).encode()
