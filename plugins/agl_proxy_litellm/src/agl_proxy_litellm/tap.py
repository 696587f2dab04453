"""What a server sent, before LiteLLM read it.

LiteLLM reads a server's answer into objects of its own and writes those anew: token ids and
log-probabilities of streams get lost on the way, and so does what its types do not know. For
servers that speak OpenAI's protocols there is nothing to rewrite. A :class:`TapTransport` below
LiteLLM keeps the bytes of the call that its context belongs to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar

import httpx

__all__ = ["Tap", "TapTransport"]


class Tap:
    """The bytes of one call.

    Attributes:
        status: HTTP status of the server's last response; 0 before there was one.
        headers: Its headers.
        error: What broke the connection.
        whole: Whether all of the body has come.
    """

    def __init__(self, connect_timeout: float) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.error: Exception | None = None
        self.whole = False
        self.connect_timeout = connect_timeout
        self._seen: list[bytes] = []
        self._stream: httpx.AsyncByteStream | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    def open(self) -> None:
        """Let this be the tap of the calls that the current task makes from now on."""
        _current.set(self)

    def take(self) -> bytes:
        """Return what LiteLLM has read since the last time."""
        taken = b"".join(self._seen)
        self._seen.clear()
        return taken

    async def next(self) -> bytes:
        """Read on in LiteLLM's place; nothing is the end.

        Raises:
            httpx.HTTPError: The connection broke.
        """
        if self.whole or self._pieces is None:
            return b""
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            self.whole = True
            return b""
        except Exception as error:
            self.error = error
            raise

    async def close(self) -> None:
        """Let go of the connection, whose call ends if it still goes on."""
        stream, self._stream, self._pieces = self._stream, None, None
        if stream is not None:
            await stream.aclose()

    async def attach(self, response: httpx.Response) -> None:
        """Stand between a response and its reader."""
        assert isinstance(response.stream, httpx.AsyncByteStream)
        await self.close()  # an earlier try's
        self._seen.clear()
        self.whole, self.error = False, None
        self.status, self.headers = response.status_code, response.headers.raw
        self._stream = response.stream
        self._pieces = aiter(response.stream)
        response.stream = _Tee(self)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what comes, and keep it."""
        while piece := await self.next():
            self._seen.append(piece)
            yield piece


_current: ContextVar[Tap | None] = ContextVar("agl_proxy_litellm_tap", default=None)


class _Tee(httpx.AsyncByteStream):
    """What LiteLLM reads. When it stops, the rest can still be read from the tap."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._tap.pieces()

    async def aclose(self) -> None:
        if self._tap.whole:
            await self._tap.close()


class TapTransport(httpx.AsyncBaseTransport):
    """Sends requests through another transport, and shows what comes back to the call's tap."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        tap = _current.get()
        if tap is None:
            return await self._inner.handle_async_request(request)
        # Bytes are relayed as they come, and agents did not ask for compressed ones.
        request.headers["accept-encoding"] = "identity"
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
