import json
import math

import pytest
from pydantic import ValidationError

from agl_core import semconv
from agl_core.types import Span, SpanCoreFields, TraceStatus


def test_from_attributes_fills_in_neutral_values():
    span = Span.from_attributes(attributes={"a": 1})
    assert (span.rollout_id, span.attempt_id, span.sequence_id) == ("", "", 0)
    assert span.name == semconv.SPAN_VIRTUAL
    assert span.status.status_code == "OK"
    assert (span.events, span.links, span.start_time, span.end_time) == ([], [], None, None)
    assert len(span.trace_id) == 32
    assert len(span.span_id) == 16
    assert span.parent is None
    assert span.context is not None
    assert (span.context.trace_id, span.context.span_id) == (span.trace_id, span.span_id)
    assert span.context.is_remote is False


def test_from_attributes_builds_the_parent_context_in_the_same_trace():
    span = Span.from_attributes(attributes={}, trace_id="ab" * 16, parent_id="cd" * 8)
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == ("ab" * 16, "cd" * 8)


def test_from_attributes_copies_what_it_is_given():
    attributes: dict[str, str] = {"a": "b"}
    span = Span.from_attributes(attributes=attributes)
    attributes["a"] = "changed"
    assert span.attributes == {"a": "b"}


def test_from_core_fields_starts_now_only_if_the_core_has_no_start():
    core = SpanCoreFields(
        name="x",
        status=TraceStatus(status_code="ERROR", description="no"),
        attributes={"k": [1, 2]},
        start_time=5.0,
        end_time=None,
    )
    span = Span.from_core_fields(core, rollout_id="r", attempt_id="a", sequence_id=7)
    assert (span.start_time, span.end_time, span.sequence_id) == (5.0, None, 7)
    assert span.status == core.status
    core.start_time = None
    assert (Span.from_core_fields(core).start_time or 0) > 1e9


def test_unknown_keys_of_a_span_survive_a_round_trip():
    raw = json.loads(Span.from_attributes(attributes={}).model_dump_json())
    raw["kind"] = "CLIENT"
    raw["status"]["extra"] = [1]
    span = Span.model_validate(raw)
    assert json.loads(span.model_dump_json()) == raw


def test_every_key_of_a_span_is_required():
    raw = json.loads(Span.from_attributes(attributes={}).model_dump_json())
    for key in Span.model_fields:
        with pytest.raises(ValidationError, match=key):
            Span.model_validate({k: v for k, v in raw.items() if k != key})


def test_numbers_that_json_lacks_are_written_as_strings():
    span = Span.from_attributes(attributes={"bad": math.nan, "big": math.inf})
    text = span.model_dump_json()
    assert json.loads(text)["attributes"] == {"bad": "NaN", "big": "Infinity"}


@pytest.mark.parametrize("value", [None, {"nested": 1}, object(), [1, "two"], [[1]]])
def test_attribute_values_are_primitives_or_flat_lists(value):
    with pytest.raises(ValidationError):
        Span.from_attributes(attributes={"a": value})


@pytest.mark.parametrize("value", ["1", True, 1, 1.5, ["a"], [True], [1], [0.5], []])
def test_attribute_values_keep_their_type(value):
    span = Span.from_attributes(attributes={"a": value})
    read = Span.model_validate_json(span.model_dump_json()).attributes["a"]
    assert read == value
    assert type(read) is type(value)
