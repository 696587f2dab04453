"""What a model call's span costs the agent's thread; prints."""

from __future__ import annotations

import pytest
import wrapt
from opentelemetry import trace
from span_cost import SIZES, chat_request, chat_response, print_cost

from agl_tracer_agentops import AgentOpsTracer
from agl_tracer_agentops.calls import _model_call


@pytest.mark.benchmark
@pytest.mark.parametrize("size", SIZES)
def test_the_cost_of_a_span(size: str):
    answer, request = chat_response(size), chat_request(size)

    def create(**options: object) -> object:
        return answer

    tracer = AgentOpsTracer()
    with tracer.lifespan():  # to have the provider
        wrapper = _model_call(
            trace.get_tracer("benchmark"), "openai.chat.completion", "chat", is_async=False
        )
    call = wrapt.FunctionWrapper(create, wrapper)
    print_cost(f"agentops, {size}", tracer, lambda: call(**request), lambda: create(**request))
