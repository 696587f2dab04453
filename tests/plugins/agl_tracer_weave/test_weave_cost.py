"""Measures and prints the cost of a model call's span in the agent's thread."""

from __future__ import annotations

from typing import Any

import pytest
from span_cost import SIZES, chat_request, chat_response, chat_stream, print_cost

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


@pytest.mark.benchmark
@pytest.mark.parametrize("size", SIZES)
def test_the_cost_of_a_stream(size: str):
    import openai  # noqa: F401 -- patched when it is imported
    from weave.integrations.openai import openai_sdk
    from weave.trace.autopatch import OpSettings

    open_stream, request = chat_stream(size), chat_request(size) | {"stream": True}

    class Client:
        _base_url = "http://127.0.0.1"

    class Completions:
        _client = Client

    def create(self: object, *, stream: bool, **options: object) -> Any:
        return open_stream()

    tracer, this = WeaveTracer(), Completions()
    with tracer.lifespan():
        settings = OpSettings(name="openai.chat.completions.create")
        call = openai_sdk.create_wrapper_sync(settings)(create)
    print_cost(
        f"weave, {size} stream",
        tracer,
        lambda: list(call(this, **request)),
        lambda: list(create(this, **request)),
    )
