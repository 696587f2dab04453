"""Tests of emitted messages, objects and exceptions."""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
from hypothesis import given, strategies as st

from agl_core.emitter import (
    emit_exception,
    emit_message,
    emit_object,
    get_message_value,
    get_object_value,
)
from agl_core.emitter._values import _encode
from agl_core.types import Span


def span_with(**attributes: object) -> Span:
    keys = {f"agentlightning.{key.replace('_', '.')}": value for key, value in attributes.items()}
    return Span.from_attributes(attributes=keys)  # type: ignore[arg-type]


async def test_a_message_comes_back(recorder):
    emit_message("héllo", attributes={"turn": 1, "extra": {"deep": object}})
    span = recorder.span
    assert (span.name, span.status.status_code) == ("agentlightning.message", "UNSET")
    assert get_message_value(span) == "héllo"
    assert span.attributes["turn"] == 1
    assert span.attributes["extra.deep"] == "\"<class 'object'>\""


def test_messages_are_text():
    with pytest.raises(TypeError, match="emit_object"):
        emit_message(5)  # type: ignore[arg-type]
    assert get_message_value(span_with()) is None
    with pytest.raises(TypeError, match="not int"):
        get_message_value(span_with(message_body=5))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("text", "str"),
        (5, "int"),
        (1.5, "float"),
        (True, "bool"),
        (False, "bool"),
        (b"\x00\xff", "bytes"),
        (None, "NoneType"),
        ([1, {"a": None}], "list"),
        (OrderedDict(a=1), "collections.OrderedDict"),
    ],
)
async def test_an_object_comes_back(recorder, value, kind: str):
    emit_object(value, attributes={"note": "n"})
    span = recorder.span
    assert (span.name, span.status.status_code) == ("agentlightning.object", "OK")
    assert span.attributes["agentlightning.object.type"] == kind
    assert span.attributes["note"] == "n"
    result = get_object_value(span)
    assert result == value
    if not isinstance(value, OrderedDict):
        assert type(result) is type(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
    | st.binary()
)
def test_any_json_value_comes_back(value: object):
    span = Span.from_attributes(attributes=_encode(value))
    assert get_object_value(span) == value


async def test_nan_comes_back(recorder):
    emit_object(math.nan)
    assert math.isnan(get_object_value(recorder.span))


async def test_an_object_without_a_json_form_is_refused(recorder):
    with pytest.raises(RuntimeError, match="type set has no JSON form"):
        emit_object({1, 2})
    assert recorder.spans == []


def test_unreadable_objects_raise():
    assert get_object_value(span_with()) is None
    for wrong in (
        {"object_json": "{"},
        {"object_json": 5},
        {"object_type": "complex", "object_literal": "1j"},
        {"object_type": "int", "object_literal": "one"},
        {"object_type": "bool", "object_literal": "yes"},
        {"object_type": "bytes", "object_literal": "%%%"},
        {"object_literal": "x"},
    ):
        with pytest.raises(RuntimeError, match=r"agentlightning\.object"):
            get_object_value(span_with(**wrong))


async def test_an_exception_is_recorded_with_its_traceback(recorder):
    try:
        raise LookupError("gone")
    except LookupError as error:
        emit_exception(error, attributes={"retry": 1})
    span = recorder.span
    assert (span.name, span.status.status_code) == ("agentlightning.exception", "OK")
    assert span.attributes["exception.type"] == "LookupError"
    assert span.attributes["exception.message"] == "gone"
    assert span.attributes["exception.escaped"] is True
    assert "raise LookupError" in str(span.attributes["exception.stacktrace"])
    assert span.attributes["retry"] == 1


def test_only_exceptions_are_exceptions():
    with pytest.raises(TypeError, match="emit_message"):
        emit_exception("oops")  # type: ignore[arg-type]


def test_all_of_them_need_a_tracer_or_stay_here():
    for emit in (
        lambda **kw: emit_message("x", **kw),
        lambda **kw: emit_object("x", **kw),
        lambda **kw: emit_exception(KeyError(), **kw),
    ):
        with pytest.raises(RuntimeError, match="within a rollout"):
            emit()
        emit(propagate=False)
