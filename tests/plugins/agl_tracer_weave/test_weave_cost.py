"""What a model call's span costs the agent's thread; prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agl_tracer_weave import WeaveTracer

sys.path.insert(0, str(Path(__file__).parents[2] / "frameworks"))

from span_cost import chat_request, chat_response, print_cost


@pytest.mark.benchmark
def test_the_cost_of_a_span():
    import weave

    answer, request = chat_response(), chat_request()

    @weave.op(name="openai.chat.completions.create")
    def create(**options: object) -> object:
        return answer

    print_cost("weave, 20 messages, 300 tokens", WeaveTracer(), lambda: create(**request))
