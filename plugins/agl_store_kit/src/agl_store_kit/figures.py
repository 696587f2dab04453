"""Figures of a rollout's latest attempt, which stores keep beside the records to sort by them.

``reward`` is the primary reward that arrived last, ``duration`` the seconds that the attempt took.
A missing one sorts as the smallest. No record has them; they are fields of queries only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from agl_core.semconv import LATE, PRIMARY_REWARD_VALUE, WRITTEN_BY
from agl_core.store import EncodedSpan, finite_number
from agl_core.types import Attempt
from agl_store_kit.backend import RolloutState
from agl_store_kit.lifecycle import Change

_REWARD_BYTES: Final = PRIMARY_REWARD_VALUE.encode()
_WRITER_BYTES: Final = WRITTEN_BY.encode()


def reward_of(span: EncodedSpan) -> float | None:
    """Return the finite primary reward that a span carries, or None."""
    if span.reward is not None:
        return span.reward
    parts = span.parts
    # Decoding a span costs more than storing it, and rfind takes half the time of a search.
    if span.has_reward is False or (parts is None and span.payload.rfind(_REWARD_BYTES) < 0):
        return None
    attributes: Any = (span.decode() if parts is None else parts).attributes
    value = None if attributes.get(LATE) else attributes.get(PRIMARY_REWARD_VALUE)
    return finite_number(value)


def last_rewards(spans: Iterable[EncodedSpan]) -> dict[tuple[str, str], float]:
    """Return the reward with the highest sequence id, by rollout id and attempt id."""
    rewards = [(each, value) for each in spans if (value := reward_of(each)) is not None]
    if rewards:  # in few calls
        rewards.sort(key=lambda item: item[0].sequence_id)
    return {(span.rollout_id, span.attempt_id): value for span, value in rewards}


def is_own(span: EncodedSpan) -> bool:
    """Return whether the agent itself wrote a span, with its attempt's token."""
    parts = span.parts
    if parts is None and _WRITER_BYTES not in span.payload:
        return False
    return (span.decode() if parts is None else parts).attributes.get(WRITTEN_BY) == "attempt"


def has_other_reward(spans: Iterable[EncodedSpan]) -> bool:
    """Return whether one of an attempt's spans has a reward that the agent did not write itself."""
    return any(reward_of(span) is not None and not is_own(span) for span in spans)


def settle_rewards(spans: Iterable[EncodedSpan]) -> dict[tuple[str, str], list[EncodedSpan]]:
    """Leave the agent's own rewards out of the figures where spans hold another's, too.

    Returns:
        The agent's own rewards that are left, by rollout id and attempt id: those of attempts of
        which the spans hold no other reward. The store may have one.
    """
    own: dict[tuple[str, str], list[EncodedSpan]] = {}
    judged: set[tuple[str, str]] = set()
    for span in spans:
        if reward_of(span) is None:
            continue
        ids = (span.rollout_id, span.attempt_id)
        if is_own(span):
            own.setdefault(ids, []).append(span)
        else:
            judged.add(ids)
    for ids in judged & own.keys():
        leave_out(own.pop(ids))
    return own


def leave_out(spans: Iterable[EncodedSpan]) -> None:
    """Let no reward of these spans become a figure."""
    for span in spans:
        span.has_reward, span.reward = False, None


def duration_of(attempt: Attempt) -> float | None:
    """Return the seconds that an attempt took, or None while it runs."""
    return None if attempt.end_time is None else attempt.end_time - attempt.start_time


def changed_figures(state: RolloutState, change: Change) -> dict[str, float | None]:
    """Return the figures that a change sets, by name; ``state`` is what it was decided upon."""
    attempt, before, reward = change.attempt, state.attempt, change.reward
    if attempt is not None and attempt.sequence_id > state.attempt_count:
        return {"reward": None, "duration": duration_of(attempt)}
    figures: dict[str, float | None] = {}
    if before is not None and before.sequence_id == state.attempt_count:  # the latest
        if attempt is not None and attempt.end_time != before.end_time:
            figures["duration"] = duration_of(attempt)
        if reward is not None:
            figures["reward"] = reward
    return figures
