"""Stores on the engine: what an agent writes after the end of its attempt."""

from __future__ import annotations

import pytest

from agl_core.emitter import find_final_reward
from agl_core.errors import AttemptEndedError
from agl_core.semconv import PRIMARY_REWARD_VALUE
from agl_core.store import LightningStore
from agl_core.types import Span
from agl_store_kit import EngineStore, late_seconds
from agl_testing.store.base import StoreTests

__all__ = ["EndedTests"]


class EndedTests(StoreTests):
    """An agent's writes after the end; the store server sets ``late_seconds`` for them."""

    async def test_an_agent_writes_nothing_after_the_end(self, store: LightningStore):
        if not isinstance(store, EngineStore):
            pytest.skip("only stores on the engine know who writes")
        for status in ("succeeded", "failed", "cancelled"):
            ended, open_ = await store.start_rollout("a"), await store.start_rollout("b")
            ids = (ended.rollout_id, ended.attempt.attempt_id)
            await store.add_span(_reward(*ids, 1, 0.1))
            if status == "cancelled":
                await store.update_rollout(ids[0], status=status)
            else:
                await store.update_attempt(*ids, status=status)
            late = [
                _reward(open_.rollout_id, open_.attempt.attempt_id, 1, 0.5),
                _reward(*ids, 2, 9.0),
            ]
            reset = late_seconds.set(0.0)
            try:
                with pytest.raises(AttemptEndedError):
                    await store.add_many_spans(late)
            finally:
                late_seconds.reset(reset)
            assert find_final_reward((await store.query_spans(ids[0])).items) == 0.1
            assert not (await store.query_spans(open_.rollout_id)).items
            first = await store.query_rollouts(sort_by="reward", sort_order="desc", limit=1)
            assert first.items[0].rollout_id != open_.rollout_id
            # Everyone else may write: a judge does so after the end.
            assert len(await store.add_many_spans(late)) == 2
            assert find_final_reward((await store.query_spans(ids[0])).items) == 9.0
        for status in ("timeout", "unresponsive"):
            claim = await store.start_rollout("c")
            await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status=status)
            reset = late_seconds.set(0.0)
            try:
                await store.add_span(_reward(claim.rollout_id, claim.attempt.attempt_id, 1, 0.5))
            finally:
                late_seconds.reset(reset)


def _reward(rollout_id: str, attempt_id: str, sequence_id: int, value: float) -> Span:
    return Span.from_attributes(
        attributes={PRIMARY_REWARD_VALUE: value},
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
    )
