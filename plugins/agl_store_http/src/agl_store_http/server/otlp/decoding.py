"""Bytes of an export request to its protobuf message."""

from __future__ import annotations

import asyncio
import base64
import zlib
from typing import Any, Final, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic_core import from_json

from agl_serving import HTTPError
from agl_store_http.server.bodies.schemas import MAX_BATCH as MAX_SPANS
from agl_store_http.server.bodies.weighing import check_weight
from agl_store_http.server.otlp.wire import TraceRequest, count_spans

__all__ = ["JSON_TYPE", "PROTOBUF_TYPE", "OTLPError", "decode_request", "decompress"]

PROTOBUF_TYPE: Final = b"application/x-protobuf"
JSON_TYPE: Final = b"application/json"

_WINDOWS: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
"""zlib's parameter by content coding (RFC 9110, section 8.4.1)."""
_MAX_DEPTH: Final = 64
"""Nested maps and lists. Recursion in protobuf's C code ends at 100."""
_MAX_FIELDS: Final = 100
"""Per span, in the mean: a traced agent has some tens."""
_UNCOUNTED_BYTES: Final = 2 * 1024 * 1024
"""A body this small holds few fields, and counting them takes time."""
_MAX_RATIO: Final = 100
"""Times that a gzip body may unfold, beyond the first megabyte: spans as text reach about 20."""
_FREE_BYTES: Final = 1024 * 1024


class OTLPError(Exception):
    """The body is not an export request; the reply is a google.rpc.Status."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Undo a content encoding.

    Args:
        body: The body as it came.
        encoding: Content-Encoding header: ``gzip`` or ``deflate``, the two of OpenTelemetry's
            exporters, or ``identity``.
        limit: Bytes that the result may have, whatever a small body claims to unfold to.

    Raises:
        OTLPError: The compressed body is corrupt, truncated or several (400) or too large (413), or
            the encoding is another one (415).
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in _WINDOWS:
        told = name.decode("latin-1")[:40]
        raise OTLPError(f"the encoding {told!r} is not supported; use gzip", status=415)
    shown = name.decode()
    limit = min(limit, _FREE_BYTES + _MAX_RATIO * len(body))
    inflate = zlib.decompressobj(_WINDOWS[name])
    try:
        plain = inflate.decompress(body, limit)
    except zlib.error as error:
        raise OTLPError(f"the {shown} body is corrupt: {error}") from error
    if inflate.unconsumed_tail:
        raise OTLPError(f"the body unfolds to more than {limit} bytes", status=413)
    if not inflate.eof:
        raise OTLPError(f"the {shown} body is truncated")
    if inflate.unused_data:
        raise OTLPError(f"the {shown} body goes on after its end; send one member")
    return plain


async def decode_request(body: bytes, media_type: bytes) -> Any:
    """Parse an export request into a :data:`~agl_store_http.server.otlp.wire.TraceRequest`.

    Raises:
        OTLPError: The media type is neither protobuf nor JSON, or the body does not parse.
    """
    if media_type == PROTOBUF_TYPE:
        if count_spans(body, MAX_SPANS) > MAX_SPANS:
            raise OTLPError(f"a request may hold {MAX_SPANS} spans", status=413)
        # An empty event takes 2 bytes, and as an object 50 times as much. In a small body that is
        # little, and counting takes time.
        most = MAX_SPANS * _MAX_FIELDS
        if len(body) > _UNCOUNTED_BYTES and count_spans(body, most, with_fields=True) > most:
            raise OTLPError(f"the spans of a request may hold {most} fields", status=413)
        try:
            return TraceRequest.FromString(body)
        except DecodeError as error:
            raise OTLPError(f"the body is not an ExportTraceServiceRequest: {error}") from error
    if media_type == JSON_TYPE:
        try:
            await check_weight(body)
        except HTTPError as error:
            raise OTLPError(str(error.detail), status=error.status) from None
        # Python code, which lets other threads run, and so the loop.
        encoded = await asyncio.to_thread(lambda: _from_json(body).SerializeToString())
        return await decode_request(encoded, PROTOBUF_TYPE)
    raise OTLPError(
        "Content-Type must be application/x-protobuf or application/json, "
        f"not {media_type.decode('latin-1')!r}"
    )


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    # OTLP/JSON differs from protobuf's own JSON mapping in one thing: trace and span ids are hex
    # where protobuf has base64 (OTLP specification, "JSON Protobuf Encoding").
    message = ExportTraceServiceRequest()
    try:
        document: Any = from_json(body or b"{}")
        json_format.ParseDict(
            _hex_ids_to_base64(document),
            message,
            ignore_unknown_fields=True,
            max_recursion_depth=_MAX_DEPTH,
        )
    except (ValueError, TypeError, AttributeError, json_format.ParseError) as error:
        raise OTLPError(f"the body is not an OTLP/JSON traces request: {error}") from error
    return message


_ID_KEYS: Final = frozenset(
    ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
)
_ID_HOLDERS: Final = frozenset(
    ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "links")
)


def _hex_ids_to_base64(node: Any) -> Any:
    """Return the document with its ids as protobuf's JSON mapping writes them.

    Only lists that can hold spans and links are entered: attributes may have such keys too.
    """
    if isinstance(node, list):
        return [_hex_ids_to_base64(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, Any]", node)
    changed = dict(fields)
    for key, value in fields.items():
        if key in _ID_KEYS and isinstance(value, str):
            changed[key] = base64.b64encode(bytes.fromhex(value)).decode()
        elif key in _ID_HOLDERS:
            changed[key] = _hex_ids_to_base64(value)
    return changed
