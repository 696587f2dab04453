"""Sample traces in the form of tracers: nested and flat, with calls, tools and rewards."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agl_core import semconv
from agl_core.types import AttributeValue, Span

__all__ = ["call_span", "token_trace", "trace"]

ROLLOUT, ATTEMPT, TRACE = "ro-trace", "at-trace", "0a" * 16


def _span(
    number: int,
    name: str,
    attributes: dict[str, AttributeValue],
    parent: int | None,
    start: float,
    end: float,
) -> Span:
    return Span.from_attributes(
        rollout_id=ROLLOUT,
        attempt_id=ATTEMPT,
        sequence_id=number,
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=name,
        attributes=attributes,
        start_time=start,
        end_time=end,
    )


def call_span(number: int, turn: int, parent: int | None, start: float) -> Span:
    """Return one model call with its token ids; ``turn`` determines all values."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.response.id": f"response-{turn}",
        "gen_ai.request.model": "m",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": f"question {turn}",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": f"answer {turn}",
        "gen_ai.completion.0.finish_reason": "stop",
        "prompt_token_ids": [turn, turn + 1, turn + 2],
        "response_token_ids": [100 + turn, 101 + turn],
        "logprobs.content": json.dumps(
            [
                {"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []},
                {"token": "b", "logprob": -0.25, "bytes": None, "top_logprobs": []},
            ]
        ),
    }
    return _span(number, "openai.chat.completion", attributes, parent, start, start + 0.5)


def trace(turns: int, *, nested: bool = True) -> list[Span]:
    """Return the trace of an agent that made ``turns`` calls, each followed by a reward.

    Call ``i`` has prompt ids ``[i, i+1, i+2]``, response ids ``[100+i, 101+i]`` and reward ``i``.
    """
    spans: list[Span] = []
    root = None
    if nested:
        agent: dict[str, AttributeValue] = {"agent.name": "helper"}
        spans.append(_span(1, "agent", agent, None, 0.0, turns + 1.0))
        root = 1
    for turn in range(turns):
        spans.append(call_span(len(spans) + 1, turn, root, turn + 0.1))
        reward: dict[str, AttributeValue] = {
            f"{semconv.REWARD}.0.name": semconv.PRIMARY_REWARD,
            semconv.PRIMARY_REWARD_VALUE: float(turn),
        }
        at = turn + 0.8
        spans.append(_span(len(spans) + 1, semconv.SPAN_ANNOTATION, reward, root, at, at))
    return spans


def token_trace(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Span]:
    """Return the trace of an agent whose calls have these ids of prompt and response.

    Call ``i`` is followed by the reward ``i``; token ``t`` has log-probability ``-t - 0.5``.
    """
    spans = trace(len(turns))
    for index, (prompt, response) in enumerate(turns):
        logprobs = [{"token": str(t), "logprob": -t - 0.5, "bytes": None} for t in response]
        spans[1 + 2 * index].attributes |= {
            "prompt_token_ids": list(prompt),
            "response_token_ids": list(response),
            "logprobs.content": json.dumps(logprobs),
        }
    return spans
