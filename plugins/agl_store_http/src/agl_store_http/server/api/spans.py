"""Spans: one, many, their sequence ids, and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, Query, Response

from agl_core.store import EncodedSpan
from agl_core.types import PaginatedResult, Span
from agl_store_http.server.api.common import AlgorithmCall, AnyCall, SpanCall, page_arguments
from agl_store_http.server.bodies.schemas import (
    BatchStored,
    SequenceId,
    SequenceIdRequest,
    SequenceIds,
    SequenceIdsRequest,
    SpanPage,
    SpanQuery,
)
from agl_store_http.server.bodies.span_bodies import BatchBody, SpanBody
from agl_store_http.server.dependencies import Call, json_body
from agl_store_http.server.doors.routing import PREFIX, answers, new_router
from agl_store_http.server.replies.pages import Listing, page_reply
from agl_store_http.server.replies.reply import Reply

__all__ = ["router"]

router = new_router("spans", f"{PREFIX}/spans")


@router.post("", summary="Store a span; null if it is stored already", **answers(201, Span | None))
async def add(
    call: SpanCall,
    body: Annotated[EncodedSpan, Depends(SpanBody())],
) -> Reply:
    stored = await call.store.add_encoded_spans((body,))
    return Reply(body.payload if stored else b"null", 201)


@router.post(
    "/batch",
    summary="Store spans as one step, skipping those stored already",
    **answers(201, BatchStored),
)
async def add_many(
    call: SpanCall,
    body: Annotated[Sequence[EncodedSpan], Depends(BatchBody())],
) -> Reply:
    stored = await call.store.add_encoded_spans(body)
    duplicates = _positions_missing(body, stored) if len(stored) < len(body) else []
    body_json = b'{"stored":%d,"duplicates":%b}' % (len(stored), str(duplicates).encode())
    return Reply(body_json, 201)


@router.post(
    "/import",
    summary="Store spans of another store, keeping who wrote them and which came late",
    **answers(201, BatchStored),
)
async def take_in(
    call: AlgorithmCall,
    body: Annotated[Sequence[EncodedSpan], Depends(BatchBody(keeps_marks=True))],
) -> Reply:
    return await add_many(call, body)


def _positions_missing(sent: Sequence[EncodedSpan], stored: Sequence[EncodedSpan]) -> list[int]:
    # By identity: a store returns the very objects it stored, and equal spans may stand twice.
    kept = {id(span) for span in stored}
    return [position for position, span in enumerate(sent) if id(span) not in kept]


async def _page(call: Call, query: SpanQuery) -> Response:
    call.identity.require_attempt(query.rollout_id, query.attempt_id)
    arguments = page_arguments(query)

    async def read(limit: int, offset: int) -> PaginatedResult[EncodedSpan]:
        page: dict[str, Any] = {**arguments, "limit": limit, "offset": offset}
        return await call.store.query_encoded_spans(**page)

    listing = Listing(read, _payload, name=_payload)  # a span never changes
    return await page_reply(call, listing, query.limit, query.offset)


def _payload(span: EncodedSpan) -> bytes:
    return span.payload


@router.get("", summary="List the spans of a rollout", **answers(200, SpanPage))
async def query(call: AnyCall, query: Annotated[SpanQuery, Query()]) -> Response:
    return await _page(call, query)


@router.post(
    "/search",
    summary="List the spans of a rollout (filters in the body)",
    **answers(200, SpanPage),
)
async def search(call: AnyCall, body: Annotated[SpanQuery, json_body(SpanQuery)]) -> Response:
    return await _page(call, body)


@router.post(
    "/next", summary="Draw the rollout's next span sequence id", **answers(200, SequenceId)
)
async def next_id(
    call: SpanCall, body: Annotated[SequenceIdRequest, json_body(SequenceIdRequest)]
) -> Reply:
    call.identity.require_attempt(body.rollout_id, body.attempt_id)
    number = await call.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id)
    call.app.issued.add(body.rollout_id, number)
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
    for item, number in zip(body.ids, numbers, strict=True):
        call.app.issued.add(item.rollout_id, number)
    return Reply(b'{"sequence_ids":%b}' % str(list(numbers)).encode())
