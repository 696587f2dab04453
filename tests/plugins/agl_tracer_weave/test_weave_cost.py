"""What a model call's span costs the agent's thread; prints."""

from __future__ import annotations

import pytest
from span_cost import SIZES, chat_request, chat_response, print_cost

from agl_tracer_weave import WeaveTracer


@pytest.mark.benchmark
@pytest.mark.parametrize("size", SIZES)
def test_the_cost_of_a_span(size: str):
    import weave

    answer, request = chat_response(size), chat_request(size)

    def create(**options: object) -> object:
        return answer

    call = weave.op(create, name="openai.chat.completions.create")
    print_cost(f"weave, {size}", WeaveTracer(), lambda: call(**request), lambda: create(**request))
