"""The server's bytes of a call, read below LiteLLM.

LiteLLM parses a response into its own objects and serializes them again. That loses token ids and
log-probabilities of streams, and every field that its types do not have. A server that speaks
OpenAI's protocols needs no translation, so its bytes go to the agent: a :class:`TapTransport`, the
HTTP transport below LiteLLM, keeps the bytes of a call in the :class:`Tap` of the current context.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar

import httpx

from agl_proxy_direct import MAX_RESPONSE_BYTES

__all__ = ["Tap", "TapTransport"]


class Tap:
    """The bytes of one call.

    Args:
        connect_timeout: Longest wait for a connection, in seconds.
        authorization: Header of the backend, which LiteLLM would send beside its own.

    Attributes:
        status: HTTP status of the server's last response; 0 before there was one.
        headers: Headers of that response.
        error: The exception that broke the connection.
        whole: Whether the whole body has been read.
    """

    def __init__(self, connect_timeout: float, authorization: str | None = None) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.error: Exception | None = None
        self.whole = False
        self.connect_timeout = connect_timeout
        self.authorization = authorization
        self._seen: list[bytes] = []
        self._size = 0
        self._stream: httpx.AsyncByteStream | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    def open(self) -> None:
        """Use this tap for the calls that the current task makes from now on."""
        _current.set(self)

    def take(self) -> bytes:
        """Return the bytes that LiteLLM has read since the last call."""
        taken = b"".join(self._seen)
        self._seen.clear()
        return taken

    async def next(self) -> bytes:
        """Read the next bytes instead of LiteLLM; empty at the end.

        Raises:
            httpx.HTTPError: The connection broke.
        """
        if self.whole or self._pieces is None:
            return b""
        try:
            piece = await anext(self._pieces)
            self._size += len(piece)
            if self._size > MAX_RESPONSE_BYTES:
                raise httpx.ReadError(f"more than {MAX_RESPONSE_BYTES} bytes")
            return piece
        except StopAsyncIteration:
            self.whole = True
            return b""
        except Exception as error:
            self.error = error
            raise

    async def close(self) -> None:
        """Close the connection, which cancels an unfinished call."""
        stream, self._stream, self._pieces = self._stream, None, None
        if stream is not None:
            await stream.aclose()

    async def attach(self, response: httpx.Response) -> None:
        """Read a response's body through this tap."""
        assert isinstance(response.stream, httpx.AsyncByteStream)
        await self.close()  # LiteLLM retried: drop the earlier response
        self._seen.clear()
        self._size = 0
        self.whole, self.error = False, None
        self.status, self.headers = response.status_code, response.headers.raw
        self._stream = response.stream
        self._pieces = aiter(response.stream)
        response.stream = _Tee(self)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body's pieces, and keep them for :meth:`take`."""
        while piece := await self.next():
            self._seen.append(piece)
            yield piece


_current: ContextVar[Tap | None] = ContextVar("agl_proxy_litellm_tap", default=None)


class _Tee(httpx.AsyncByteStream):
    """The stream that LiteLLM reads. When LiteLLM stops, the tap can read the rest."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._tap.pieces()

    async def aclose(self) -> None:
        if self._tap.whole:
            await self._tap.close()


class TapTransport(httpx.AsyncBaseTransport):
    """Sends requests through another transport, and attaches responses to the call's tap."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        tap = _current.get()
        if tap is None:
            return await self._inner.handle_async_request(request)
        # The bytes go to the agent unchanged, and agents did not accept compression.
        request.headers["accept-encoding"] = "identity"
        if tap.authorization is not None:
            request.headers["authorization"] = tap.authorization
        limits = dict(request.extensions.get("timeout") or {})
        request.extensions["timeout"] = {**limits, "connect": tap.connect_timeout}
        try:
            response = await self._inner.handle_async_request(request)
        except Exception as error:
            tap.error = error
            raise
        await tap.attach(response)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
