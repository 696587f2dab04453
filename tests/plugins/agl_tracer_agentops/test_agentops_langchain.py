"""The LangChain handler: runs as spans, and the objects that it must not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.tools import tool
from traced_work import spans_of

from agl_core.emitter import emit_message
from agl_core.tracer import get_active_tracer
from agl_core.types import Span
from agl_tracer_agentops import AgentOpsTracer


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("odd")


async def traced(work: Any) -> list[Span]:
    return await spans_of(AgentOpsTracer(instrument_managed=False), work)


def config() -> Any:
    tracer: Any = get_active_tracer()
    return {"callbacks": [tracer.get_langchain_handler()]}


async def test_the_agent_reads_the_iterator_that_a_tool_returns():
    @tool
    def count(n: int) -> Iterator[int]:
        """Count."""
        return (number for number in range(n))

    def work() -> None:
        assert list(count.invoke({"n": 3}, config=config())) == [0, 1, 2]

    assert "count.tool" in {span.name for span in await traced(work)}


async def test_a_tool_whose_result_has_no_text_ends():
    @tool
    def odd() -> Odd:
        """Return something odd."""
        return Odd()

    def work() -> None:
        assert isinstance(odd.invoke({}, config=config()), Odd)
        emit_message("after")

    spans = await traced(work)
    (session,) = [span for span in spans if span.parent_id is None]
    assert {span.name: span.parent_id for span in spans if span is not session} == {
        "odd.tool": session.span_id,
        "agentlightning.message": session.span_id,
    }
