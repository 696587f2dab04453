"""Rules over the recorded calls of an attempt: repetitions, broken answers, choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from agl_adapters.chat import to_messages
from agl_adapters.model_call import ModelCall
from agl_core.types import Span

__all__ = [
    "SeenCalls",
    "answers_of",
    "call_order",
    "chosen_choice",
    "ended_by_agent",
    "failed_at_server",
    "is_broken",
    "is_same_inside",
    "overlap",
    "sent_messages",
    "system_text",
    "were_sampled_apart",
]

_OF_THE_AGENT: Final = frozenset({"client_disconnected", "CancelledError"})
"""Values of ``error.type`` of a call that the agent ended; its tokens up to there are whole."""
_OF_THE_BACKEND: Final = frozenset({"backend_408", "backend_429"})
"""Values of ``error.type`` of 4xx that a backend under load answers with, whatever it is asked."""


class SeenCalls:
    """Finds the earlier span of a call that was recorded twice.

    Two spans are of one call only if nothing speaks against it. Servers send an empty response id
    (Azure's first chunk) or one of few (Ollama has 999), so an equal id alone is not enough: token
    ids and prompts must not differ, and without token ids the spans must overlap in time.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, list[tuple[Span, ModelCall, int]]] = {}

    def add(self, span: Span, call: ModelCall, place: int = 0) -> None:
        """Note a call, and the place that :meth:`find` returns for it."""
        response_id = call.response_id
        if response_id is not None:
            self._by_id.setdefault(response_id, []).append((span, call, place))

    def remove(self, span: Span, call: ModelCall) -> None:
        """Forget a call."""
        known = self._by_id.get(call.response_id or "", [])
        known[:] = [entry for entry in known if entry[0] is not span]

    def find(self, span: Span, call: ModelCall, inside: Span | None = None) -> int | None:
        """Return the place of the call that a span records again; None if it is new.

        Args:
            span: The span.
            call: Its call.
            inside: The call around it, of which an equal id is enough.
        """
        response_id = call.response_id
        if response_id is None:
            return None
        for other, known, place in self._by_id.get(response_id, ()):
            if other is inside or _is_same(span, call, other, known):
                return place
        return None


def _is_same(span: Span, call: ModelCall, other: Span, known: ModelCall) -> bool:
    pairs = _token_pairs(call, known)
    if any(mine != theirs for mine, theirs in pairs):
        return False
    (mine, row), (theirs, other_row) = call.find("prompt"), known.find("prompt")
    if row is other_row and mine is not None and mine != theirs:
        return False
    return len(pairs) == 2 or overlap(span, other)  # equal tokens were sampled once


def _token_pairs(one: ModelCall, other: ModelCall) -> list[tuple[list[int], list[int]]]:
    """Return the token ids of prompts and answers that both calls have."""
    mine, theirs = (one.prompt_ids, one.response_ids), (other.prompt_ids, other.response_ids)
    return [(a, b) for a, b in zip(mine, theirs, strict=True) if a and b]


def were_sampled_apart(one: ModelCall, other: ModelCall) -> bool:
    """Return whether token ids show that a call is not the one that encloses it in time.

    Of calls that an agent makes side by side one often lies within another, and both may have the
    same prompt and answer. A call that was recorded with its tokens has its server's response id.
    """
    pairs = _token_pairs(one, other)
    if any(mine != theirs for mine, theirs in pairs):
        return True
    ids = one.response_id, other.response_id
    return len(pairs) == 2 and None not in ids and ids[0] != ids[1]


def is_same_inside(outer: ModelCall, inner: ModelCall) -> bool:
    """Return whether a call nested in another is the same one, recorded by the client below it.

    A framework may have no response id, or one of its own: LangChain's is that of its run. Then
    both must have the same answer.
    """
    if outer.response_id is None:
        return True
    answers = answers_of(outer)
    return bool(answers) and answers == answers_of(inner)


