"""Measures and prints the cost of a model call's span in the agent's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import wrapt
from opentelemetry import trace
from span_cost import SIZES, chat_request, chat_response, chat_stream, print_cost

from agl_tracer_agentops import AgentOpsTracer
from agl_tracer_agentops.calls import _model_call


def traced(create: Callable[..., object]) -> tuple[AgentOpsTracer, Callable[..., Any]]:
    tracer = AgentOpsTracer()
    with tracer.lifespan():  # creates the tracer provider
        wrapper = _model_call(
            trace.get_tracer("benchmark"), "openai.chat.completion", "chat", is_async=False
        )
    return tracer, wrapt.FunctionWrapper(create, wrapper)


@pytest.mark.benchmark
@pytest.mark.parametrize("size", SIZES)
def test_the_cost_of_a_span(size: str):
    answer, request = chat_response(size), chat_request(size)

    def create(**options: object) -> object:
        return answer

    tracer, call = traced(create)
    print_cost(f"agentops, {size}", tracer, lambda: call(**request), lambda: create(**request))


@pytest.mark.benchmark
@pytest.mark.parametrize("size", SIZES)
def test_the_cost_of_a_stream(size: str):
    open_stream, request = chat_stream(size), chat_request(size) | {"stream": True}

    def create(**options: object) -> Any:
        return open_stream()

    tracer, call = traced(create)
    print_cost(
        f"agentops, {size} stream",
        tracer,
        lambda: list(call(**request)),
        lambda: list(create(**request)),
    )
