"""Rewards of rollouts, which a store keeps in spans."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from agl_core.emitter import find_final_reward
from agl_core.errors import SpansEvictedError
from agl_core.store import LightningStore
from agl_core.types import FINISHED_STATUSES, AttemptedRollout, Rollout

_REMEMBERED: Final = 10_000
"""Rewards of ended attempts, which do not change; 1 MB."""
_AT_ONCE: Final = 8
"""Queries at a time; runners' calls run beside them."""


class Rewards:
    """Reads the final rewards of rollouts; remembers those of finished ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], float | None] = OrderedDict()

    async def of(
        self, store: LightningStore, rollouts: Iterable[Rollout]
    ) -> dict[str, float | None]:
        """Return the reward of the latest attempt of each rollout by the rollout's id."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(rollout: Rollout) -> tuple[str, float | None]:
            async with slots:
                return rollout.rollout_id, await self._reward(store, rollout)

        return dict(await asyncio.gather(*(one(rollout) for rollout in rollouts)))

    async def _reward(self, store: LightningStore, rollout: Rollout) -> float | None:
        if not isinstance(rollout, AttemptedRollout):
            return None
        key = (rollout.rollout_id, rollout.attempt.attempt_id)
        finished = rollout.status in FINISHED_STATUSES
        if finished and key in self._known:
            return self._known[key]
        try:
            reward = find_final_reward(list(await store.query_spans(*key)))
        except (SpansEvictedError, ValueError):  # evicted, or malformed reward attributes
            reward = None
        if finished:
            self._known[key] = reward
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return reward
