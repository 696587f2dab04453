"""Finds the calls of an attempt that do not serve its task: titles, topic checks, repeated calls.

A rule sees one call (:data:`agl_core.adapter.CallRule`), and a text may mislead it. So whatever a
rule says, a call is auxiliary only if

* no later call goes on with its answer,
* the call that it goes on with, if any, goes on without it as well,
* another call remains, and
* for the rules of this package, another call looks like the conversation that it would be about: it
  offers tools, its answer is gone on with, or the call repeats its request.

So an agent whose only task is titles keeps its calls. One that answers a request and then asks for
a title of the conversation with it looks like a chat program: ``keep_auxiliary`` keeps its calls.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple, cast

from agl_adapters.auxiliary_rules import purpose_of
from agl_adapters.literals import as_text
from agl_adapters.model_call import ModelCall
from agl_adapters.prefix_index import PrefixIndex
from agl_adapters.recorded_calls import (
    answers_of,
    ended_by_agent,
    overlap,
    sent_messages,
    system_text,
)
from agl_core.adapter import CallRule, RecordedCall
from agl_core.plugins import Registry, get_registry
from agl_core.types import Span

__all__ = ["RETRY", "TOKEN_COUNT", "auxiliary_calls"]

_logger = logging.getLogger(__name__)

RETRY: Final = "given up and made again"
TOKEN_COUNT: Final = "token count"  # noqa: S105
_RESEND_COUNT: Final = "http.request.resend_count"
_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
_REPEATED: Final = 200
"""Characters of a request that a call about it must repeat: some programs cut long ones."""


def auxiliary_calls(calls: Sequence[tuple[Span, ModelCall]]) -> dict[str, str]:
    """Return what each auxiliary call is for, by the id of its span.

    Messages are parsed only if the prompts' tokens do not already join all calls to one chain.

    Args:
        calls: The calls of one attempt in the order in which they were made, each once.
    """
    attempt = _Attempt(calls)
    ends = attempt.not_continued()
    if len(ends) < 2:
        return {}
    found: dict[str, str] = {}
    for place in ends:
        purpose = attempt.purpose(place)
        if purpose is not None and attempt.goes_on_without(place):
            found[calls[place][0].span_id] = purpose
    return found if len(found) < len(calls) else {}


class _Texts(NamedTuple):
    """Digests of a call's messages.

    Attributes:
        sent: Of the first message, the first two, and so on.
        answered: Of all messages with the answer; one for each choice.
    """

    sent: Sequence[bytes]
    answered: frozenset[bytes]


class _Attempt:
    """The calls of an attempt, and which of them go on with which.

    A call goes on with another if its prompt begins with the other's prompt and answer, as tokens
    or as messages. Reasoning is not compared, since agents drop it.
    """

    def __init__(self, calls: Sequence[tuple[Span, ModelCall]]) -> None:
        self._calls = calls
        self._before: dict[int, int] = {}  # by tokens: the call that a call goes on with
        self._texts: dict[int, _Texts] = {}
        self._resent = [place for place, (span, _) in enumerate(calls) if _tries(span) > 0]
        index = PrefixIndex()
        for place, (_, call) in enumerate(calls):
            prompt, response = call.prompt_ids, call.response_ids
            if not prompt or not response:
                continue
            packed = array("q", prompt).tobytes()
            before = index.longest_in(packed)
            if before is not None:
                self._before[place] = before
            index.add(place, packed + array("q", response).tobytes())

    def not_continued(self) -> list[int]:
        """Return the places of the calls with which no other goes on, by their tokens."""
        continued = set(self._before.values())
        return [place for place in range(len(self._calls)) if place not in continued]

    def goes_on_without(self, place: int) -> bool:
        """Return whether nothing continues a call, and what it continues goes on without it."""
        number = len(self._calls)
        if any(self._continues(later, place) for later in range(place + 1, number)):
            return False
        before = next((e for e in reversed(range(place)) if self._continues(place, e)), None)
        return before is None or any(
            self._continues(other, before) for other in range(before + 1, number) if other != place
        )

    def purpose(self, place: int) -> str | None:
        """Return what a call is for, if it does not look like one for the task."""
        if self._is_given_up(place):
            return RETRY
        span, call = self._calls[place]
        if span.attributes.get(_MAX_TOKENS) == 1 and self._is_measured(place):
            return TOKEN_COUNT
        recorded = _recorded(span, call)
        for rule in _rules():
            try:
                purpose = rule(recorded)
            except Exception:  # a plugin's rule must not end a run
                _logger.exception("a rule for auxiliary calls failed on span %s", span.span_id)
                continue
            if purpose and (rule is not purpose_of or self._is_about_another(place)):
                return str(purpose)
        return None

    def _is_about_another(self, place: int) -> bool:
        """Return whether another call looks like the conversation that a call is about."""
        others = [number for number in range(len(self._calls)) if number != place]
        if any(_offers_tools(self._calls[number][1]) for number in others):
            return True
        sent = sent_messages(self._calls[place][1]) or ()
        said = "\n".join(as_text(message["content"]) for message in sent)
        return any(self._repeats(said, number) for number in others) or any(
            self._continues(later, earlier) for earlier, later in combinations(others, 2)
        )

    def _repeats(self, said: str, number: int) -> bool:
        """Return whether a text has a line of the request of a call: its first."""
        request = _recorded(*self._calls[number]).request.strip().partition("\n")[0]
        pattern = rf"(?<!\w){re.escape(request[:_REPEATED])}"
        return bool(request) and re.search(pattern, said) is not None

    def _is_given_up(self, place: int) -> bool:
        """Return whether the client of a call gave it up and made it again.

        It closed the connection; or it counts its tries, and made the next one before this one was
        answered. An agent that samples a prompt several times on purpose does neither.
        """
        span, _ = self._calls[place]
        if ended_by_agent(span):
            again = list(range(place + 1, len(self._calls)))
        else:
            later = (number for number in self._resent if number > place)
            again = [number for number in later if overlap(span, self._calls[number][0])]
        return any(self._has_same_prompt(place, number) for number in again)

    def _has_same_prompt(self, place: int, other: int) -> bool:
        mine, theirs = self._calls[place][1].prompt_ids, self._calls[other][1].prompt_ids
        if mine and theirs:
            return mine == theirs
        sent, again = self._text(place).sent, self._text(other).sent
        return bool(sent) and len(sent) == len(again) and sent[-1] == again[-1]

    def _is_measured(self, place: int) -> bool:
        """Return whether another call, of more than a token, begins with the messages of one."""
        mine = self._text(place).sent
        if not mine:
            return False
        for number, (span, _) in enumerate(self._calls):
            if number == place or span.attributes.get(_MAX_TOKENS) == 1:
                continue
            theirs = self._text(number).sent
            if len(theirs) >= len(mine) and theirs[len(mine) - 1] == mine[-1]:
                return True
        return False

    def _continues(self, later: int, earlier: int) -> bool:
        if self._before.get(later) == earlier:
            return True
        sent, answered = self._text(earlier)
        theirs = self._text(later).sent
        return len(theirs) > len(sent) and theirs[len(sent)] in answered

    def _text(self, place: int) -> _Texts:
        found = self._texts.get(place)
        if found is None:
            call = self._calls[place][1]
            found = self._texts[place] = _digests(sent_messages(call), answers_of(call))
        return found


def _digests(
    messages: Sequence[Mapping[str, Any]] | None, answers: Sequence[Mapping[str, Any]] | None
) -> _Texts:
    if not messages:
        return _Texts((), frozenset())
    state = hashlib.blake2b(digest_size=16)
    sent: list[bytes] = []
    for message in messages:
        state.update(_bytes(message))
        sent.append(state.digest())
    ends: set[bytes] = set()
    for answer in answers or ():
        end = state.copy()
        end.update(_bytes(answer))
        ends.add(end.digest())
    return _Texts(sent, frozenset(ends))


def _bytes(message: Mapping[str, Any]) -> bytes:
    # Texts may hold half of a surrogate pair, which UTF-8 does not have; JSON escapes it.
    return json.dumps(message, sort_keys=True, default=str).encode()


def _tries(span: Span) -> int:
    """Return how many times a client had sent a call before; 0 if it does not say."""
    value = span.attributes.get(_RESEND_COUNT)
    return value if isinstance(value, int) else 0


def _offers_tools(call: ModelCall) -> bool:
    tools, _ = call.structure("tools")
    return bool(tools)


def _recorded(span: Span, call: ModelCall) -> RecordedCall:
    messages = sent_messages(call) or []
    system = system_text(call)
    if system:
        messages.insert(0, {"role": "system", "content": system})
    answers = answers_of(call)
    answer: Any = answers[0]["content"] if answers else ""
    tools, _ = call.structure("tools")
    limit = span.attributes.get(_MAX_TOKENS)
    return RecordedCall(
        span,
        messages,
        answer if isinstance(answer, str) else "",
        len(cast("Sequence[Any]", tools)) if isinstance(tools, (list, tuple, dict)) else 0,
        limit if isinstance(limit, int) else None,
    )


# -- the rules of this process ---------------------------------------------------------------------

_known: tuple[Registry, tuple[CallRule, ...]] | None = None


def _rules() -> Iterable[CallRule]:
    global _known
    registry = get_registry()
    if _known is None or _known[0] is not registry:
        plugins = tuple(rule for _, rule in registry.resolved("call_rule"))
        _known = registry, (purpose_of, *plugins)
    return _known[1]
