"""The OTLP/HTTP routes, as exporters of every language call them."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Final

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from pydantic_core import to_json

from agl_core.errors import NotFoundError
from agl_core.store.base import LightningStore
from agl_core.store.encoded import EncodedSpan
from agl_serving.messages import Response
from agl_serving.tokens import Scope
from agl_store_http.server.endpoints import Endpoint, Request
from agl_store_http.server.otlp.decoding import (
    JSON_TYPE,
    PROTOBUF_TYPE,
    OTLPError,
    decode_request,
    decompress,
)
from agl_store_http.server.otlp.spans import encode_spans, pending_spans

__all__ = ["ENDPOINTS"]

logger = logging.getLogger(__name__)

_WRITERS: Final[frozenset[Scope]] = frozenset({"algorithm", "runner", "attempt"})


async def export_traces(request: Request) -> Response:
    """Store the spans; those that belong nowhere are counted in ``partial_success``."""
    headers, identity = request.headers, request.identity
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    try:
        body = decompress(
            request.body, headers.get(b"content-encoding", b""), request.app.max_body_bytes
        )
        message = decode_request(body, media_type)
    except OTLPError as error:
        if media_type == JSON_TYPE:
            return _answer(request, error.status, to_json({"message": str(error)}), JSON_TYPE)
        return _answer(request, error.status, _status(str(error)), PROTOBUF_TYPE)
    pending, homeless = pending_spans(message, identity.rollout_id, identity.attempt_id)
    for item in pending:
        identity.require_attempt(item.rollout_id, item.attempt_id)
    store = request.app.store
    unnumbered = [
        (item.rollout_id, item.attempt_id) for item in pending if item.sequence_id is None
    ]
    drawn = await store.get_many_span_sequence_ids(unnumbered) if unnumbered else ()
    rejected, reasons = await _store_known(store, encode_spans(pending, drawn))
    if homeless:
        reasons.append(f"{homeless} spans name no rollout and attempt")
    answer = ExportTraceServiceResponse()
    if reasons:
        answer.partial_success.rejected_spans = rejected + homeless
        answer.partial_success.error_message = "; ".join(reasons)
        logger.warning("OTLP spans were dropped: %s", answer.partial_success.error_message)
    if media_type == JSON_TYPE:
        return _answer(request, 200, json_format.MessageToJson(answer).encode(), JSON_TYPE)
    return _answer(request, 200, answer.SerializeToString(), PROTOBUF_TYPE)


async def _store_known(
    store: LightningStore, spans: Sequence[EncodedSpan]
) -> tuple[int, list[str]]:
    """Store all spans whose attempts exist; return how many have none, and why."""
    if not spans:
        return 0, []
    try:
        await store.add_encoded_spans(spans)
    except NotFoundError:
        # One unknown attempt refuses the whole batch; find out which it is.
        groups: dict[tuple[str, str], list[EncodedSpan]] = {}
        for span in spans:
            groups.setdefault((span.rollout_id, span.attempt_id), []).append(span)
        rejected, reasons = 0, list[str]()
        for group in groups.values():
            try:
                await store.add_encoded_spans(group)
            except NotFoundError as error:
                rejected += len(group)
                reasons.append(f"{len(group)} spans: {error}")
        return rejected, reasons
    return 0, []


async def not_implemented(_: Request) -> Response:
    return Response(501, b"")


def _status(message: str) -> bytes:
    """A google.rpc.Status with its ``message`` (field 2, a string) set, as OTLP/HTTP asks for."""
    text = message.encode()
    size = bytearray()
    length = len(text)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return b"\x12" + bytes(size) + text


def _answer(request: Request, status: int, body: bytes, media_type: bytes) -> Response:
    headers = [(b"content-type", media_type)]
    accepted = request.headers.get(b"accept-encoding", b"").lower().split(b",")
    if any(token.partition(b";")[0].strip() == b"gzip" for token in accepted):
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        body = packer.compress(body) + packer.flush()
        headers.append((b"content-encoding", b"gzip"))
    return Response(status, body, headers)


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/v1/traces",
        export_traces,
        "Store spans from an OpenTelemetry exporter (OTLP/HTTP)",
        _WRITERS,
        takes=("application/x-protobuf", "application/json"),
        produces="application/x-protobuf",
    ),
    *(
        Endpoint(
            "POST",
            path,
            not_implemented,
            "Not taken: the store keeps traces only",
            _WRITERS,
            status=501,
            takes=("application/x-protobuf", "application/json"),
        )
        for path in ("/v1/metrics", "/v1/logs", "/v1/development/profiles")
    ),
)
