"""Sample values for tests of code that handles spans, rollouts and resources."""

from __future__ import annotations

from typing import Any

from agl_core import semconv
from agl_core.types import (
    LLM,
    AttemptedRollout,
    AttributeValue,
    Event,
    Link,
    NamedResources,
    OtelResource,
    PromptTemplate,
    ProxyLLM,
    Span,
    SpanContext,
    TraceStatus,
)

__all__ = ["full_span", "named_resources", "reward_span", "span_of"]


def span_of(
    rollout: AttemptedRollout,
    sequence_id: int = 1,
    *,
    name: str = "work",
    attempt_id: str | None = None,
    span_id: str | None = None,
    attributes: dict[str, AttributeValue] | None = None,
    **fields: Any,
) -> Span:
    """Return a small span of a rollout's attempt."""
    return Span.from_attributes(
        attributes=attributes or {},
        rollout_id=rollout.rollout_id,
        attempt_id=attempt_id or rollout.attempt.attempt_id,
        sequence_id=sequence_id,
        name=name,
        span_id=span_id,
        start_time=float(sequence_id),
        end_time=sequence_id + 0.5,
        **fields,
    )


def reward_span(rollout: AttemptedRollout, value: float, sequence_id: int = 1) -> Span:
    """Return a reward span as emitters write it."""
    return span_of(
        rollout,
        sequence_id,
        name=semconv.SPAN_ANNOTATION,
        attributes={
            f"{semconv.REWARD}.0.name": semconv.PRIMARY_REWARD,
            semconv.PRIMARY_REWARD_VALUE: value,
        },
    )


def full_span(rollout: AttemptedRollout, sequence_id: int = 1) -> Span:
    """Return a span that uses every field, with values that a careless store changes."""
    context = SpanContext(
        trace_id="0a" * 16, span_id="0b" * 8, is_remote=True, trace_state={"vendor": "x=1"}
    )
    return Span(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=sequence_id,
        trace_id="0a" * 16,
        span_id="0c" * 8,
        parent_id="0b" * 8,
        name="full \u2603 \U0001f680 'quoted' \"double\" \\ \n line",
        status=TraceStatus(status_code="ERROR", description="it\u2019s broken\x00"),
        attributes={
            "text": "\u00e9\u4e2d\u6587\U0001f680\t\x00",
            "empty": "",
            "yes": True,
            "integer": 2**53 + 1,
            "negative": -1,
            "float": 0.1 + 0.2,
            "tiny": 5e-324,
            "whole": 1.0,
            "texts": ["a", "", "\u2603"],
            "flags": [True, False],
            "integers": [1, 2, 3],
            "floats": [0.5, 1.0],
            "none": [],
            "dotted.key.0.name": "value",
            "$dollar": "key",
            "": "empty key",
        },
        events=[Event(name="event", attributes={"k": [1]}, timestamp=1.25)],
        links=[Link(context=context, attributes={"l": "v"}), Link(context=context)],
        start_time=1700000000.123456,
        end_time=None,
        context=context,
        parent=context,
        resource=OtelResource(attributes={"service.name": "s"}, schema_url="http://schema"),
        kind="CLIENT",  # pyright: ignore[reportCallIssue] -- an extra key, which must survive
    )


def named_resources(template: str = "Answer {question}.") -> NamedResources:
    """Return one resource of each built-in type, in an order that is not alphabetical."""
    return {
        "prompt": PromptTemplate(template=template, engine="f-string"),
        "llm": LLM(endpoint="http://127.0.0.1:1/v1", model="m", sampling_parameters={"n": 1}),
        "a_proxy": ProxyLLM(endpoint="http://127.0.0.1:1/v1", model="m", api_key="k"),
    }
