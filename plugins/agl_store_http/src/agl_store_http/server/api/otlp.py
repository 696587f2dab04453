"""The OTLP/HTTP routes, as exporters of every language call them."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Annotated

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from pydantic_core import to_json

from agl_core.errors import NotFoundError
from agl_core.store import MAX_SPAN_BYTES, EncodedSpan, LightningStore
from agl_store_http.server.api.common import SpanCall
from agl_store_http.server.dependencies import Call, raw_body
from agl_store_http.server.doors.routing import new_router
from agl_store_http.server.otlp.decoding import (
    JSON_TYPE,
    PROTOBUF_TYPE,
    OTLPError,
    decode_request,
    decompress,
)
from agl_store_http.server.otlp.spans import encode_spans, pending_spans
from agl_store_http.server.replies.reply import Reply
from agl_store_http.server.writers import Writer

__all__ = ["router"]

logger = logging.getLogger(__name__)

router = new_router("otlp", "/v1")

OTLPBody = Annotated[bytes, raw_body("application/x-protobuf", "application/json")]


class _ExportReply(Reply):
    media_type = "application/x-protobuf"


@router.post(
    "/traces",
    summary="Store spans from an OpenTelemetry exporter (OTLP/HTTP)",
    status_code=200,
    response_class=_ExportReply,
)
async def export_traces(call: SpanCall, body: OTLPBody) -> Reply:
    # Spans that name no known attempt are counted in the reply's ``partial_success``.
    headers, identity = call.headers, call.identity
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    store = call.store
    try:
        plain = decompress(
            body, headers.get(b"content-encoding", b""), call.app.options.max_body_bytes
        )
        message = await decode_request(plain, media_type)
        writer = await Writer.of(call)
        pending, unfit = await pending_spans(
            message, identity.rollout_id, identity.attempt_id, len(plain)
        )
        for item in pending:
            writer.mark(item.attributes)
            identity.require_attempt(item.rollout_id, item.attempt_id)
        unnumbered = [
            (item.rollout_id, item.attempt_id) for item in pending if item.sequence_id is None
        ]
        drawn = await store.get_many_span_sequence_ids(unnumbered) if unnumbered else ()
        for (rollout_id, _), number in zip(unnumbered, drawn, strict=True):
            call.app.issued.add(rollout_id, number)
        encoded = await encode_spans(pending, drawn)
        fit = [span for span in encoded if len(span.payload) <= MAX_SPAN_BYTES]
        if len(fit) < len(encoded):
            unfit[f"take more than {MAX_SPAN_BYTES} bytes as JSON"] += len(encoded) - len(fit)
        spans = await writer.finish(fit)
    except OTLPError as error:
        if media_type == JSON_TYPE:
            return _answer(call, error.status, to_json({"message": str(error)}), JSON_TYPE)
        return _answer(call, error.status, _status(str(error)), PROTOBUF_TYPE)
    rejected, reasons = await _store_known(store, spans)
    reasons += [f"{count} spans {reason}" for reason, count in unfit.items()]
    answer = ExportTraceServiceResponse()
    if reasons:
        answer.partial_success.rejected_spans = rejected + unfit.total()
        answer.partial_success.error_message = "; ".join(reasons)
        logger.warning("OTLP spans were dropped: %s", answer.partial_success.error_message)
    if media_type == JSON_TYPE:
        return _answer(call, 200, json_format.MessageToJson(answer).encode(), JSON_TYPE)
    return _answer(call, 200, answer.SerializeToString(), PROTOBUF_TYPE)


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


@router.post("/metrics", summary="Not taken: the store keeps traces only", status_code=501)
@router.post("/logs", summary="Not taken: the store keeps traces only", status_code=501)
@router.post(
    "/development/profiles", summary="Not taken: the store keeps traces only", status_code=501
)
async def not_implemented(call: SpanCall, body: OTLPBody) -> Reply:
    return Reply(b"", 501)


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


def _answer(call: Call, status: int, body: bytes, media_type: bytes) -> Reply:
    headers = [(b"content-type", media_type)]
    accepted = call.headers.get(b"accept-encoding", b"").lower().split(b",")
    if any(token.partition(b";")[0].strip() == b"gzip" for token in accepted):
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        body = packer.compress(body) + packer.flush()
        headers.append((b"content-encoding", b"gzip"))
    return Reply(body, status, headers)
