"""Sends spans to an OpenTelemetry backend: OTLP over HTTP, protobuf, gzipped.

Protocol: opentelemetry.io/docs/specs/otlp, "OTLP/HTTP". The sender uses the standard library's
blocking client, because an exporter runs in the thread that ends a span, which may have no event
loop.
"""

from __future__ import annotations

import gzip
import http.client
import os
import random
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from time import time
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from agl_core.errors import ConfigError, TraceExportError
from agl_core.types import Span
from agl_trace.otlp.encode import to_export_request

__all__ = ["OtlpSender", "SendOutcome", "headers_from_environment", "traces_url"]

_PATH: Final = "/v1/traces"
_BATCH: Final = 512  # spans per request
_MAX_BYTES: Final = 4 * 1024 * 1024  # per request before compression; collectors accept 20 MiB
_RETRIED: Final = frozenset({429, 502, 503, 504})
_FIRST_DELAY: Final = 0.5  # seconds; doubles with each retry
_MAX_DELAY: Final = 30.0
"""Seconds: a backend that is back gets spans within half a minute."""
_SHOWN: Final = 200  # characters of a backend's error message
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # RFC 9110, section 5.5


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The backend's result for the spans that were sent.

    Attributes:
        sent: Number of spans sent.
        rejected: Number of spans that the backend dropped.
        message: The backend's reason.
    """

    sent: int
    rejected: int = 0
    message: str = ""

    def __add__(self, other: SendOutcome) -> SendOutcome:
        said = dict.fromkeys(text for text in (self.message, other.message) if text)
        return SendOutcome(self.sent + other.sent, self.rejected + other.rejected, "; ".join(said))


def traces_url(url: str) -> str:
    """Return the URL that accepts traces: ``url`` itself if its path ends in ``/traces``.

    Any other ``url`` is a backend's base URL, and ``/v1/traces`` is appended, as OpenTelemetry's
    exporters do with ``OTEL_EXPORTER_OTLP_ENDPOINT``.

    Raises:
        ConfigError: ``url`` is not an HTTP URL.
    """
    parts = urllib.parse.urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is not a URL of an OTLP backend, e.g. http://127.0.0.1:4318")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/traces") else path + _PATH).geturl()


def headers_from_environment() -> dict[str, str]:
    """Return the headers in OpenTelemetry's variables; those for traces take precedence.

    The form of the variables is ``key=value,key=value`` with values percent-encoded
    (opentelemetry.io/docs/specs/otel/protocol/exporter).
    """
    said = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get(
        "OTEL_EXPORTER_OTLP_HEADERS", ""
    )
    headers: dict[str, str] = {}
    for pair in said.split(","):
        key, equals, value = pair.partition("=")
        if equals and key.strip():
            headers[key.strip().lower()] = urllib.parse.unquote(value.strip())
    return headers


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats redirects as errors: most clients would turn the POST into a GET without spans."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs


class OtlpSender:
    """Sends spans to one backend. Thread-safe; calls block.

    Args:
        url: The backend; see :func:`traces_url`.
        headers: Headers of every request, for example an API key.
        timeout: Timeout of one request, in seconds.
        tries: Number of times a request is sent before it fails, if a retry may help.

    Raises:
        ConfigError: ``url`` is not an HTTP URL, or HTTP cannot carry a header.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = 10.0,
        tries: int = 5,
    ) -> None:
        self.url: Final = traces_url(url)
        self._headers = {
            "content-type": "application/x-protobuf",
            "content-encoding": "gzip",
            "user-agent": "agl-otlp",
            **_checked(headers or {}),
        }
        self._timeout = timeout
        self._tries = tries
        self._closed = threading.Event()
        handlers: list[Any] = [_NoRedirect()]
        if _is_loopback(urllib.parse.urlsplit(self.url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def send(
        self, spans: Sequence[Span], *, routing: bool = True, numbered: bool = True
    ) -> SendOutcome:
        """Send spans in one or more requests; the flags are those of :func:`to_export_request`.

        Raises:
            TraceExportError: The backend refused a request or could not be reached; the spans of
                earlier requests have been sent.
        """
        outcome = SendOutcome(0)
        for start in range(0, len(spans), _BATCH):
            outcome += self._send(spans[start : start + _BATCH], routing, numbered)
        return outcome

    def close(self) -> None:
        """End waiting retries, and never retry again."""
        self._closed.set()

    def _send(self, spans: Sequence[Span], routing: bool, numbered: bool) -> SendOutcome:
        body = to_export_request(spans, routing=routing, numbered=numbered).SerializeToString()
        answer = None
        if len(body) <= _MAX_BYTES or len(spans) == 1:
            answer = self._post(gzip.compress(body, compresslevel=6), splittable=len(spans) > 1)
        if answer is None:
            half = len(spans) // 2
            first = self._send(spans[:half], routing, numbered)
            return first + self._send(spans[half:], routing, numbered)
        rejected, message = _partial_success(answer)
        return SendOutcome(len(spans), rejected, message)

    def _post(self, body: bytes, *, splittable: bool) -> bytes | None:
        """Post a body; return the response, or None if the body is too large and can be split."""
        complaint = "no request was sent"
        for number in range(1, self._tries + 1):
            request = urllib.request.Request(self.url, body, self._headers, method="POST")  # noqa: S310 -- checked to be HTTP
            try:
                with self._opener.open(request, timeout=self._timeout) as answer:
                    return _plain(answer.read(), answer.headers.get("content-encoding"))
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 413 and splittable:
                        return None
                    complaint = f"{self.url} answered {_complaint(error)}"
                    retried = error.code in _RETRIED
                    wait = _retry_after(error.headers.get("retry-after"))
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                complaint = f"cannot reach {self.url}: {reason or type(error).__name__}"
                retried, wait = True, None
            if not retried or number == self._tries:
                break
            delay = _FIRST_DELAY * 2 ** (number - 1) * random.uniform(0.8, 1.2)
            if self._closed.wait(min(delay if wait is None else wait, _MAX_DELAY)):
                break
        raise TraceExportError(complaint)


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not the name of a header")
        if not _VALUE.fullmatch(value):  # not shown: it may be a key
            raise ConfigError(
                f"the value of the header {name!r} has a line end or another character that HTTP "
                "cannot carry"
            )
    return headers


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _plain(body: bytes, encoding: str | None) -> bytes:
    """Return a body without its compression; a corrupt one is empty, since its status counts."""
    if (encoding or "").strip().lower() != "gzip":
        return body
    try:
        return gzip.decompress(body)
    except (OSError, EOFError, zlib.error):
        return b""


def _partial_success(answer: bytes) -> tuple[int, str]:
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return 0, ""  # the body is not protobuf; status 200 is still a success
    return partial.rejected_spans, partial.error_message


def _complaint(error: urllib.error.HTTPError) -> str:
    if 300 <= error.code < 400:
        return f"{error.code}: it has moved to {error.headers.get('location')}"
    try:
        body = _plain(error.read(), error.headers.get("content-encoding"))
    except (OSError, http.client.HTTPException):
        body = b""
    if "protobuf" in (error.headers.get("content-type") or ""):
        body = body[2:] if body[:1] == b"\x12" else body  # google.rpc.Status.message
    text = "".join(c if c.isprintable() else " " for c in body.decode("utf-8", "replace"))
    said = " ".join(text.split())[:_SHOWN]
    return f"{error.code} {error.reason}" + (f": {said}" if said else "")


def _retry_after(value: str | None) -> float | None:
    """Return the seconds to wait, from either form of the header (RFC 9110, section 10.2.3)."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None
