"""Rewards that arrive with spans."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from agl_core.semconv import PRIMARY_REWARD_VALUE
from agl_core.store import EncodedSpan, encode_span
from agl_core.types import Span
from agl_store_kit import last_rewards, reward_of
from agl_store_memory import InMemoryLightningStore


def span_of(attributes: dict[str, Any], sequence_id: int = 1) -> Span:
    return Span.from_attributes(
        attributes=attributes,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=sequence_id,
        name="a span",
    )


def encoded(span: Span, has_reward: bool | None) -> EncodedSpan:
    known = encode_span(span)
    ids = known.rollout_id, known.attempt_id, known.sequence_id, known.trace_id, known.span_id
    return EncodedSpan(*ids, None, span.name, None, None, known.payload, has_reward=has_reward)


@pytest.mark.parametrize("has_reward", [True, None])
def test_a_reward_is_found_where_there_may_be_one(has_reward: bool | None):
    assert reward_of(encoded(span_of({PRIMARY_REWARD_VALUE: 0.5}), has_reward)) == 0.5
    assert reward_of(encoded(span_of({"text": PRIMARY_REWARD_VALUE}), has_reward)) is None
    assert reward_of(encoded(span_of({PRIMARY_REWARD_VALUE: "high"}), has_reward)) is None


def test_a_span_that_says_it_has_no_reward_is_not_read():
    span = encoded(span_of({PRIMARY_REWARD_VALUE: 0.5}), has_reward=False)
    with patch.object(EncodedSpan, "decode", side_effect=AssertionError("the span was decoded")):
        assert reward_of(span) is None


def test_the_reward_of_the_highest_sequence_id_counts():
    values = {2: 0.25, 3: 0.75, 1: 1.0}
    spans = [
        encode_span(span_of({PRIMARY_REWARD_VALUE: value}, number))
        for number, value in values.items()
    ]
    assert last_rewards(spans) == {("ro-1", "at-1"): 0.75}


async def test_a_span_kept_as_an_object_has_its_reward():
    store = InMemoryLightningStore()
    made = await store.start_rollout("x")
    span = span_of({PRIMARY_REWARD_VALUE: 0.5})
    ids = {"rollout_id": made.rollout_id, "attempt_id": made.attempt.attempt_id}
    await store.add_span(span.model_copy(update=ids))
    (kept,) = (await store.query_encoded_spans(made.rollout_id)).items
    assert kept.parts is not None and reward_of(kept) == 0.5
