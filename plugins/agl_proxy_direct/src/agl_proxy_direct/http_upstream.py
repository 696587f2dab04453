"""Sends requests to backends over HTTP, with one client session per event loop."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final, cast

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from agl_core.genai import dumps
from agl_proxy_direct.backends import Backend
from agl_proxy_direct.upstream import (
    MAX_RESPONSE_BYTES,
    Upstream,
    UpstreamError,
    UpstreamRequest,
    UpstreamResponse,
    too_large,
)
from agl_serving import is_token

__all__ = ["NOT_FORWARDED", "HttpUpstream", "response_headers"]

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
"""Hop-by-hop headers (RFC 9110, section 7.6.1), and headers that our own server writes."""

_NOT_RETURNED: Final = _HOP_BY_HOP | {"set-cookie"}
"""The session of a cookie is one of the operator's account, and its cookies are not sent back."""

_BAD_NAME: Final = re.compile(rb"[^A-Za-z0-9!#$%&'*+.^_`|~-]|^$")
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""RFC 9110, sections 5.1 and 5.5. Our server does not write a response with such a header."""

NOT_FORWARDED: Final = _HOP_BY_HOP | {
    "accept-encoding",
    "api-key",
    "authorization",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "origin",
    "x-api-key",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
}
"""Credentials, headers that describe the agent's connection to the proxy, and headers by which some
servers replace the method or the path that the proxy decided on."""

# uvicorn closes idle connections after 5 s by default. A request written at that moment is lost, so
# idle connections are dropped before.
_KEEP_ALIVE: Final = 4.0
_AUTO_HEADERS: Final = ("user-agent", "accept-encoding", "accept", "content-type")
_REDIRECTS: Final = (307, 308)
"""Redirects that keep the method and the body; clients follow them."""
_MAX_REDIRECTS: Final = 5
"""Usual chains have one; a loop ends soon."""
_LARGE: Final = 2**20
"""Size in bytes from which a body is written in pieces."""


class HttpUpstream(Upstream):
    """Sends requests unchanged to HTTP servers that speak their protocol."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_KEEP_ALIVE,
                ttl_dns_cache=60,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=2**18,
            auto_decompress=True,
            trust_env=False,
        )
        self._urls: dict[str, URL] = {}
        self._timeouts: dict[Backend, aiohttp.ClientTimeout] = {}

    async def close(self) -> None:
        await self._session.close()

    def update(self, backends: Iterable[Backend]) -> None:
        kept = set(backends)
        self._timeouts = {key: value for key, value in self._timeouts.items() if key in kept}

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        backend, body = request.backend, request.body
        headers = _request_headers(request)
        if isinstance(body, dict):
            body = dumps(body)
            headers["content-type"] = "application/json"
        data: Any = body
        if body is not None and len(body) > _LARGE:
            data = io.BytesIO(body)  # written in pieces, so that it does not block the event loop
        url = self._url(request)
        try:
            for _ in range(_MAX_REDIRECTS):
                response = await self._session.request(
                    request.method,
                    url,
                    data=data,
                    headers=headers,
                    # aiohttp spends more on skipping a header than on the others together. Agents'
                    # clients send most of these, and aiohttp does not add what is there.
                    skip_auto_headers=[name for name in _AUTO_HEADERS if name not in headers]
                    or None,
                    timeout=self._timeout(backend),
                    allow_redirects=False,
                )
                if response.status not in _REDIRECTS:
                    return _HttpResponse(response, backend)
                url = _redirected(url, response, backend)
                response.close()
                if isinstance(data, io.BytesIO):
                    data = io.BytesIO(cast("bytes", body))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _as_upstream_error(error, backend) from error
        message = f"{_where(backend)} redirects more than {_MAX_REDIRECTS} times"
        raise UpstreamError(502, message, "backend_redirects")

    def _url(self, request: UpstreamRequest) -> URL:
        url = request.backend.url(request.endpoint)
        if request.query:
            url += f"?{request.query}"
        target = self._urls.get(url)
        if target is None:
            if len(self._urls) > 1024:
                self._urls.clear()
            target = self._urls[url] = URL(url, encoded=True)
        return target

    def _timeout(self, backend: Backend) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(backend)
        if timeout is None:
            timeout = self._timeouts[backend] = aiohttp.ClientTimeout(
                total=backend.timeout,
                sock_connect=backend.connect_timeout,
                sock_read=backend.read_timeout,
            )
        return timeout


class _HttpResponse(UpstreamResponse):
    def __init__(self, response: aiohttp.ClientResponse, backend: Backend) -> None:
        self.status = response.status
        self.headers = response_headers(response.raw_headers)
        self.streamed = response.content_type == "text/event-stream"
        self._response = response
        self._backend = backend

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes]:
        size = 0
        try:
            async for chunk in self._response.content.iter_any():
                size += len(chunk)
                if size > MAX_RESPONSE_BYTES:
                    raise too_large(_where(self._backend))
                yield chunk
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _as_upstream_error(error, self._backend) from error

    async def close(self) -> None:
        self._response.close()


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a backend's response that the agent gets."""
    return [
        (name.lower(), value)
        for name, value in headers
        if name.lower().decode("latin-1") not in _NOT_RETURNED
        and not _BAD_NAME.search(name)
        and not _BAD_VALUE.search(value)
    ]


def _redirected(url: URL, response: aiohttp.ClientResponse, backend: Backend) -> URL:
    """Return where a backend redirects a call to.

    Raises:
        UpstreamError: To another server, which must not get the backend's key, or to none.
    """
    location = response.headers.get("location", "")
    try:
        target = url.join(URL(location, encoded=True))
        origin, port = target.origin(), target.port  # read here: it may be out of range
    except ValueError as error:
        response.close()
        message = f"{_where(backend)} redirects to {location!r:.100}, which is no HTTP URL"
        raise UpstreamError(502, message, "backend_redirects") from error
    # The same host behind TLS is the same server; without TLS the key would be sent in clear.
    same = target.scheme == url.scheme and port == url.port
    if target.host != url.host or not (same or target.scheme == "https"):
        response.close()
        message = f"{_where(backend)} redirects to {origin}; set api_base to that server"
        raise UpstreamError(502, message, "backend_redirects")
    return target


def _where(backend: Backend) -> str:
    return f"the backend {backend.api_base} of model {backend.model_name!r}"


def _as_upstream_error(error: BaseException, backend: Backend) -> UpstreamError:
    """Return the error that a failed connection means for the caller."""
    where = _where(backend)
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


def _request_headers(request: UpstreamRequest) -> CIMultiDict[str]:
    """Return the agent's headers with the backend's credentials in place of the agent's."""
    backend = request.backend
    headers: CIMultiDict[str] = CIMultiDict()
    key = ""
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name == "authorization" and value[:7].lower() == "bearer ":
            key = value[7:].strip() or key
        elif name in ("api-key", "x-api-key"):
            key = value or key
        elif name not in NOT_FORWARDED:
            headers.add(name, value)
        elif name == "content-encoding" and isinstance(request.body, bytes):
            headers.add(name, value)  # the body passes as the agent has encoded it
    if backend.api_key is not None:
        key = backend.api_key
    elif not request.forward_key or is_token(key):
        key = ""
    if key:
        if backend.auth == "x-api-key":
            headers["x-api-key"] = key
        else:
            headers["authorization"] = f"Bearer {key}"
    for name, value in backend.provider_headers:
        headers.setdefault(name, value)
    headers["accept-encoding"] = "identity"
    for name, value in backend.headers:
        headers[name.lower()] = value
    return headers
