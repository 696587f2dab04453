"""Encoding of spans as OTLP, and decoding by the store server."""

from __future__ import annotations

import asyncio
import hashlib
import math
from typing import Any

from hypothesis import given, strategies as st
from pydantic_core import from_json

from agl_core.types import Event, Link, OtelResource, Span, SpanContext, TraceStatus
from agl_store_http.server.otlp.decoding import PROTOBUF_TYPE, decode_request
from agl_store_http.server.otlp.spans import encode_spans, pending_spans
from agl_trace.otlp.encode import to_export_request

TRACE, ONE, TWO = "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "b7ad6b7169203331"


def make(**fields: Any) -> Span:
    said: dict[str, Any] = {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "sequence_id": 7,
        "name": "step",
        "trace_id": TRACE,
        "span_id": ONE,
        "start_time": 1_700_000_000.5,
        "end_time": 1_700_000_001.25,
        "attributes": {},
        **fields,
    }
    extra = {key: said.pop(key) for key in ("events", "links", "kind", "scope") if key in said}
    span = Span.from_attributes(**said)
    if "scope" in extra:
        extra["instrumentation_scope"] = extra.pop("scope")
    return Span.model_validate({**span.model_dump(), **extra})


def decode(request: Any) -> list[dict[str, Any]]:
    message = asyncio.run(decode_request(request.SerializeToString(), PROTOBUF_TYPE))
    found, rejected = asyncio.run(pending_spans(message, None, None, 0))
    assert not rejected
    return [from_json(span.payload) for span in asyncio.run(encode_spans(found, ()))]


def test_the_server_reads_back_what_was_encoded():
    context = SpanContext(trace_id=TRACE, span_id=TWO, is_remote=False, trace_state={})
    span = make(
        parent_id=TWO,
        status=TraceStatus(status_code="ERROR", description="it broke: ü"),
        attributes={"s": "ü", "b": True, "i": -3, "f": 0.25, "ids": [1, 2, 3], "names": ["a"]},
        events=[Event(name="e", attributes={"x": 1}, timestamp=1_700_000_000.75)],
        links=[Link(context=context, attributes={"why": "it"})],
        resource=OtelResource(attributes={"service.name": "agent"}, schema_url="http://schema"),
        kind="CLIENT",
        scope={"name": "openai", "version": "1.2"},
    )
    request = to_export_request([span])
    (back,) = decode(request)
    assert back == {
        **span.model_dump(exclude={"kind", "instrumentation_scope"}),
        "attributes": {**span.attributes, "agentlightning.span_sequence_id": 7},
        "resource": {
            "attributes": {
                "service.name": "agent",
                "agentlightning.rollout_id": "ro-1",
                "agentlightning.attempt_id": "at-1",
            },
            "schema_url": "http://schema",
        },
        "parent": None,
    }
    scope = request.resource_spans[0].scope_spans[0]
    assert (scope.scope.name, scope.scope.version) == ("openai", "1.2")
    assert scope.spans[0].kind == 3


def test_spans_are_grouped_by_where_they_came_from():
    spans = [
        make(span_id=f"{n:016x}", attempt_id=f"at-{n % 2}", scope={"name": f"s{n % 3}"})
        for n in range(1, 13)
    ]
    request = to_export_request(spans)
    assert [len(group.scope_spans) for group in request.resource_spans] == [3, 3]
    assert sorted(span["span_id"] for span in decode(request)) == [s.span_id for s in spans]


def test_without_routing_no_attribute_is_added():
    (group,) = to_export_request([make()], routing=False, numbered=False).resource_spans
    assert not group.resource.attributes
    assert not group.scope_spans[0].spans[0].attributes


def test_ids_of_other_shapes_are_hashed_alike_everywhere():
    spans = [make(span_id="call-1"), make(span_id="0" * 16, parent_id="call-1", trace_id="t")]
    one, two = (
        to_export_request([span]).resource_spans[0].scope_spans[0].spans[0] for span in spans
    )
    assert one.span_id == two.parent_span_id == hashlib.blake2b(b"call-1", digest_size=8).digest()
    assert len(two.trace_id) == 16
    assert any(two.span_id)  # an id of zeros is invalid


def test_times_that_are_unknown():
    def times(start: float | None, end: float | None) -> tuple[int, int]:
        request = to_export_request([make(start_time=start, end_time=end)])
        span = request.resource_spans[0].scope_spans[0].spans[0]
        return span.start_time_unix_nano, span.end_time_unix_nano

    assert times(None, 2.0) == times(2.0, None) == times(2.0, 1.0) == (2 * 10**9, 2 * 10**9)
    assert times(None, None) == times(math.nan, -math.inf) == (0, 0)
    assert times(1.0, 1e300) == (10**9, 10**9)  # more than 64 bits: unknown


scalars = st.one_of(st.text(max_size=5), st.booleans(), st.integers(), st.floats())
values = st.one_of(scalars, *(st.lists(kind, max_size=3) for kind in (st.text(), st.booleans())))


@given(st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=5), st.text(max_size=5))
def test_anything_a_span_may_hold_is_encoded(attributes, name):
    span = make(name=name or "x").model_copy(update={"attributes": attributes})
    (back,) = decode(to_export_request([span]))
    found = {k: v for k, v in back["attributes"].items() if not k.startswith("agentlightning.")}
    assert set(found) == {clean(key) for key in attributes}
    for key, value in attributes.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            assert found[key] == str(value)
        elif isinstance(value, (bool, int)):
            assert found[clean(key)] == value


def clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
