from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from agl_core.otel import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)
from agl_core.otel._convert import to_span
from agl_core.semconv import LinkPydanticModel
from agl_core.types import Span


def readable(span: Any) -> ReadableSpan:
    """Return the snapshot of an SDK span that processors get; the SDK has no public method."""
    return span._readable_span()


def test_tags_come_back_in_order():
    attributes = make_tag_attributes(["slow", "flaky"])
    assert attributes == {"agentlightning.tag.0": "slow", "agentlightning.tag.1": "flaky"}
    assert extract_tags_from_attributes({**attributes, "other": 1}) == ["slow", "flaky"]
    assert extract_tags_from_attributes({}) == []


def test_links_come_back_in_order():
    attributes = make_link_attributes({"gen_ai.response.id": "r1", "span_id": "ab"})
    assert attributes["agentlightning.link.0.key_match"] == "gen_ai.response.id"
    assert extract_links_from_attributes(attributes) == [
        LinkPydanticModel(key_match="gen_ai.response.id", value_match="r1"),
        LinkPydanticModel(key_match="span_id", value_match="ab"),
    ]
    assert extract_links_from_attributes({}) == []


def test_malformed_tags_and_links_are_refused():
    with pytest.raises(ValueError, match="string for key and value"):
        make_link_attributes({"k": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="number strings"):
        extract_tags_from_attributes({"agentlightning.tag.1": "x"})
    with pytest.raises(ValueError, match="number links"):
        extract_links_from_attributes({"agentlightning.link.x.key_match": "x"})
    with pytest.raises(ValueError, match="value_match"):
        extract_links_from_attributes({"agentlightning.link.0.key_match": "x"})


def test_a_span_must_meet_every_link():
    spans = [
        Span.from_attributes(attributes={"id": "1", "n": 1}, span_id="a" * 16),
        Span.from_attributes(attributes={"id": "1", "n": 2}, span_id="b" * 16),
    ]

    def linked(**links: str) -> list[Span]:
        return query_linked_spans(spans, extract_links_from_attributes(make_link_attributes(links)))

    assert linked() == spans
    assert linked(id="1") == spans
    assert linked(id="1", span_id="b" * 16) == [spans[1]]
    assert linked(trace_id=spans[0].trace_id) == [spans[0]]
    assert linked(n="1") == []  # the attribute is the number 1, not the text
    assert linked(absent="1") == []


def test_links_find_spans_of_the_sdk_too():
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    first, second = (readable(tracer.start_span("x")) for _ in range(2))
    ours = to_span(second, "r", "a", 1)
    by_id = make_link_attributes({"trace_id": ours.trace_id, "span_id": ours.span_id})
    assert query_linked_spans([first, second], extract_links_from_attributes(by_id)) == [second]
