"""What a model call's span costs the agent's thread; prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import wrapt
from opentelemetry import trace

from agl_tracer_agentops import AgentOpsTracer
from agl_tracer_agentops.calls import _model_call

sys.path.insert(0, str(Path(__file__).parents[2] / "frameworks"))

from span_cost import chat_request, chat_response, print_cost


@pytest.mark.benchmark
def test_the_cost_of_a_span():
    answer, request = chat_response(), chat_request()

    def create(**options: object) -> object:
        return answer

    tracer = AgentOpsTracer()
    with tracer.lifespan():  # to have the provider
        wrapper = _model_call(
            trace.get_tracer("benchmark"), "openai.chat.completion", "chat", is_async=False
        )
    call = wrapt.FunctionWrapper(create, wrapper)
    print_cost("agentops, 20 messages, 300 tokens", tracer, lambda: call(**request))
