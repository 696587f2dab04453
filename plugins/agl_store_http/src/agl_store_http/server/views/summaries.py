"""Summaries of the spans of rollouts: rewards, tokens, model calls.

Lists of rollouts show rewards and tokens, which a store keeps only in spans. Results of finished
rollouts are remembered until more spans come.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from agl_adapters import (
    MatchedCall,
    TraceToMessages,
    TraceTree,
    calls_among,
    distinct_calls,
    find_auxiliary_calls,
    total_tokens,
)
from agl_core.emitter import by_authority, get_reward_value, get_rewards_from_span
from agl_core.errors import InvalidArgumentError, SpansEvictedError
from agl_core.store import LightningStore
from agl_core.types import FINISHED_STATUSES, AttemptedRollout, Rollout, Span

__all__ = ["ModelCallView", "RolloutSummary", "Summaries", "TokenView", "model_calls"]

T = TypeVar("T")

_REMEMBERED: Final = 20_000
"""Summaries of ended attempts, which seldom change; the one unused longest goes."""
_AT_ONCE: Final = 16
"""Rollouts whose spans are read at a time; runners' calls run beside them."""
_FEW_SPANS: Final = 500
"""Spans that are read in a few milliseconds."""


class RolloutSummary(BaseModel):
    """Totals of the latest attempt of a rollout."""

    rollout_id: str
    attempt_id: str | None = None
    """None if the rollout has no attempt yet."""
    spans: int = 0
    model_calls: int = 0
    """Each counts once, also if both a client and a proxy recorded it."""
    input_tokens: int | None = None
    """None if no call tells it."""
    output_tokens: int | None = None
    reward: float | None = None
    """Primary dimension of the last reward."""
    rewards: dict[str, float] = {}
    """All dimensions of the last reward."""
    model: str | None = None
    """Model of the last call."""


class TokenView(BaseModel):
    """A token that a model sampled."""

    token: str
    logprob: float | None = None
    """Natural logarithm of its probability."""


class ModelCallView(BaseModel):
    """A model call, whatever vocabulary its span was written in."""

    span_id: str
    attempt_id: str
    name: str
    start_time: float | None
    end_time: float | None
    model: str | None
    model_version: str | None
    finish_reason: str | None
    input_tokens: int | None
    output_tokens: int | None
    messages: list[dict[str, Any]]
    """The request's messages and then the answers, in OpenAI's chat format."""
    tools: list[dict[str, Any]] | None
    response_token_ids: list[int]
    """Empty if they were not captured."""
    tokens: list[TokenView]
    """Sampled tokens with their log-probabilities; empty if they were not captured."""
    problem: str | None
    """Why the messages cannot be read; None if they can."""
    auxiliary: str | None = None
    """What an auxiliary call is for, such as a title; adapters leave those out by default."""


class Summaries:
    """Reads and remembers summaries of one store. For one event loop.

    Args:
        store: The store.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._known: OrderedDict[tuple[Any, ...], RolloutSummary] = OrderedDict()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def of(self, rollout_ids: Sequence[str]) -> list[RolloutSummary]:
        """Return the summaries of these rollouts; unknown ones are left out."""
        page = await self._store.query_rollouts(rollout_id_in=rollout_ids)
        return list(await asyncio.gather(*(self._summary(rollout) for rollout in page)))

    async def _summary(self, rollout: Rollout) -> RolloutSummary:
        if not isinstance(rollout, AttemptedRollout):
            return RolloutSummary(rollout_id=rollout.rollout_id)
        attempt = rollout.attempt
        ids = rollout.rollout_id, attempt.attempt_id
        finished = rollout.status in FINISHED_STATUSES
        spans: list[Sequence[Span]] = []
        key: tuple[Any, ...] = ()
        async with self._slots:
            try:
                if finished:
                    # Spans come after the end, too: a judge's reward, what an exporter held back.
                    total = (await self._store.query_encoded_spans(*ids, limit=1)).total
                    key = (*ids, rollout.status, rollout.end_time, total)
                    known = self._known.get(key)
                    if known is not None:
                        self._known.move_to_end(key)
                        return known
                page = await self._store.query_spans(*ids)
                spans.append(page.items)
                del page
            except SpansEvictedError:
                finished = False
                spans.append(())
        summary = await _off_the_loop(
            partial(_summarize, rollout.rollout_id, attempt.attempt_id), spans
        )
        if finished:
            self._known[key] = summary
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return summary


# -- reading spans ---------------------------------------------------------------------------------


async def _off_the_loop(read: Callable[[Sequence[Span]], T], held: list[Sequence[Span]]) -> T:
    """Read spans, in a thread if there are so many that it would hold the event loop.

    Args:
        read: Reads the spans.
        held: Holds the spans, and is emptied: the thread also frees them, which takes 0.1 s for
            100,000, if nobody else has them.
    """
    if len(held[0]) <= _FEW_SPANS:
        return read(held.pop())
    return await asyncio.to_thread(lambda: read(held.pop()))


def _reward_of(span: Span) -> float | None:
    """Return a span's finite reward; None if it has none, or one that cannot be read."""
    try:
        value = get_reward_value(span)
    except (ValueError, TypeError):
        return None
    return value if value is not None and math.isfinite(value) else None