def overlap(one: Span, other: Span) -> bool:
    """Return whether two spans overlap in time, or may because a time is missing."""
    starts, ends = (one.start_time, other.start_time), (one.end_time, other.end_time)
    if None in starts or None in ends:
        return True
    return max(cast("tuple[float, float]", starts)) <= min(cast("tuple[float, float]", ends))


def call_order(span: Span) -> tuple[int, bool, float]:
    """Return a sort key: calls by sequence id, those of one id by start, without a start last."""
    start = span.start_time
    return (span.sequence_id, start is None, 0.0 if start is None else start)


def is_broken(span: Span) -> bool:
    """Return whether a call failed, so that what was recorded of its answer is not an answer.

    A call that the agent itself ended is not broken. One that was refused is: it has no answer.
    Whose fault that is, and so whether the rollout is any use, :func:`failed_at_server` tells.
    """
    return span.status.status_code == "ERROR" and not ended_by_agent(span)


def ended_by_agent(span: Span) -> bool:
    """Return whether the agent ended a call before its answer was whole."""
    failed = span.status.status_code == "ERROR"
    return failed and span.attributes.get("error.type") in _OF_THE_AGENT


def failed_at_server(span: Span) -> bool:
    """Return whether a call failed through no fault of the agent.

    A request that was refused is the agent's own doing, as a call that it ended is: a message that
    is too long, a budget that is used up. A limit of the backend's is not.
    """
    if not is_broken(span):
        return False
    if span.attributes.get("error.type") in _OF_THE_BACKEND:
        return True
    status: Any = span.attributes.get("http.response.status_code")
    return not (isinstance(status, int) and 400 <= status < 500)


# -- choices ---------------------------------------------------------------------------------------


def sent_messages(call: ModelCall) -> list[dict[str, Any]] | None:
    """Return a request's messages in a form in which equal ones are equal; None if unknown."""
    raw, row = call.structure("prompt")
    if row is None or not isinstance(raw, list):
        return None
    return _normalized(to_messages(cast("list[Any]", raw), row.prompt_shape))


def system_text(call: ModelCall) -> str:
    """Return the instructions that a call has beside its messages; empty if it has none."""
    system, _ = call.structure("system")
    parts = cast("Sequence[Any]", system if isinstance(system, (list, tuple)) else [system])
    texts = [
        cast("Mapping[str, Any]", part).get("content") if isinstance(part, Mapping) else part
        for part in parts
    ]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def answers_of(call: ModelCall) -> list[dict[str, Any]] | None:
    """Return the answer of each choice, in the form of :func:`sent_messages`."""
    raw, row = call.structure("completion")
    if row is None or not isinstance(raw, list):
        return None
    return _normalized(to_messages(cast("list[Any]", raw), row.completion_shape))


def _normalized(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "role": message.get("role"),
            "content": message.get("content") or "",
            "tool_calls": message.get("tool_calls") or [],
        }
        for message in messages
    ]


def chosen_choice(call: ModelCall, later: Iterable[ModelCall]) -> int | None:
    """Return the choice of a call that the history of a later call goes on with.

    Args:
        call: A call with several choices.
        later: Calls after it, in order.

    Returns:
        The number of the choice; None if no later call shows which one the agent used.
    """
    choices, prompt = call.choices_ids, call.prompt_ids
    sent, answers = sent_messages(call), answers_of(call)
    for other in later:
        ids = other.prompt_ids
        if prompt and ids[: len(prompt)] == prompt:
            found = [
                number
                for number, tokens in enumerate(choices)
                if tokens and ids[len(prompt) : len(prompt) + len(tokens)] == tokens
            ]
            if found:
                return max(found, key=lambda number: len(choices[number]))
        following = sent_messages(other)
        if sent is None or answers is None or following is None:
            continue
        if following[: len(sent)] == sent and len(following) > len(sent):
            used = following[len(sent)]
            matching = [number for number, answer in enumerate(answers) if answer == used]
            if matching:
                return matching[0]
    return None
