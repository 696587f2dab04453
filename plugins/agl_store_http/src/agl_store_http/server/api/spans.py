"""Spans: one, many, their sequence ids, and reading them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agl_core.store.encoded import EncodedSpan, encode_span
from agl_core.types import Span
from agl_serving.messages import HTTPError
from agl_serving.tokens import Scope
from agl_store_http.server.api.common import ANYONE, PREFIX, page_arguments, page_json
from agl_store_http.server.endpoints import Endpoint, Request
from agl_store_http.server.otlp.routes import ENDPOINTS as OTLP_ENDPOINTS
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

__all__ = ["ENDPOINTS", "MAX_SEQUENCE_ID"]

MAX_SEQUENCE_ID: Final = 2**63 - 1
"""What a database can hold."""

_SPAN_WRITERS: Final[frozenset[Scope]] = frozenset({"algorithm", "runner", "attempt"})


async def add(request: Request) -> bytes:
    encoded = _encode(request.body)
    stored = await request.app.store.add_encoded_spans((encoded,))
    return encoded.payload if stored else b"null"


async def add_many(request: Request) -> bytes:
    body: SpanBatch = request.body
    encoded = [_encode(span) for span in body.spans]
    stored = await request.app.store.add_encoded_spans(encoded)
    duplicates = _positions_missing(encoded, stored) if len(stored) < len(encoded) else []
    return b'{"stored":%d,"duplicates":%b}' % (len(stored), str(duplicates).encode())


def _positions_missing(sent: Sequence[EncodedSpan], stored: Sequence[EncodedSpan]) -> list[int]:
    # By identity: a store returns the very objects it stored, and equal spans may stand twice.
    kept = {id(span) for span in stored}
    return [position for position, span in enumerate(sent) if id(span) not in kept]


def _encode(span: Span) -> EncodedSpan:
    if not -MAX_SEQUENCE_ID <= span.sequence_id <= MAX_SEQUENCE_ID:
        raise HTTPError(422, f"sequence_id {span.sequence_id} does not fit in 64 bits")
    return encode_span(span)


async def next_id(request: Request) -> bytes:
    body: SequenceIdRequest = request.body
    number = await request.app.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id)
    return b'{"sequence_id":%d}' % number


async def next_ids(request: Request) -> bytes:
    body: SequenceIdsRequest = request.body
    numbers = await request.app.store.get_many_span_sequence_ids(
        [(item.rollout_id, item.attempt_id) for item in body.ids]
    )
    return b'{"sequence_ids":%b}' % str(list(numbers)).encode()


async def query(request: Request) -> bytes:
    page = await request.app.store.query_encoded_spans(**page_arguments(request.body))
    return page_json(page, [span.payload for span in page.items])


def _of_body(request: Request) -> Iterable[tuple[str | None, str | None]]:
    return ((request.body.rollout_id, request.body.attempt_id),)


def _of_spans(request: Request) -> Iterable[tuple[str | None, str | None]]:
    return [(span.rollout_id, span.attempt_id) for span in request.body.spans]


def _of_ids(request: Request) -> Iterable[tuple[str | None, str | None]]:
    return [(item.rollout_id, item.attempt_id) for item in request.body.ids]


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        f"{PREFIX}/spans",
        add,
        "Store a span; null if it is stored already",
        _SPAN_WRITERS,
        body=Span,
        keeps_infinity=True,
        reply=Span | None,
        status=201,
        binding=_of_body,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/spans/batch",
        add_many,
        "Store spans as one step, skipping those stored already",
        _SPAN_WRITERS,
        body=SpanBatch,
        keeps_infinity=True,
        reply=BatchStored,
        status=201,
        binding=_of_spans,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/spans",
        query,
        "List the spans of a rollout",
        ANYONE,
        body=SpanQuery,
        query=True,
        reply=SpanPage,
        binding=_of_body,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/spans/search",
        query,
        "List the spans of a rollout (filters in the body)",
        ANYONE,
        body=SpanQuery,
        reply=SpanPage,
        binding=_of_body,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/spans/next",
        next_id,
        "Draw the rollout's next span sequence id",
        _SPAN_WRITERS,
        body=SequenceIdRequest,
        reply=SequenceId,
        binding=_of_body,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/spans/next/batch",
        next_ids,
        "Draw span sequence ids for many spans, in order",
        _SPAN_WRITERS,
        body=SequenceIdsRequest,
        reply=SequenceIds,
        binding=_of_ids,
    ),
    *OTLP_ENDPOINTS,
)
