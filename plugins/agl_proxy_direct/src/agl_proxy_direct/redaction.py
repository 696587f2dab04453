"""Removes a backend's credentials from what it sends back.

Servers repeat keys in their errors ("Incorrect API key provided: ..."), and some echo headers. The
agent must not see the operator's key, and a span keeps its text for years. So the removal is at one
place, between the upstream and all that reads a response.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from agl_proxy_direct.upstream import (
    HeaderList,
    Upstream,
    UpstreamError,
    UpstreamRequest,
    UpstreamResponse,
)

__all__ = ["Redactor", "send"]

_SHORTEST: Final = 8
"""Characters. Placeholders for no key, ``none`` and ``EMPTY``, are words of many answers."""
_PLACEHOLDERS: Final = frozenset({"no-key-required", "not-needed", "not-required", "placeholder"})
"""Longer ones, which servers' guides use."""
_AGENT_KEY: Final = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9]).{12,}")
"""An agent's key that is worth hiding from its own answers: providers' keys are longer than 12
characters and have digits, while an agent may send any word for no key, ``assistant`` too."""
_REPLACEMENT: Final = b"[redacted]"
_BEARER: Final = re.compile(r"(?:bearer|basic)\s+(\S+)", re.IGNORECASE)


class Redactor:
    """Replaces secrets in bytes, text, headers and streams. One per response.

    Args:
        secrets: The secrets; those of less than 8 characters and placeholders are ignored.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        found: set[bytes] = set()
        for secret in secrets:
            bearer = _BEARER.fullmatch(secret)
            plain = bearer[1] if bearer else secret
            if len(plain) >= _SHORTEST and plain.lower() not in _PLACEHOLDERS:
                forms = (plain, json.dumps(plain)[1:-1], quote(plain, safe=""))
                found |= {form.encode() for form in forms}
        self._secrets = sorted(found, key=len, reverse=True)
        self._longest = len(self._secrets[0]) if found else 0
        self._bytes = frozenset(b"".join(self._secrets))
        self._held = b""

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def whole(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, _REPLACEMENT)
        return data

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return self.whole(data).decode("utf-8", "surrogatepass")

    def feed(self, chunk: bytes) -> bytes:
        """Return a stream's next bytes; a beginning of a secret at their end is held back."""
        data = self.whole(self._held + chunk)
        if not data or data[-1] not in self._bytes:  # nearly all chunks: events end with "\n"
            self._held = b""
            return data
        start = max(0, len(data) - self._longest + 1)
        while start < len(data):
            tail = data[start:]
            if any(secret.startswith(tail) for secret in self._secrets):
                break
            start += 1
        self._held = data[start:]
        return data[:start]

    def close(self) -> bytes:
        """Return what :meth:`feed` holds back."""
        held, self._held = self._held, b""
        return held


class _RedactedResponse(UpstreamResponse):
    def __init__(self, response: UpstreamResponse, redactor: Redactor) -> None:
        self.status = response.status
        self.streamed = response.streamed
        self.headers: HeaderList = [
            (name, redactor.whole(value)) for name, value in response.headers
        ]
        self.attributes, self.recorded = response.attributes, response.recorded
        self._response = response
        self._redactor = redactor

    async def read(self) -> bytes:
        try:
            return self._redactor.whole(await self._response.read())
        except UpstreamError as error:
            raise _redacted(error, self._redactor) from error

    async def chunks(self) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._response.chunks()) as chunks:
                async for chunk in chunks:
                    if piece := self._redactor.feed(chunk):
                        yield piece
        except UpstreamError as error:
            raise _redacted(error, self._redactor) from error
        if rest := self._redactor.close():
            yield rest

    async def close(self) -> None:
        await self._response.close()


async def send(upstream: Upstream, request: UpstreamRequest) -> UpstreamResponse:
    """Send a request; neither the response nor an error holds the credentials of the request.

    Raises:
        UpstreamError: The backend did not respond, or with a status that HTTP does not have, which
            our server could not send.
    """
    redactor = Redactor(_credentials(request))
    try:
        response = await upstream.send(request)
    except UpstreamError as error:
        raise _redacted(error, redactor) from error
    if not 200 <= response.status < 600:
        await response.close()
        message = f"the backend {request.backend.api_base} answered {response.status}"
        raise UpstreamError(502, message, "backend_garbage")
    return _RedactedResponse(response, redactor) if redactor else response


def _credentials(request: UpstreamRequest) -> Iterable[str]:
    yield from request.backend.credentials()
    if request.forward_key:
        for name, value in request.headers:
            if name in (b"authorization", b"api-key", b"x-api-key"):
                text = value.decode("latin-1")
                bearer = _BEARER.fullmatch(text)
                if _AGENT_KEY.fullmatch(bearer[1] if bearer else text):
                    yield text


def _redacted(error: UpstreamError, redactor: Redactor) -> UpstreamError:
    return UpstreamError(
        error.status, redactor.text(error.message), error.code, backend_fault=error.backend_fault
    )
