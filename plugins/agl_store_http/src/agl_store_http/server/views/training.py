"""The progress of training: figures of every batch, which follow the rollouts as they end.

A rollout is read once when it appears, and once when it has ended, so the cost of an answer does
not grow with the number of rollouts that were read before. A judge gives its reward after the end,
so the newest rollouts that lack one are read again now and then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from statistics import fmean, stdev
from typing import Final, get_args

from agl_core.algorithm import earned_reward
from agl_core.errors import SpansEvictedError
from agl_core.statistics import estimate_gain, reward_ends
from agl_core.store import EncodedSpan, LightningStore
from agl_core.types import (
    FINISHED_STATUSES,
    AttemptedRollout,
    Rollout,
    RolloutMode,
    RolloutStatus,
    task_digest,
)
from agl_store_http.server.views.training_figures import Batch, Member, Rewards, Unrated, lost_to
from agl_store_http.server.views.training_schemas import (
    BatchGroups,
    GroupMember,
    PairedGain,
    RolloutGroup,
    SnapshotScore,
    TrainingSummary,
)
from agl_store_kit import Pauses, in_slices, is_own, reward_of

__all__ = ["Training"]

_ENDED: Final[Sequence[RolloutStatus]] = [
    status for status in get_args(RolloutStatus) if status in FINISHED_STATUSES
]
_PAGE: Final = 500
"""Rollouts per query, which holds a database's thread for some milliseconds."""
_AT_ONCE: Final = 16
"""Rollouts whose spans are read at a time; runners' calls run beside them."""
_FEW: Final = 20
"""Batches whose scores are computed at a stretch."""
_NEWEST: Final = 8
"""Spans of an attempt that are read first: its last reward is nearly always among the newest."""
_MOST_UNRATED: Final = 500
"""Rollouts without a reward that are read again, which takes some 0.1 s."""
_UNRATED_SECONDS: Final = 10.0
"""Pause between two such readings: pages ask every second."""


def _snapshot_scores(
    snapshots: Sequence[tuple[tuple[str, RolloutMode | None], Rewards]],
) -> list[SnapshotScore]:
    return [
        SnapshotScore(
            resources_id=resources_id, mode=mode, rollouts=rewards.rollouts, **rewards.fields()
        )
        for (resources_id, mode), rewards in snapshots
    ]


