"""A rollout as a training sample: spans and reward, conversations and trajectories."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic_core import from_json

from agl_adapter_trajectory import TraceToTrajectory, TrajectoryRow
from agl_adapters import CallRules, TraceToMessages, TraceTree, is_model_call
from agl_core.adapter import AdapterReport, read_reward
from agl_core.emitter import by_authority
from agl_core.types import OpenAIMessages, Span

__all__ = [
    "Row",
    "Sample",
    "ToolArguments",
    "about",
    "comparable",
    "conversations",
    "final_reward",
    "parsed_arguments",
    "task_key",
    "trajectories",
    "with_arguments",
]

Row = dict[str, Any]
ToolArguments = Literal["object", "text"]
"""Form of the arguments of tool calls: objects, for chat templates, or JSON text, as in APIs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout.

    Attributes:
        rollout_id: Its id.
        attempt_id: The attempt of its spans.
        task: Key of its task; rollouts with equal keys are compared.
        reward: Its final reward; None if it has none, NaN if it cannot be read.
        spans: The spans of the attempt, by sequence id.
        parent_id: The rollout that it is a fork of, if any.
        turn: Number of calls that it repeats of its parent.
    """

    rollout_id: str
    attempt_id: str
    task: str
    reward: float | None
    spans: Sequence[Span] = field(repr=False)
    parent_id: str | None = None
    turn: int | None = None


def task_key(task: Any) -> str:
    """Return a key that is equal for equal tasks, on any machine: 16 hex digits."""
    text = json.dumps(task, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def final_reward(spans: Sequence[Span]) -> float | None:
    """Return the reward of the last span that has one; NaN if it is not a finite number."""
    return next((r for span in by_authority(spans) if (r := read_reward(span)) is not None), None)


def about(sample: Sample) -> Row:
    """Return the columns about a row's origin: reward, task, ids, and the parent of a fork.

    A reward that is not a finite number is None: JSON has no form of it.
    """
    is_number = sample.reward is not None and math.isfinite(sample.reward)
    return {
        "reward": sample.reward if is_number else None,
        "task": sample.task,
        "rollout_id": sample.rollout_id,
        "attempt_id": sample.attempt_id,
        "parent_id": sample.parent_id,
        "turn": sample.turn,
    }


# -- messages --------------------------------------------------------------------------------------


def conversations(
    spans: Sequence[Span],
    *,
    agent_match: str | None = None,
    keep_auxiliary: bool = False,
    report: AdapterReport | None = None,
) -> list[OpenAIMessages]:
    """Return the conversations of an attempt, each with all of its turns, in order.

    A call whose messages a later call extends is part of the later call's conversation. Calls made
    while computing a reward (a judge's) are left out, and so is the second span of a call that both
    a tracer and a proxy recorded.

    Args:
        spans: The spans of one attempt.
        agent_match: Regular expression searched in agent names; None: all calls.
        keep_auxiliary: Keep auxiliary calls, such as those for a title.
        report: Counts the parts that were left out.

    Raises:
        InvalidArgumentError: The spans form no tree, or messages are not OpenAI's chat format.
    """
    report = AdapterReport() if report is None else report
    tree = TraceTree.from_spans(spans, report)
    tree.repair_hierarchy(report)  # a proxy's spans have no parent, unlike those of a judge
    calls = tree.find_llm_calls(CallRules(agent_match=agent_match), report)
    chosen = {call.node.id for call in calls}
    kept = [span for span in spans if span.span_id in chosen or not is_model_call(span.attributes)]
    found, counted = TraceToMessages(keep_auxiliary=keep_auxiliary).adapt_with_report(kept)
    for (item, why), count in counted.left_out.items():
        report.leave_out(item, why, count)
    ended: list[OpenAIMessages] = []
    for one in found:
        content = comparable(one["messages"])
        ended = [
            other
            for other in ended
            if comparable(other["messages"]) != content[: len(other["messages"])]
        ]
        ended.append(one)
    return ended


def comparable(messages: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return messages in a form that is equal for equal content.

    Ids of tool calls are random and therefore left out. Absent, null and empty content are equal.
    """
    found: list[tuple[Any, ...]] = []
    for message in messages:
        calls = cast("Sequence[Any]", message.get("tool_calls") or ())
        functions = [
            (call["function"]["name"], parsed_arguments(call["function"]["arguments"]))
            for call in calls
        ]
        found.append(
            (message["role"], message.get("content") or "", message.get("name"), functions)
        )
    return found


def parsed_arguments(arguments: Any) -> Any:
    """Return the value of JSON text, and all else as it is.

    A model can sample text that :mod:`json` reads but a file cannot hold: half of a surrogate pair,
    ``NaN``, hundreds of brackets. It stays text, too.
    """
    if not isinstance(arguments, str):
        return arguments
    try:
        return from_json(arguments.encode("utf-8", "surrogatepass"), allow_inf_nan=False)
    except ValueError:
        return arguments


def with_arguments(
    messages: Sequence[Mapping[str, Any]], form: ToolArguments
) -> list[dict[str, Any]]:
    """Return messages with the arguments of their tool calls in a given form.

    Chat templates write objects as JSON, but many write JSON text as a quoted string. Arguments
    that are not a JSON object stay text.

    Args:
        messages: In OpenAI's chat format, where arguments are text.
        form: The form.
    """
    if form == "text":
        return [dict(message) for message in messages]
    decoded: list[dict[str, Any]] = []
    for message in messages:
        changed = dict(message)
        if changed.get("tool_calls"):
            changed["tool_calls"] = [
                {**call, "function": _with_object(call["function"])}
                for call in changed["tool_calls"]
            ]
        decoded.append(changed)
    return decoded


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    value = parsed_arguments(function["arguments"])
    return {**function, "arguments": value if isinstance(value, dict) else function["arguments"]}


# -- tokens ----------------------------------------------------------------------------------------


def trajectories(
    spans: Sequence[Span],
    *,
    agent_match: str | None = None,
    keep_auxiliary: bool = False,
    report: AdapterReport | None = None,
) -> list[TrajectoryRow]:
    """Return the token rows of an attempt, from :class:`~agl_adapter_trajectory.TraceToTrajectory`.

    Args:
        spans: The spans of one attempt.
        agent_match: Regular expression searched in agent names; None: all calls.
        keep_auxiliary: Keep auxiliary calls, such as those for a title.
        report: Counts the parts that were left out.

    Raises:
        InvalidArgumentError: The spans form no tree.
    """
    adapter = TraceToTrajectory(agent_match=agent_match, keep_auxiliary=keep_auxiliary)
    rows, counted = adapter.adapt_with_report(spans)
    if report is not None:
        for (item, why), count in counted.left_out.items():
            report.leave_out(item, why, count)
    return rows
