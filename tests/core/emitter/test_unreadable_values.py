"""Values and exceptions without a readable text: they are recorded and break no agent."""

from __future__ import annotations

from typing import Any

import pytest

from agl_core.emitter import emit_annotation, emit_exception, emit_message, emit_object, operation
from agl_core.tracer import Tracer
from agl_tracer_dummy import DummyTracer
from agl_tracer_otel import OtelTracer


class NoText:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoMessage(NoText, Exception):
    pass


@operation
def echo(value: Any) -> Any:
    return value


@operation
def fail() -> None:
    raise NoMessage


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return raised


@pytest.mark.parametrize("tracer", [OtelTracer(), DummyTracer()], ids=["otel", "dummy"])
async def test_they_are_recorded(tracer: Tracer) -> None:
    with tracer.lifespan():
        async with tracer.trace_context():
            emit_exception(_raised(NoMessage()))
            emit_exception(_raised(ValueError("bad \ud800 text")))
            emit_message("a \ud800")
            emit_object("a \ud800")
            emit_annotation({"a": "\ud800", "b": ["\ud800"]})
            echo({1: NoText()})
            echo("\ud800")
            with pytest.raises(NoMessage):
                fail()
        spans = tracer.get_last_trace()
    assert len(spans) == 8
    for span in spans:
        assert span.model_dump_json()  # lone surrogates have no JSON form
    message = spans[0].attributes["exception.message"]
    assert message == "(the message cannot be read: RuntimeError)"
    assert spans[1].attributes["exception.message"] == r"bad \ud800 text"
    assert spans[-1].status.status_code == "ERROR"
