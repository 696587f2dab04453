"""Spans: one, many, their sequence ids, and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Query

from agl_core.store import MAX_SPAN_ATTRIBUTES, EncodedSpan, encode_span
from agl_core.types import Span
from agl_serving import HTTPError
from agl_store_http.server.api.common import AnyCall, SpanCall, page_arguments, page_json
from agl_store_http.server.dependencies import Call, json_body
from agl_store_http.server.replies import Reply
from agl_store_http.server.routing import PREFIX, answers, new_router
from agl_store_http.server.schemas import (
    BatchStored,
    SequenceId,
    SequenceIdRequest,
    SequenceIds,
    SequenceIdsRequest,
    SpanBatch,
    SpanPage,
    SpanQuery,
)

__all__ = ["MAX_SEQUENCE_ID", "router"]

router = new_router("spans", f"{PREFIX}/spans")

MAX_SEQUENCE_ID: Final = 2**63 - 1
"""Largest integer of a database column."""
MAX_SPAN_KEYS: Final = 2 * MAX_SPAN_ATTRIBUTES
"""Most keys and objects in a span's JSON, events and links included."""
MAX_BATCH_KEYS: Final = 16 * MAX_SPAN_ATTRIBUTES
"""Most keys and objects in the spans of one request."""


@router.post("", summary="Store a span; null if it is stored already", **answers(201, Span | None))
async def add(
    call: SpanCall,
    body: Annotated[Span, json_body(Span, keeps_infinity=True, max_keys=MAX_SPAN_KEYS)],
) -> Reply:
    call.identity.require_attempt(body.rollout_id, body.attempt_id)
    encoded = _encode(body)
    stored = await call.store.add_encoded_spans((encoded,))
    return Reply(encoded.payload if stored else b"null", 201)


@router.post(
    "/batch",
    summary="Store spans as one step, skipping those stored already",
    **answers(201, BatchStored),
)
async def add_many(
    call: SpanCall,
    body: Annotated[SpanBatch, json_body(SpanBatch, keeps_infinity=True, max_keys=MAX_BATCH_KEYS)],
) -> Reply:
    for span in body.spans:
        call.identity.require_attempt(span.rollout_id, span.attempt_id)
    encoded = [_encode(span) for span in body.spans]
    stored = await call.store.add_encoded_spans(encoded)
    duplicates = _positions_missing(encoded, stored) if len(stored) < len(encoded) else []
    body_json = b'{"stored":%d,"duplicates":%b}' % (len(stored), str(duplicates).encode())
    return Reply(body_json, 201)


def _positions_missing(sent: Sequence[EncodedSpan], stored: Sequence[EncodedSpan]) -> list[int]:
    # By identity: a store returns the very objects it stored, and equal spans may stand twice.
    kept = {id(span) for span in stored}
    return [position for position, span in enumerate(sent) if id(span) not in kept]


def _encode(span: Span) -> EncodedSpan:
    if not -MAX_SEQUENCE_ID <= span.sequence_id <= MAX_SEQUENCE_ID:
        raise HTTPError(422, f"sequence_id {span.sequence_id} does not fit in 64 bits")
    return encode_span(span)


async def _page(call: Call, query: SpanQuery) -> Reply:
    call.identity.require_attempt(query.rollout_id, query.attempt_id)
    page = await call.store.query_encoded_spans(**page_arguments(query))
    return Reply(page_json(page, [span.payload for span in page.items]))


@router.get("", summary="List the spans of a rollout", **answers(200, SpanPage))
async def query(call: AnyCall, query: Annotated[SpanQuery, Query()]) -> Reply:
    return await _page(call, query)


@router.post(
    "/search",
    summary="List the spans of a rollout (filters in the body)",
    **answers(200, SpanPage),
)
async def search(call: AnyCall, body: Annotated[SpanQuery, json_body(SpanQuery)]) -> Reply:
    return await _page(call, body)


@router.post(
    "/next", summary="Draw the rollout's next span sequence id", **answers(200, SequenceId)
)
async def next_id(
    call: SpanCall, body: Annotated[SequenceIdRequest, json_body(SequenceIdRequest)]
) -> Reply:
    call.identity.require_attempt(body.rollout_id, body.attempt_id)
    number = await call.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id)
    return Reply(b'{"sequence_id":%d}' % number)


@router.post(
    "/next/batch",
    summary="Draw span sequence ids for many spans, in order",
    **answers(200, SequenceIds),
)
async def next_ids(
    call: SpanCall, body: Annotated[SequenceIdsRequest, json_body(SequenceIdsRequest)]
) -> Reply:
    for item in body.ids:
        call.identity.require_attempt(item.rollout_id, item.attempt_id)
    numbers = await call.store.get_many_span_sequence_ids(
        [(item.rollout_id, item.attempt_id) for item in body.ids]
    )
    return Reply(b'{"sequence_ids":%b}' % str(list(numbers)).encode())
