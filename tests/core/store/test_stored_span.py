"""Spans as stores read them back: their JSON, with fields that are read from it when needed."""

from __future__ import annotations

import copy
import pickle
from unittest.mock import patch

import pytest
from pydantic import ValidationError

from agl_core.store import StoredSpan, decode_spans, encode_span
from agl_core.types import Span
from tests.tables import check_each

SPAN = Span.from_attributes(
    attributes={"agentlightning.reward.0.value": 0.5, "text": "é\0"},
    rollout_id="ro-1",
    attempt_id="at-1",
    sequence_id=7,
    trace_id="0" * 31 + "1",
    span_id="0" * 15 + "2",
    parent_id="0" * 15 + "3",
    name="a call",
    start_time=1.25,
    end_time=2.5,
)
FIELDS = (
    *("rollout_id", "attempt_id", "sequence_id", "trace_id", "span_id", "parent_id"),
    *("name", "start_time", "end_time"),
)


def test_a_stored_span_has_the_fields_of_the_span():
    def check(field: str) -> None:
        stored = StoredSpan(encode_span(SPAN).payload)  # each field is the first that is read
        assert getattr(stored, field) == getattr(SPAN, field)

    check_each(check, FIELDS)


def test_the_json_is_read_once_for_all_fields():
    stored = StoredSpan(encode_span(SPAN).payload)
    with patch.object(StoredSpan, "decode", autospec=True, side_effect=StoredSpan.decode) as decode:
        assert [getattr(stored, field) for field in FIELDS * 2]
        assert decode.call_count == 1


def test_a_stored_span_is_decoded_and_sent_without_reading_fields():
    encoded = encode_span(SPAN)
    stored = StoredSpan(encoded.payload)
    with patch.object(StoredSpan, "__getattr__", side_effect=AssertionError("a field was read")):
        assert stored.payload is encoded.payload
        assert stored.decode() == SPAN
        assert list(decode_spans([stored, stored])) == [SPAN, SPAN]


def test_a_stored_span_equals_the_encoded_one():
    encoded = encode_span(SPAN)
    stored = StoredSpan(encoded.payload)
    assert stored == encoded and hash(stored) == hash(encoded)
    assert repr(stored) == repr(encoded)


def test_a_stored_span_can_be_copied_and_pickled():
    stored = StoredSpan(encode_span(SPAN).payload)
    for again in (copy.copy(stored), pickle.loads(pickle.dumps(stored))):
        assert again.name == "a call" and again.payload == stored.payload


def test_an_unknown_attribute_is_named():
    with pytest.raises(AttributeError, match="'StoredSpan' object has no attribute 'nmae'"):
        StoredSpan(encode_span(SPAN).payload).nmae  # noqa: B018


def test_damaged_json_is_an_error_when_a_field_is_read():
    stored = StoredSpan(b'{"rollout_id":')
    assert stored.payload == b'{"rollout_id":'
    with pytest.raises(ValidationError):
        _ = stored.name
