"""Adds recorded calls to a graph of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agl_adapter_trajectory.graph import MessageGraph, SampledAnswer
from agl_adapter_trajectory.rows import read_logprobs
from agl_adapters import MatchedCall, ModelCall, system_text, to_messages

__all__ = ["add_call"]


def add_call(
    graph: MessageGraph,
    matched: MatchedCall,
    used: Sequence[int] | None,
    reward: float | None,
    auxiliary: str | None,
) -> None:
    """Add the messages of a call and its answers; one node for each choice.

    Args:
        graph: The graph, which has the calls before it.
        matched: The call.
        used: Tokens of the choice that is trained; None if none is.
        reward: The call's reward; the trained choice has it.
        auxiliary: What the call is for, if it is auxiliary.
    """
    call, span = matched.call, matched.node.span
    prompt = call.prompt_ids
    place = graph.continue_conversation(_messages(call, "prompt"), prompt)
    answers = _messages(call, "completion") or [{"role": "assistant"}]
    reasoning = _reasoning(call)
    tokens = call.choices_ids
    for number in range(max(len(answers), len(tokens))):
        ids = tokens[number] if number < len(tokens) else []
        of_choice = call.of_choice(number)
        is_used = used is not None and ids == used
        graph.add(
            place,
            answers[number] if number < len(answers) else {"role": "assistant"},
            SampledAnswer(
                matched.node.id,
                ids,
                read_logprobs(of_choice.logprobs, len(ids)),
                prompt,
                agent=matched.agent,
                model=call.model,
                model_version=call.model_version,
                finish_reason=of_choice.finish_reason,
                reward=reward if is_used else None,
                auxiliary=auxiliary,
                trained=is_used,
                start_time=span.start_time,
                end_time=span.end_time,
            ),
            reasoning[number] if number < len(reasoning) else "",
        )
        used = None if is_used else used  # of equal choices, the first


def _messages(call: ModelCall, field: str) -> list[dict[str, Any]]:
    raw, row = call.structure(field)
    if row is None or not isinstance(raw, list):
        return []
    shape = row.prompt_shape if field == "prompt" else row.completion_shape
    found = to_messages(cast("list[Any]", raw), shape)
    if field == "prompt":
        system = system_text(call)
        if system:
            found.insert(0, {"role": "system", "content": system})
    return found


def _reasoning(call: ModelCall) -> list[str]:
    """Return the reasoning of each choice, in the GenAI conventions' form."""
    raw, _ = call.structure("completion")
    found: list[str] = []
    for answer in cast("list[Any]", raw) if isinstance(raw, list) else ():
        parts: Any = answer.get("parts") if isinstance(answer, dict) else None
        texts = [
            str(part["content"])
            for part in cast("list[Any]", parts if isinstance(parts, list) else [])
            if _has(part, "content") and part.get("type") == "reasoning"
        ]
        found.append("".join(texts))
    return found


def _has(part: Any, key: str) -> bool:
    return isinstance(part, Mapping) and isinstance(cast("Mapping[str, Any]", part).get(key), str)