class Training:
    """Follows the batches of one store. For one event loop.

    A rollout that changes after it has ended, since it is retried or gets another reward, keeps its
    earlier outcome. Only a first reward still counts.

    Args:
        store: The store.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._reading: asyncio.Task[None] | None = None
        self._forget()

    def _forget(self) -> None:
        self._batches: dict[tuple[str, str], Batch] = {}
        self._snapshots: dict[tuple[str, RolloutMode | None], Rewards] = {}
        self._open: dict[str, tuple[Batch, Member]] = {}
        self._unrated: deque[Unrated] = deque(maxlen=_MOST_UNRATED)
        self._unrated_read = time.monotonic()
        self._seen = 0
        """Number of rollouts, in insertion order, that were read."""
        self._last = ""
        """Id of the last of them."""
        self._total = 0

    async def summary(self, patience: float) -> TrainingSummary:
        """Return the batches of all runs.

        Reading goes on in the background when it takes longer than ``patience``.

        Args:
            patience: Longest wait, in seconds.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="agl-training-summary")
        reading = self._reading
        await asyncio.wait({reading}, timeout=patience)
        if reading.done():
            reading.result()
        complete, read, total = reading.done(), self._seen, self._total
        batches, snapshots = list(self._batches.values()), list(self._snapshots.items())
        return TrainingSummary(
            batches=await in_slices(lambda part: [each.summary() for each in part], batches, _FEW),
            snapshots=await in_slices(_snapshot_scores, snapshots, _FEW),
            complete=complete,
            read=read,
            total=total,
        )

    async def groups(self, run: str, batch: str, patience: float) -> BatchGroups:
        """Return the rollouts of one batch by task.

        Args:
            run: Name of the run; empty for rollouts without one.
            batch: Name of the batch.
            patience: Longest wait for rewards that are not read yet, in seconds.
        """
        await self.summary(patience)
        found = self._batches.get((run, batch)) or Batch(run, batch)
        newest = list(found.newest)
        rollouts: dict[str, Rollout] = {}
        for at in range(0, len(newest), _PAGE):
            ids = [each.rollout_id for each in newest[at : at + _PAGE]]
            page = await self._store.query_rollouts(rollout_id_in=ids)
            rollouts.update((rollout.rollout_id, rollout) for rollout in page)
        groups: dict[str, RolloutGroup] = {}
        values: dict[str, list[float]] = {}
        counts_missing = found.rewards.score is not None
        pauses = Pauses()
        for member in newest:
            await pauses.take()
            rollout = rollouts.get(member.rollout_id)
            if rollout is None:
                continue  # dropped since
            key = task_digest(rollout.input)
            empty = RolloutGroup(task=rollout.input, rollouts=[], reward_mean=None, reward_std=None)
            group = groups.setdefault(key, empty)
            group.rollouts.append(
                GroupMember(
                    rollout_id=member.rollout_id,
                    status=rollout.status,
                    reward=member.reward,
                    infrastructure=lost_to(rollout),
                )
            )
            if lost_to(rollout) is not None:
                continue
            earned = earned_reward(rollout.status, member.reward)
            if earned is not None:
                values.setdefault(key, []).append(earned)
            elif counts_missing and rollout.status in FINISHED_STATUSES:
                values.setdefault(key, []).append(found.rewards.lowest)
        for key, own in values.items():
            groups[key].reward_mean = fmean(own)
            groups[key].reward_std = stdev(own) if len(own) > 1 else None
        return BatchGroups(groups=list(groups.values()), rollouts=found.rollouts)

    async def gain(
        self, before: str, after: str, mode: RolloutMode | None, patience: float
    ) -> PairedGain:
        """Return the gain of one snapshot over another, paired by task.

        Args:
            before: Id of the one.
            after: Id of the other.
            mode: Mode of the rollouts that are compared.
            patience: Longest wait for rewards that are not read yet, in seconds.
        """
        await self.summary(patience)
        old, new = (self._snapshots.get((one, mode), Rewards()) for one in (before, after))
        ends = reward_ends([*old.extremes, *new.extremes])
        olds, news = old.means(ends[0]), new.means(ends[0])
        shared = [task for task in olds if task in news]
        if not shared or old.score is None or new.score is None:
            return PairedGain(tasks=0, gain_mean=None, gain_low=None, gain_high=None)
        values = [olds[task] for task in shared], [news[task] for task in shared]
        # 0.1 s for 100,000 tasks.
        found = await asyncio.to_thread(estimate_gain, *values, reward_range=ends)
        return PairedGain(
            tasks=found.n, gain_mean=found.mean, gain_low=found.low, gain_high=found.high
        )

    def members(self, run: str) -> dict[str, list[str]]:
        """Return the ids of the newest rollouts of each batch of a run, oldest first."""
        return {
            batch.batch: [member.rollout_id for member in batch.newest]
            for batch in self._batches.values()
            if batch.run == run
        }

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def _read(self) -> None:
        waiting = list(self._open)
        for at in range(0, len(waiting), _PAGE):
            ended = await self._store.query_rollouts(
                rollout_id_in=waiting[at : at + _PAGE], status_in=_ENDED
            )
            await self._take(ended.items)
        while True:
            # The page begins with the last rollout read: if another is there, rollouts were
            # dropped, and offsets mean others now.
            known = min(self._seen, 1)
            page = await self._store.query_rollouts(limit=known + _PAGE, offset=self._seen - known)
            if known and (not page.items or page.items[0].rollout_id != self._last):
                self._forget()
                continue
            new = page.items[known:]
            self._total = page.total
            await self._take(new)
            self._seen += len(new)
            if new:
                self._last = new[-1].rollout_id
            if not new or self._seen >= page.total:
                break
        await self._read_unrated()

    async def _read_unrated(self) -> None:
        if time.monotonic() - self._unrated_read < _UNRATED_SECONDS:
            return
        self._unrated_read = time.monotonic()
        unrated = list(self._unrated)
        rewards = await asyncio.gather(
            *(self._reward_of(one.rollout_id, one.attempt_id) for one in unrated)
        )
        self._unrated.clear()
        for one, reward in zip(unrated, rewards, strict=True):
            if reward is None or not math.isfinite(reward):
                self._unrated.append(one)
                continue
            one.member.reward = reward
            for figures in one.counted:
                figures.rate(one.task, reward)

    async def _take(self, rollouts: Sequence[Rollout]) -> None:
        rewards = await asyncio.gather(*(self._reward(rollout) for rollout in rollouts))
        for rollout, reward in zip(rollouts, rewards, strict=True):
            batch, member = self._open.pop(rollout.rollout_id, None) or self._begin(rollout)
            if rollout.status not in FINISHED_STATUSES:
                self._open[rollout.rollout_id] = batch, member
                continue
            batch.end(member, rollout, reward)
            counted = [batch.rewards]
            if rollout.resources_id and lost_to(rollout) is None:
                snapshot = rollout.resources_id, rollout.mode
                of_snapshot = self._snapshots.setdefault(snapshot, Rewards())
                of_snapshot.add(rollout, reward)
                counted.append(of_snapshot)
            if (
                isinstance(rollout, AttemptedRollout)
                and rollout.status == "succeeded"
                and earned_reward(rollout.status, reward) is None
            ):
                ids = rollout.rollout_id, rollout.attempt.attempt_id
                self._unrated.append(Unrated(*ids, task_digest(rollout.input), member, counted))

    def _begin(self, rollout: Rollout) -> tuple[Batch, Member]:
        labels = rollout.metadata or {}
        run, name = str(labels.get("run") or ""), str(labels.get("batch") or "")
        if rollout.mode == "test" and rollout.resources_id:
            # A comparison runs two prompts in one batch; their scores are no common mean.
            name = f"{name} {rollout.resources_id}".strip()
        batch = self._batches.setdefault((run, name), Batch(run, name))
        return batch, batch.begin(rollout)

    async def _reward(self, rollout: Rollout) -> float | None:
        if rollout.status not in FINISHED_STATUSES or not isinstance(rollout, AttemptedRollout):
            return None
        return await self._reward_of(rollout.rollout_id, rollout.attempt.attempt_id)

    async def _reward_of(self, rollout_id: str, attempt_id: str) -> float | None:
        ids = rollout_id, attempt_id
        query = self._store.query_encoded_spans
        async with self._slots:
            try:
                newest = await query(*ids, sort_order="desc", limit=_NEWEST)
                # Spans of one sequence id are in the order of insertion, also from last to first.
                # Only a span with a reward is asked for its id, which may cost reading its JSON.
                rewarded = [span for span in newest.items if reward_of(span) is not None]
                reward, final = _counting(sorted(rewarded, key=attrgetter("sequence_id")))
                if not final and newest.total > len(newest.items):
                    reward, _ = _counting((await query(*ids)).items)
            except SpansEvictedError:
                return None
        return reward


def _counting(spans: Sequence[EncodedSpan]) -> tuple[float | None, bool]:
    """Return the reward that counts, and whether no earlier span can outrank it."""
    own = None
    for span in reversed(spans):
        value = reward_of(span)
        if value is None:
            continue
        if not is_own(span):
            return value, True
        own = value if own is None else own
    return own, False
