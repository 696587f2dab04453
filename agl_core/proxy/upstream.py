"""The HTTP client side: one session per event loop, errors that say whether to try elsewhere."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import Any, Final

import aiohttp
from yarl import URL

from agl_core.proxy.backends import Backend

__all__ = ["Upstream", "UpstreamError", "as_upstream_error", "relayed_headers", "request_headers"]

logger = logging.getLogger(__name__)

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "content-encoding",  # bodies are relayed decoded
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""RFC 9110, section 7.6.1, and what our own server writes."""

_NOT_FORWARDED: Final = _HOP_BY_HOP | {
    "accept-encoding",
    "authorization",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "origin",
    "x-api-key",
}

# Servers close idle connections after 5 s (uvicorn's default), and a request written just then is
# lost: connections that might be about to close are not used again.
_KEEP_ALIVE: Final = 4.0
_LARGE: Final = 2**20


class UpstreamError(Exception):
    """A backend did not answer a call as it should.

    Args:
        status: HTTP status that tells the caller.
        message: What happened.
        code: A word for programs.
        backend_fault: Whether the backend should be thought less of.
    """

    def __init__(self, status: int, message: str, code: str, *, backend_fault: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.backend_fault = backend_fault


class Upstream:
    """Sends requests to backends. Create and close it in the loop that uses it."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_KEEP_ALIVE,
                ttl_dns_cache=60,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept", "Content-Type"),
            read_bufsize=2**18,
            auto_decompress=True,
            trust_env=False,
        )
        self._urls: dict[str, URL] = {}
        self._timeouts: dict[Backend, aiohttp.ClientTimeout] = {}

    async def close(self) -> None:
        await self._session.close()

    async def send(
        self,
        backend: Backend,
        endpoint: str,
        body: bytes | None,
        headers: dict[str, str],
        *,
        method: str = "POST",
        query: str = "",
    ) -> aiohttp.ClientResponse:
        """Return the response once its headers are there; the caller reads and closes it.

        Raises:
            UpstreamError: There is none.
        """
        url = backend.url(endpoint) + (f"?{query}" if query else "")
        target = self._urls.get(url)
        if target is None:
            if len(self._urls) > 1024:
                self._urls.clear()
            target = self._urls[url] = URL(url, encoded=True)
        timeout = self._timeouts.get(backend)
        if timeout is None:
            timeout = self._timeouts[backend] = aiohttp.ClientTimeout(
                total=backend.timeout,
                sock_connect=backend.connect_timeout,
                sock_read=backend.read_timeout,
            )
        data: Any = body
        if body is not None and len(body) > _LARGE:
            data = io.BytesIO(body)  # written in pieces, so that others' calls go on
        try:
            return await self._session.request(
                method, target, data=data, headers=headers, timeout=timeout, allow_redirects=False
            )
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise as_upstream_error(error, backend) from error


def as_upstream_error(error: BaseException, backend: Backend) -> UpstreamError:
    """Say what a failure of the connection means."""
    where = f"the backend {backend.api_base} of model {backend.model_name!r}"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        message = f"{where} could not be connected to within {backend.connect_timeout:g} s"
        return UpstreamError(504, message, "connect_timeout")
    if isinstance(error, asyncio.TimeoutError):
        return UpstreamError(504, f"{where} did not answer in time", "timeout")
    if isinstance(error, aiohttp.ClientConnectorError):
        return UpstreamError(502, f"{where} refuses connections: {error}", "backend_unreachable")
    return UpstreamError(
        502, f"{where} broke the connection: {error or type(error).__name__}", "connection_broken"
    )


def request_headers(
    backend: Backend, incoming: list[tuple[bytes, bytes]], *, forward_key: bool
) -> dict[str, str]:
    """Return the headers to send: the caller's, without its credentials unless they are meant.

    Args:
        backend: Who gets them.
        incoming: The caller's headers.
        forward_key: Whether a backend without a key of its own is shown the caller's.
    """
    headers: dict[str, str] = {}
    key = ""
    for raw_name, raw_value in incoming:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name == "authorization" and value[:7].lower() == "bearer ":
            key = value[7:].strip() or key
        elif name == "x-api-key":
            key = value or key
        elif name not in _NOT_FORWARDED:
            headers[name] = value
    if backend.api_key is not None:
        key = backend.api_key
    elif not forward_key:
        key = ""
    if key:
        if backend.provider == "anthropic":
            headers["x-api-key"] = key
        else:
            headers["authorization"] = f"Bearer {key}"
    if backend.provider == "anthropic":
        headers.setdefault("anthropic-version", "2023-06-01")
    headers["accept-encoding"] = "identity"
    for name, value in backend.headers:
        headers[name.lower()] = value
    return headers


def relayed_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """Return what of a backend's headers its caller gets."""
    return [
        (name.lower(), value)
        for name, value in response.raw_headers
        if name.lower().decode("latin-1") not in _HOP_BY_HOP
    ]
