"""Tests that attributes computed on read look like attributes that were set immediately."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agl_core.otel._convert import to_attributes
from agl_tracer_otel.later import set_attributes_later

MANY: dict[str, Any] = {
    "text": "longer than five",
    "number": 1,
    "ids": list(range(600)),
    "floats": [0.5, -1.0],
    "flags": [True, False],
    "texts": ["first text", "b"],
    "mixed": [1, "a"],
    "nothing": None,
}


class Watched:
    """Returns attributes, and counts its calls."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.threads: list[threading.Thread] = []

    def __call__(self) -> dict[str, Any]:
        self.threads.append(threading.current_thread())
        return self.attributes


def start(**limits: int) -> Any:
    provider = TracerProvider(span_limits=SpanLimits(**limits), shutdown_on_exit=False)
    return provider.get_tracer("test").start_span("call", attributes={"first": 1})


def test_the_first_reader_computes_them_once():
    span, make = start(), Watched(MANY)
    set_attributes_later(span, make)
    span.end()
    assert make.threads == []
    readers = [threading.Thread(target=lambda: dict(span.attributes)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(make.threads) == 1 and make.threads[0] in readers
    assert span.attributes["ids"] == tuple(range(600))


def test_readers_wait_for_the_one_that_makes_them():
    span, begun, go_on = start(), threading.Event(), threading.Event()

    def make() -> dict[str, Any]:
        begun.set()
        assert go_on.wait(10)
        return {"late": 1}

    set_attributes_later(span, make)
    found: list[Any] = []

    def read() -> None:
        found.append(dict(span.attributes))

    readers = [threading.Thread(target=read) for _ in range(2)]
    readers[0].start()
    assert begun.wait(10)
    readers[1].start()
    go_on.set()
    for reader in readers:
        reader.join()
    assert found == [{"first": 1, "late": 1}] * 2


@pytest.mark.parametrize("limits", [{}, {"max_attributes": 4}, {"max_attribute_length": 5}])
def test_they_equal_attributes_that_were_set_immediately(limits: dict[str, int]):
    at_once, later = start(**limits), start(**limits)
    at_once.set_attributes(MANY)
    set_attributes_later(later, lambda: MANY)
    for span in (at_once, later):
        span.set_attribute("last", "x")
    if "max_attributes" in limits:  # the SDK determines which attributes are the oldest
        assert len(later.attributes) == len(at_once.attributes) == 4
        assert later.dropped_attributes == at_once.dropped_attributes > 0
    else:
        assert dict(later.attributes) == dict(at_once.attributes)
    assert later.attributes["last"] == "x"


def test_what_is_set_last_counts():
    span = start()
    set_attributes_later(span, lambda: {"a": 1, "b": 1, "c": 1})
    set_attributes_later(span, lambda: {"b": 2})
    span.set_attribute("c", 3)
    assert dict(span.attributes) == {"first": 1, "a": 1, "b": 2, "c": 3}
    assert to_attributes(span.attributes) == {"first": 1, "a": 1, "b": 2, "c": 3}


def test_exporters_of_the_application_see_them():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("call") as span:
        set_attributes_later(span, lambda: {"ids": [1, 2]})
    (seen,) = exporter.get_finished_spans()
    assert dict(seen.attributes or {}) == {"ids": (1, 2)}


def test_an_error_in_the_computation_is_logged_and_ignored(
    caplog: pytest.LogCaptureFixture,
):
    span = start()
    set_attributes_later(span, lambda: {"good": 1})
    set_attributes_later(span, lambda: {"bad": 1 / 0})
    with caplog.at_level(logging.ERROR):
        assert dict(span.attributes) == {"first": 1, "good": 1}
    assert "attributes of span 'call' could not be made" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_span_that_has_ended_or_records_nothing_is_left_alone():
    ended, make = start(), Watched(MANY)
    ended.end()
    set_attributes_later(ended, make)
    set_attributes_later(trace.INVALID_SPAN, make)
    assert dict(ended.attributes) == {"first": 1} and make.threads == []


def test_spans_of_another_sdk_get_them_immediately():
    class OtherSpan(trace.NonRecordingSpan):
        found: Any = None

        def is_recording(self) -> bool:
            return True

        def set_attributes(self, attributes: Any) -> None:
            self.found = attributes

    span = OtherSpan(trace.INVALID_SPAN_CONTEXT)
    set_attributes_later(span, lambda: {"a": 1})
    assert span.found == {"a": 1}
