"""What ``agl top`` shows: counts, rates, workers and the latest rollouts of a store."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from agl_algorithm_kit import stored_runs
from agl_core.status import worker_status
from agl_core.store import LightningStore
from agl_core.types import Rollout, RolloutStatus, Worker
from agl_top.clock import StoreClock
from agl_top.rewards import Rewards

_RATE_SECONDS: Final = 60.0
"""Time over which the rate is the mean."""
_RECENT: Final = 50
"""More than a screen has lines for."""
_OPEN: Final[list[RolloutStatus]] = ["running", "preparing"]
_FINISHED: Final[list[RolloutStatus]] = ["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Snapshot:
    """The state of a store at one moment."""

    time: float
    """By the store's clock."""
    counts: dict[RolloutStatus, int]
    """Number of rollouts by status."""
    finished_per_second: float | None
    """Over the last minute, or since the first snapshot; None for the first snapshot."""
    workers: Sequence[Worker]
    """Busy ones first; see :func:`as_shown`."""
    running: Sequence[Rollout]
    finished: Sequence[Rollout]
    """The latest, newest first."""
    rewards: dict[str, float | None] = field(default_factory=dict[str, float | None])
    """Final reward of each listed rollout by its id."""
    runs: dict[str, bool] = field(default_factory=dict[str, bool])
    """Whether each named run is finished."""

    @property
    def recent_rewards(self) -> list[float]:
        """Rewards of the latest finished rollouts, oldest first; other writers send NaN, too."""
        found = (self.rewards.get(each.rollout_id) for each in reversed(self.finished))
        return [value for value in found if value is not None and math.isfinite(value)]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def as_json(self) -> dict[str, Any]:
        rewards = self.recent_rewards
        return {
            "time": self.time,
            "counts": self.counts,
            "finished_per_second": self.finished_per_second,
            "workers": [worker.model_dump(mode="json") for worker in self.workers],
            "running": [rollout.rollout_id for rollout in self.running],
            "recent_reward_mean": sum(rewards) / len(rewards) if rewards else None,
            "recent_rewards": rewards,
            "runs": self.runs,
        }


def as_shown(worker: Worker, now: float) -> Worker:
    """Return a worker with its status for people: ``unknown`` if it is silent."""
    return worker.model_copy(update={"status": worker_status(worker, now=now)})


class Sampler:
    """Takes snapshots of one store and computes rates from one to the next.

    Args:
        store: The store.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._rewards = Rewards()
        self._clock = StoreClock()
        self._samples: deque[tuple[float, int]] = deque()
        """Times, and the number of finished rollouts at each."""

    async def take(self) -> Snapshot:
        """Read the store."""
        store = self._store
        counts: dict[RolloutStatus, int] = {}
        for status in get_args(RolloutStatus):
            counts[status] = (await store.query_rollouts(status_in=[status], limit=1)).total
        running = await store.query_rollouts(
            status_in=_OPEN, sort_by="start_time", sort_order="desc", limit=_RECENT
        )
        finished = await store.query_rollouts(
            status_in=_FINISHED, sort_by="end_time", sort_order="desc", limit=_RECENT
        )
        known = await store.query_workers()
        now = await self._clock.now(store)
        workers = [as_shown(worker, now) for worker in known]
        return Snapshot(
            now,
            counts,
            self._rate(now, sum(counts[status] for status in _FINISHED)),
            sorted(workers, key=lambda worker: (worker.status != "busy", worker.worker_id)),
            list(running),
            list(finished),
            await self._rewards.of(store, finished),
            {name: found.finished for name, found in (await stored_runs(store)).items()},
        )

    def _rate(self, now: float, finished: int) -> float | None:
        samples = self._samples
        samples.append((now, finished))
        while len(samples) > 2 and samples[1][0] <= now - _RATE_SECONDS:
            samples.popleft()
        first, before = samples[0]
        return max(0, finished - before) / (now - first) if now > first else None
