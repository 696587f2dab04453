"""Descriptions of rollouts for a model that criticises or edits a prompt."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from agl_adapters import TraceToMessages, calls_among
from agl_core.algorithm import BatchOutcome, RolloutOutcome
from agl_core.emitter import get_message_value
from agl_core.errors import InvalidArgumentError
from agl_core.types import Span

__all__ = ["ConversationCheck", "Experiment", "describe"]

logger = logging.getLogger(__name__)

_MAX_CHARACTERS = 2000  # of one message or attribute
_MAX_SPANS = 40
"""Spans of a rollout that the reflection model reads: more would not fit beside the others."""
# Ids and times (UUIDs, long hexadecimal numbers, seconds since 1970) are removed: with them, equal
# rollouts would give different requests, and a run with a seed would not be repeatable.
_NOISE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|\b1\d{9}(\.\d+)?\b")
# Attributes with a call's addresses and durations are removed for the same reason.
_TRANSPORT = re.compile(
    r"^(agl\.proxy|client|http|network|server|url|gen_ai\.(response\.id|server))\b"
    r"|(seconds|duration|latency)(_ms)?$"
)
_REMEDY = (
    "If the agent calls a model: the tracer 'otel' records calls of the SDKs of OpenAI and "
    "Anthropic; send others through the proxy (proxy='direct', and the agent calls the "
    "endpoint of its LLM resource)"
)


class SpanView(TypedDict):
    name: str
    status: str
    attributes: dict[str, str]


class Experiment(TypedDict):
    """The description of a rollout that prompt files can use.

    Keys:
        status: Final status of the rollout.
        final_reward: Its reward; None if it has none.
        messages: Its conversations in OpenAI's chat format, without those that a later one repeats.
        conversation: The conversations as text, without system messages, because the prompt is
            shown separately.
        feedback: Texts that the agent emitted, and reasons that judges gave.
        spans: Its spans, with long attributes cut, without ids, times and addresses.
    """

    status: str
    final_reward: float | None
    messages: list[list[dict[str, Any]]]
    conversation: str
    feedback: list[str]
    spans: list[SpanView]


class ConversationCheck:
    """Warns once if the first batch of a search has no conversation for its reflection model.

    Args:
        algorithm: Name of the algorithm.
        adapter: Turns spans into conversations.
    """

    def __init__(self, algorithm: str, adapter: TraceToMessages) -> None:
        self._algorithm = algorithm
        self._adapter = adapter
        self._done = False

    def look_at(self, outcomes: BatchOutcome) -> None:
        """Look at a finished batch; rollouts that failed may have called no model yet."""
        succeeded = [one for one in outcomes if one.rollout.status == "succeeded"]
        if self._done or not succeeded:
            return
        self._done = True
        if not any(_calls(one, self._adapter) for one in succeeded):
            logger.warning(
                "%s reads conversations, but the %d rollouts that succeeded in the first batch "
                "have none: its model sees rewards and feedback only. %s",
                self._algorithm,
                len(succeeded),
                _REMEDY,
            )


def _calls(outcome: RolloutOutcome, adapter: TraceToMessages) -> list[Any]:
    try:
        return adapter.adapt(outcome.spans)
    except InvalidArgumentError as error:
        logger.warning("%s: no messages: %s", outcome.rollout.rollout_id, error)
        return []


def describe(outcome: RolloutOutcome, adapter: TraceToMessages) -> Experiment:
    """Describe a rollout; it has no messages if the adapter rejects its spans."""
    conversations = _without_prefixes([call["messages"] for call in _calls(outcome, adapter)])
    return Experiment(
        status=outcome.rollout.status,
        final_reward=outcome.reward,
        messages=conversations,
        conversation="\n\n".join(_as_text(one) for one in conversations),
        feedback=[text for span in outcome.spans if (text := _feedback(span))],
        spans=[_view(span) for span in _in_order(outcome.spans)[:_MAX_SPANS]],
    )


def _without_prefixes(conversations: Sequence[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Drop the conversations that a later model call repeats and continues."""
    return [
        messages
        for number, messages in enumerate(conversations)
        if not any(later[: len(messages)] == messages for later in conversations[number + 1 :])
    ]


def _as_text(messages: Sequence[Mapping[str, Any]]) -> str:
    lines: list[str] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            continue
        content = message.get("content")
        if content:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            lines.append(f"{message['role']}: {_cut(text)}")
        for call in message.get("tool_calls") or ():
            function: Mapping[str, Any] = call.get("function") or {}
            arguments = _cut(str(function.get("arguments")))
            lines.append(f"{message['role']} calls {function.get('name')}({arguments})")
    return "\n".join(lines)


def _feedback(span: Span) -> str | None:
    reason = span.attributes.get("judge.reason")
    return f"judge: {reason}" if reason else get_message_value(span)


def _in_order(spans: Sequence[Span]) -> list[Span]:
    """Return spans ordered by start; of a call that client and proxy both recorded, only one.

    The order in the store depends on which of the two sent its span first, and equal rollouts must
    give equal descriptions.
    """
    calls = calls_among(spans)
    repeated = {span.span_id for call in calls for span in call.again}
    once = [span for span in spans if span.span_id not in repeated]
    return sorted(once, key=lambda span: span.start_time or 0.0)


def _view(span: Span) -> SpanView:
    return SpanView(
        name=span.name,
        status=span.status.status_code,
        attributes={
            key: _cut(_NOISE.sub("…", str(value)))
            for key, value in span.attributes.items()
            if not _TRANSPORT.search(key)
        },
    )


def _cut(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"
