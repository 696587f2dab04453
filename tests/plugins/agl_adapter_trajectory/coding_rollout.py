"""A rollout of a coding agent, small enough to work out by hand.

::

    s1  title              90 91          -> 92            left out
    s2  main               1 2            -> 10 11         calls the tool `task`
    s3  sub-agent          5 6            -> 20            calls the tool `grep`
    s4  sub-agent          5 6 20 7       -> 21 22         its answer is the result of `task`
    s5  main, given up     1 2 10 11 3    -> 12            the client closed the connection
    s6  main, again        1 2 10 11 3    -> 13 14
    s7  main, compaction   ... 13 14 4    -> 15 16         the summary
    s8  main, after it     1 8 9          -> 17            reward 1
"""

from __future__ import annotations

import json
from typing import Any

from agl_core import semconv
from agl_core.genai import input_messages, output_messages
from agl_core.types import Span, TraceStatus

SYSTEM = {"role": "system", "content": "You mend programs."}
TASK = {"role": "user", "content": "mend the parser"}
TITLE = {"role": "system", "content": "Generate a title for this conversation."}
FINDER = {"role": "system", "content": "You search files."}
FIND = {"role": "user", "content": "find the bug"}
FOUND = "it is in line 3 of parser.py"
SUMMARY = "Summary: the bug is in line 3 of parser.py."


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id}


def call(
    number: int,
    messages: list[dict[str, Any]],
    answer: dict[str, Any],
    prompt: list[int],
    response: list[int],
    *,
    error: str | None = None,
    **more: Any,
) -> Span:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": f"r{number}",
        "gen_ai.response.finish_reasons": ["tool_calls" if answer.get("tool_calls") else "stop"],
        "gen_ai.input.messages": json.dumps(input_messages({"messages": messages})),
        "gen_ai.output.messages": json.dumps(output_messages([{"message": answer}])),
        "prompt_token_ids": prompt,
        "response_token_ids": response,
        "logprobs.content": json.dumps([{"logprob": -token / 100} for token in response]),
        semconv.MODEL_VERSION: "step-3",
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    if error is not None:
        attributes["error.type"] = error
    return Span.from_attributes(
        attributes=attributes,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
        span_id=f"s{number}",
        trace_id="1" * 32,
        start_time=100.0 + 2 * number,
        end_time=101.0 + 2 * number,
        name=semconv.SPAN_MODEL_CALL,
        status=TraceStatus(status_code="OK" if error is None else "ERROR"),
    )


def reward(number: int, value: float) -> Span:
    return Span.from_attributes(
        attributes={semconv.PRIMARY_REWARD_VALUE: value},
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
        span_id=f"s{number}",
        trace_id="1" * 32,
        start_time=101.0 + 2 * number,
        end_time=101.0 + 2 * number,
        name=semconv.SPAN_ANNOTATION,
    )


def coding_rollout(final_reward: float = 1.0) -> list[Span]:
    """Return the spans of the rollout above."""
    started = called("c1", "task", description="search", prompt="find the bug")
    searched = called("c2", "grep", pattern="bug")
    main = [SYSTEM, TASK, started, result("c1", FOUND)]
    finder = [FINDER, FIND, searched, result("c2", "parser.py:3")]
    compact = [*main, said("I mend line 3."), {"role": "user", "content": "Summarise the work."}]
    resumed = [SYSTEM, {"role": "user", "content": f"Continue the work.\n\n{SUMMARY}"}]
    again: dict[str, Any] = {"http__request__resend_count": 1}
    gone = "client_disconnected"
    return [
        call(1, [TITLE, TASK], said("Parser"), [90, 91], [92], gen_ai__request__temperature=0.1),
        call(2, [SYSTEM, TASK], started, [1, 2], [10, 11]),
        call(3, [FINDER, FIND], searched, [5, 6], [20]),
        call(4, finder, said(FOUND), [5, 6, 20, 7], [21, 22]),
        call(5, main, said("I m"), [1, 2, 10, 11, 3], [12], error=gone),
        call(6, main, said("I mend line 3."), [1, 2, 10, 11, 3], [13, 14], **again),
        call(7, compact, said(SUMMARY), [1, 2, 10, 11, 3, 13, 14, 4], [15, 16]),
        call(8, resumed, said("done"), [1, 8, 9], [17]),
        reward(9, final_reward),
    ]