def _summarize(rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> RolloutSummary:
    summary = RolloutSummary(rollout_id=rollout_id, attempt_id=attempt_id, spans=len(spans))
    calls = calls_among(spans)
    summary.model_calls = len(calls)
    summary.input_tokens, summary.output_tokens = total_tokens(calls)
    for call in reversed(calls):
        summary.model = _first(one.model for one in call.readings())
        if summary.model is not None:
            break
    for span in by_authority(spans):
        summary.reward = _reward_of(span)
        if summary.reward is not None:
            summary.rewards = _dimensions(span)
            break
    return summary


def _dimensions(span: Span) -> dict[str, float]:
    try:
        found = get_rewards_from_span(span)
    except ValueError:
        return {}
    return {each.name: each.value for each in found if math.isfinite(each.value)}


async def model_calls(
    store: LightningStore, rollout_id: str, attempt_id: str
) -> list[ModelCallView]:
    """Return the model calls of a rollout, each once, attempt by attempt."""
    page = await store.query_spans(rollout_id, attempt_id)
    spans: list[Sequence[Span]] = [page.items]
    del page
    return await _off_the_loop(_model_calls, spans)


def _model_calls(spans: Iterable[Span]) -> list[ModelCallView]:
    attempts: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        attempts.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    found: list[ModelCallView] = []
    for of_attempt in attempts.values():
        tree = TraceTree.of_any(of_attempt)
        auxiliary = find_auxiliary_calls(tree)
        found += [_view(call, auxiliary) for call in distinct_calls(tree)]
    return found


def _view(found: MatchedCall, auxiliary: Mapping[str, str]) -> ModelCallView:
    span = found.node.span
    readings = list(found.readings())
    taken, given = found.tokens
    messages: list[dict[str, Any]] = []
    tools = problem = None
    for source in found.spans:  # a proxy may have seen messages that the client did not record
        try:
            for conversation in TraceToMessages().adapt([source]):
                messages = [dict(message) for message in conversation["messages"]]
                tools = conversation["tools"]
        except InvalidArgumentError as error:
            problem = problem or str(error)
        if messages:
            problem = None
            break
    return ModelCallView(
        span_id=span.span_id,
        attempt_id=span.attempt_id,
        name=span.name,
        start_time=span.start_time,
        end_time=span.end_time,
        model=_first(one.model for one in readings),
        model_version=_first(one.model_version for one in readings),
        finish_reason=_first(one.finish_reason for one in readings),
        input_tokens=taken,
        output_tokens=given,
        messages=messages,
        tools=tools,
        response_token_ids=found.call.response_ids,
        tokens=[_token(entry) for entry in found.call.logprobs or ()],
        problem=problem,
        auxiliary=_first(auxiliary.get(one.span_id) for one in found.spans),
    )


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value is not None), None)


def _token(entry: Any) -> TokenView:
    if isinstance(entry, dict):
        return TokenView(token=str(entry.get("token", "")), logprob=_logprob(entry.get("logprob")))
    return TokenView(token="", logprob=_logprob(entry))


def _logprob(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return float(value) if known else None
