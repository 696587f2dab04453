"""Measures adapters on traces of growing size; linear cost means a constant time per span."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import pytest

from agl_adapters import TracerTraceToTriplet, TraceToMessages
from agl_core.types import Span

pytestmark = pytest.mark.benchmark


def _call(index: int, start: float, end: float, parent: str | None) -> Span:
    return Span.from_attributes(
        name="openai.chat.completion",
        span_id=f"{index:016x}",
        trace_id="0" * 32,
        parent_id=parent,
        start_time=start,
        end_time=end,
        attributes={
            "gen_ai.response.id": f"resp-{index}",
            "gen_ai.request.model": "m",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.prompt.0.role": "system",
            "gen_ai.prompt.0.content": "be brief",
            "gen_ai.prompt.1.role": "user",
            "gen_ai.prompt.1.content": "hello " * 20,
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "hi",
            "gen_ai.completion.0.finish_reason": "stop",
            "gen_ai.usage.prompt_tokens": 64,
            "gen_ai.usage.completion_tokens": 32,
            "prompt_token_ids": list(range(64)),
            "response_token_ids": list(range(32)),
        },
    )


def _reward(index: int, at: float, parent: str | None) -> Span:
    return Span.from_attributes(
        name="agentlightning.annotation",
        span_id=f"{index:016x}",
        trace_id="0" * 32,
        parent_id=parent,
        start_time=at,
        end_time=at,
        attributes={"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1},
    )


def _agent(index: int, start: float, end: float, parent: str | None) -> Span:
    return Span.from_attributes(
        name="agent",
        span_id=f"{index:016x}",
        trace_id="0" * 32,
        parent_id=parent,
        start_time=start,
        end_time=end,
        attributes={"agent.name": f"agent-{index % 7}"},
    )


def flat(size: int) -> list[Span]:
    """Return a root with sibling agents, and as many stray calls and rewards."""
    spans = [_agent(1, 0.0, float(size), None)]
    for index in range(2, size + 1, 5):
        at = float(index)
        spans.append(_agent(index, at, at + 4.5, f"{1:016x}"))
        spans.append(_call(index + 1, at + 1, at + 1.5, f"{1:016x}"))
        spans.append(_reward(index + 2, at + 1.6, f"{1:016x}"))
        spans.append(_call(index + 3, at + 2, at + 2.5, f"{1:016x}"))
        spans.append(_reward(index + 4, at + 2.6, f"{1:016x}"))
    return spans[:size]


def nested(size: int) -> list[Span]:
    """Return agents that call themselves: one level per three spans."""
    spans: list[Span] = []
    parent: str | None = None
    for level, index in enumerate(range(1, size + 1, 3)):
        start, end = float(level), float(2 * size - level)
        spans.append(_agent(index, start, end, parent))
        parent = spans[-1].span_id
        spans.append(_call(index + 1, start + 0.1, start + 0.2, parent))
        spans.append(_reward(index + 2, start + 0.3, parent))
    return spans[:size]


def overlapping(size: int) -> list[Span]:
    """Return concurrent calls, and rewards that arrive while most calls are still running."""
    half = size // 2
    spans = [_call(i + 1, i * 1e-3, size + float(-i if i % 2 else i), None) for i in range(half)]
    spans += [_reward(half + i + 1, size - half + 2.0 * i, None) for i in range(half)]
    return spans


def _best(work: Callable[[Sequence[Span]], object], spans: Sequence[Span]) -> float:
    rounds = max(2, 20_000 // len(spans))
    times: list[float] = []
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        work(spans)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", [flat, nested, overlapping], ids=lambda shape: shape.__name__)
def test_triplets(shape: Callable[[int], list[Span]], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for size in (1_000, 10_000, 100_000):
            spans = shape(size)
            walk = _best(lambda spans: [dict(span.attributes) for span in spans], spans)
            taken = _best(TracerTraceToTriplet().adapt, spans)
            print(
                f"\n{shape.__name__:>12} {size:>7,} spans: {taken * 1e3:8.1f} ms, "
                f"{taken / size * 1e6:5.1f} us/span, {taken / walk:4.0f} x copying attributes",
                end="",
            )
        print()


def test_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for size in (1_000, 10_000):
            taken = _best(TraceToMessages().adapt, flat(size))
            print(f"\n    messages {size:>7,} spans: {taken * 1e3:8.1f} ms", end="")
        print()
