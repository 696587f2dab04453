"""Spans that are current from one callback to another."""

from __future__ import annotations

import asyncio
import contextvars

from opentelemetry import context as otel_context, trace
from opentelemetry.sdk.trace import TracerProvider

from agl_core.emitter import emit_message, operation
from agl_tracer_otel.current import enter_span, live_context

tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")


def current() -> object:
    return trace.get_current_span(live_context())


def run(function) -> None:
    """Call a function in a copy of the running context, as a new task does."""
    contextvars.copy_context().run(function)


def test_entering_and_leaving_nests():
    before = otel_context.get_current()
    outer = enter_span(tracer.start_span("outer"))
    inner = enter_span(tracer.start_span("inner"))
    assert current() is inner.span
    inner.leave()
    assert current() is outer.span
    outer.leave()
    assert otel_context.get_current() is before


def test_a_span_that_ended_elsewhere_is_not_current_and_is_cleared_by_its_outer_span():
    before = otel_context.get_current()
    outer = enter_span(tracer.start_span("outer"))
    for _ in range(3):
        inner = enter_span(tracer.start_span("inner"))

        def end(inner=inner) -> None:
            inner.leave()
            inner.span.end()

        run(end)
        assert current() is outer.span
    outer.leave()
    assert otel_context.get_current() is before


def test_leaving_elsewhere_changes_nothing_there():
    other = tracer.start_span("other")
    entered = []
    run(lambda: entered.append(enter_span(tracer.start_span("there"))))
    token = otel_context.attach(trace.set_span_in_context(other))
    entered[0].leave()
    assert current() is other
    otel_context.detach(token)


async def test_emitters_report_to_the_open_span(desk):
    rollout = await desk.rollout()
    async with desk.trace(rollout):
        enter_span(graph := desk.tracer._initialised().start_span("graph"))
        step = enter_span(desk.tracer._initialised().start_span("step"))

        async def end_step() -> None:
            step.leave()
            step.span.end()

        await asyncio.create_task(end_step())
        emit_message("in the graph")
        with operation(name="in the graph"):
            emit_message("in the operation")
        graph.end()
    spans = {span.span_id: span for span in await desk.stored(rollout)}
    parents = {
        span.attributes.get("agentlightning.message.body", span.name): spans[span.parent_id].name
        for span in spans.values()
        if span.parent_id
    }
    assert parents == {
        "step": "graph",
        "in the graph": "graph",
        "agentlightning.operation": "graph",
        "in the operation": "agentlightning.operation",
    }
