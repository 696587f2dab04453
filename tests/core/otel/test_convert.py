from __future__ import annotations

import json
from typing import Any

from hypothesis import given, strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from agl_core.otel._convert import to_attributes, to_span
from agl_core.types import OtelResource, Span


def readable(span: Any) -> ReadableSpan:
    """Return the snapshot of an SDK span that processors get; the SDK has no public method."""
    return span._readable_span()


def make_tracer():
    resource = Resource({"service.name": "test", "cores": 2}, schema_url="https://schema")
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    return provider.get_tracer("scope", "1.2")


def test_a_description_that_is_not_utf8_is_kept_as_far_as_it_is():
    with make_tracer().start_as_current_span("parse", set_status_on_exception=True) as span:
        span.set_status(Status(StatusCode.ERROR, "cannot parse '\ud83d'"))
    result = to_span(readable(span), "ro-1", "at-1", 5)
    assert result.model_dump_json()  # a lone surrogate has no JSON form
    assert (result.status.description or "").startswith("cannot parse")


def test_everything_a_span_says_is_kept():
    tracer = make_tracer()
    parent = tracer.start_span("parent")
    pointed_at = SpanContext(
        7, 9, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("k", "v")])
    )
    span = tracer.start_span(
        "child",
        context=set_span_in_context(parent),
        kind=SpanKind.CLIENT,
        attributes={"text": "é", "n": 1, "ids": [1, 2, 3], "words": ("a", "b"), "f": 0.5},
        links=[Link(pointed_at, {"why": "because"}), Link(pointed_at)],
        start_time=1_500_000_000,
    )
    span.add_event("happened", {"at": "once"}, timestamp=2_000_000_000)
    span.set_status(Status(StatusCode.ERROR, "broken"))
    span.end(3_000_000_000)
    result = to_span(readable(span), "ro-1", "at-1", 5)

    context = span.get_span_context()
    assert (result.rollout_id, result.attempt_id, result.sequence_id) == ("ro-1", "at-1", 5)
    assert result.trace_id == f"{context.trace_id:032x}"
    assert result.span_id == f"{context.span_id:016x}"
    assert result.parent_id == f"{parent.get_span_context().span_id:016x}"
    assert result.name == "child"
    assert result.status.model_dump() == {"status_code": "ERROR", "description": "broken"}
    assert result.attributes == {
        "text": "é",
        "n": 1,
        "ids": [1, 2, 3],
        "words": ["a", "b"],
        "f": 0.5,
    }
    assert (result.start_time, result.end_time) == (1.5, 3.0)
    assert [event.model_dump() for event in result.events] == [
        {"name": "happened", "attributes": {"at": "once"}, "timestamp": 2.0}
    ]
    assert [link.attributes for link in result.links] == [{"why": "because"}, None]
    assert result.links[0].context.model_dump() == {
        "trace_id": f"{7:032x}",
        "span_id": f"{9:016x}",
        "is_remote": True,
        "trace_state": {"k": "v"},
    }
    assert result.context is not None and result.context.span_id == result.span_id
    assert result.parent is not None and result.parent.span_id == result.parent_id
    assert result.resource == OtelResource(
        attributes={"service.name": "test", "cores": 2}, schema_url="https://schema"
    )
    assert result.model_extra == {
        "kind": "CLIENT",
        "instrumentation_scope": {"name": "scope", "version": "1.2"},
    }


def test_the_result_is_what_validation_would_make():
    span = make_tracer().start_span("x", attributes={"a": 1, "b": ["x"]})
    span.add_event("e")
    span.end()
    result = to_span(readable(span), "r", "a", 1)
    validated = Span.model_validate(json.loads(result.model_dump_json()))
    assert result == validated
    assert result.model_fields_set == validated.model_fields_set
    assert result.model_copy(update={"name": "y"}).name == "y"


def test_spans_share_nothing_that_can_change():
    tracer = make_tracer()
    one, two = (to_span(readable(tracer.start_span("x")), "r", "a", 1) for _ in range(2))
    one.resource.attributes["service.name"] = "changed"
    one.model_extra["instrumentation_scope"]["name"] = "changed"  # type: ignore[index]
    assert two.resource.attributes["service.name"] == "test"
    assert two.model_extra["instrumentation_scope"]["name"] == "scope"  # type: ignore[index]


def test_a_span_without_a_context_gets_zero_ids():
    bare = ReadableSpan("bare", resource=Resource({}))
    result = to_span(bare, "r", "a", 1)
    assert (result.trace_id, result.span_id) == ("0" * 32, "0" * 16)
    assert result.context is None and result.parent is None and result.parent_id is None
    assert (result.start_time, result.end_time) == (None, None)
    assert result.attributes == {} and result.events == [] and result.links == []
    assert "instrumentation_scope" not in (result.model_extra or {})


def test_values_the_model_cannot_hold_are_brought_into_shape():
    assert to_attributes(
        {
            "none": None,
            "bytes": b"\x01\xff",
            "mixed": (1, "two"),
            "numbers": (1, 2.5),
            "nested": {"a": {"b": b"\x02"}, "c": (1, 2)},
            "surrogate": "a\ud800b",
            "surrogates": ("\ud800",),
            "odd": 1j,
        }
    ) == {
        "bytes": "01ff",
        "mixed": '[1, "two"]',
        "numbers": [1.0, 2.5],
        "nested.a.b": "02",
        "nested.c": [1, 2],
        "surrogate": "a?b",
        "surrogates": ["?"],
        "odd": "1j",
    }
    assert to_attributes(None) == {}


# Floats that are not finite are encoded as text, because JSON has no number for them.
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | floats | st.text()
values = st.recursive(
    scalars | st.none() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=8,
)


@given(st.text(st.characters()), st.dictionaries(st.text(min_size=1), values, max_size=4))
def test_whatever_the_sdk_holds_survives_json(name: str, attributes: dict[str, object]):
    span = make_tracer().start_span(name, attributes=attributes)  # type: ignore[arg-type]
    result = to_span(readable(span), "r", "a", 1)
    assert Span.model_validate_json(result.model_dump_json()) == result
