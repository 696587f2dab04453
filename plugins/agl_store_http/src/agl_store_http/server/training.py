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
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any, Final, get_args

from pydantic import BaseModel

from agl_core.algorithm import earned_reward
from agl_core.errors import SpansEvictedError
from agl_core.statistics import Estimate, estimate_gain, estimate_mean, reward_ends
from agl_core.status import failed_by
from agl_core.store import EncodedSpan, LightningStore
from agl_core.types import (
    FINISHED_STATUSES,
    AttemptedRollout,
    Rollout,
    RolloutMode,
    RolloutStatus,
    task_digest,
)
from agl_store_kit import Pauses, in_slices, is_own, reward_of

__all__ = [
    "BatchGroups",
    "BatchSummary",
    "PairedGain",
    "SnapshotScore",
    "Training",
    "TrainingSummary",
]

_ENDED: Final[Sequence[RolloutStatus]] = [
    status for status in get_args(RolloutStatus) if status in FINISHED_STATUSES
]
_PAGE: Final = 500
"""Rollouts per query, which holds a database's thread for some milliseconds."""
_AT_ONCE: Final = 16
"""Rollouts whose spans are read at a time; runners' calls run beside them."""
_FEW: Final = 20
"""Batches whose scores are computed at a stretch."""
_MOST_GROUPED: Final = 2000
"""Rollouts of a batch that a page shows; larger batches show their newest."""
_NEWEST: Final = 8
"""Spans of an attempt that are read first: its last reward is nearly always among the newest."""
_MOST_UNRATED: Final = 500
"""Rollouts without a reward that are read again, which takes some 0.1 s."""
_UNRATED_SECONDS: Final = 10.0
"""Pause between two such readings: pages ask every second."""


class Score(BaseModel):
    """The mean reward over tasks; several rollouts of a task count as one value.

    A rollout that failed or ended without a reward counts as the lowest possible one: 0, or the
    lowest reward beside it if that is below 0. One that was cancelled before an attempt does not
    count, and neither does one that the proxy or the store failed: it says nothing about the agent.
    """

    tasks: int
    """Tasks with a rollout that counts."""
    reward_mean: float | None
    """None if the agent gave no reward: no rollout has one, and not all of them failed."""
    reward_low: float | None
    """Lower end of the 95 % interval of the mean."""
    reward_high: float | None


class SnapshotScore(Score):
    """What the rollouts of one mode score with a snapshot of resources, over all its batches."""

    resources_id: str
    mode: RolloutMode | None
    rollouts: int
    """Rollouts that count."""


class PairedGain(BaseModel):
    """The mean gain of one snapshot over another on the tasks that both have, with its interval."""

    tasks: int
    """Tasks that both have; the figures below are None if there is none."""
    gain_mean: float | None
    gain_low: float | None
    """Lower end of the 95 % interval of the mean. The gain is shown if it is above 0."""
    gain_high: float | None


class BatchSummary(Score):
    """The rollouts of one batch of a run: a step, an epoch, or the candidates of a search."""

    run: str
    batch: str
    mode: str | None
    resources_ids: list[str]
    """Snapshots that its rollouts ran with."""
    rollouts: int
    finished: int
    failed: int
    """Rollouts that the agent failed."""
    lost: int
    """Rollouts that the proxy or the store failed."""
    rewarded: int
    """Rollouts that succeeded with a reward; the two figures below are about them."""
    reward_min: float | None
    reward_max: float | None
    start_time: float
    end_time: float | None
    """When the last rollout finished; None if one is open."""


class TrainingSummary(BaseModel):
    """Every batch of the store's runs, in the order in which they began."""

    batches: list[BatchSummary]
    snapshots: list[SnapshotScore]
    """Training, validation and test are never pooled: a snapshot has an entry per mode."""
    complete: bool
    """False while rewards of earlier rollouts are still being read; ask again."""
    read: int
    """Rollouts read so far."""
    total: int


class GroupMember(BaseModel):
    """A rollout of a group."""

    rollout_id: str
    status: str
    reward: float | None
    infrastructure: str | None = None
    """What failed it that is not the agent, such as ``proxy``; then it does not count."""


class RolloutGroup(BaseModel):
    """The rollouts of a batch that have the same task."""

    task: Any
    """Their input."""
    rollouts: list[GroupMember]
    """In the order in which they were enqueued."""
    reward_mean: float | None
    """An ended rollout without a reward counts as in the score of the batch."""
    reward_std: float | None
    """Standard deviation of the same values; None for fewer than two. A group whose rewards are
    all equal has 0, and teaches a group-relative algorithm nothing."""


class BatchGroups(BaseModel):
    """The groups of one batch, in the order of their first rollouts."""

    groups: list[RolloutGroup]
    rollouts: int
    """Rollouts of the batch; only the newest 2,000 are in the groups."""


@dataclass(slots=True)
class _Member:
    rollout_id: str
    reward: float | None = None


@dataclass(slots=True)
class _Task:
    """The rollouts of one task that count."""

    total: float = 0.0
    """Sum of the rewards."""
    rewarded: int = 0
    missing: int = 0
    """Rollouts that ended without a reward."""


@dataclass(slots=True)
class _Rewards:
    """The rewards of rollouts by task."""

    tasks: dict[str, _Task] = field(default_factory=dict[str, _Task])
    rollouts: int = 0
    rewarded: int = 0
    unrated: int = 0
    """Rollouts that succeeded without a reward."""
    low: float = math.inf
    high: float = -math.inf
    _score: Estimate | None = None

    def add(self, rollout: Rollout, reward: float | None) -> None:
        """Add a rollout that has ended; the reward of one that failed does not count."""
        if rollout.status == "cancelled" and not isinstance(rollout, AttemptedRollout):
            return
        self._score = None
        self.rollouts += 1
        task = self.tasks.setdefault(task_digest(rollout.input), _Task())
        reward = earned_reward(rollout.status, reward)
        if reward is None:
            task.missing += 1
            self.unrated += rollout.status == "succeeded"
        else:
            self._count(task, reward)

    def rate(self, digest: str, reward: float) -> None:
        """Take the reward of a rollout that was added as one that succeeded without it."""
        self._score = None
        task = self.tasks[digest]
        task.missing -= 1
        self.unrated -= 1
        self._count(task, reward)

    def _count(self, task: _Task, reward: float) -> None:
        self.rewarded += 1
        task.rewarded += 1
        task.total += reward
        self.low, self.high = min(self.low, reward), max(self.high, reward)

    @property
    def extremes(self) -> list[float]:
        """The lowest and the highest reward; empty if there is none."""
        return [self.low, self.high] if self.rewarded else []

    @property
    def lowest(self) -> float:
        """What a rollout counts that ended without a reward."""
        return reward_ends(self.extremes)[0]

    def means(self, lowest: float) -> dict[str, float]:
        """Return the mean reward of each task.

        Args:
            lowest: What a rollout counts that ended without a reward.
        """
        return {
            task: (one.total + one.missing * lowest) / (one.rewarded + one.missing)
            for task, one in self.tasks.items()
        }

    @property
    def score(self) -> Estimate | None:
        """The mean over the tasks; None if the agent gave no reward."""
        if not self.rollouts or (self.unrated and not self.rewarded):
            return None
        if self._score is None:
            # The range of all rewards, which may be wider than that of the tasks' means.
            ends = reward_ends(self.extremes)
            self._score = estimate_mean(list(self.means(ends[0]).values()), reward_range=ends)
        return self._score

    def fields(self) -> dict[str, Any]:
        """Return the fields of :class:`Score`."""
        score = self.score
        return {
            "tasks": len(self.tasks),
            "reward_mean": score and score.mean,
            "reward_low": score and score.low,
            "reward_high": score and score.high,
        }


@dataclass(slots=True)
class _Unrated:
    """A rollout that succeeded without a reward."""

    rollout_id: str
    attempt_id: str
    task: str
    """Digest of its input."""
    member: _Member
    counted: Sequence[_Rewards]
    """Where it counts."""


@dataclass(slots=True)
class _Batch:
    """What is known of the rollouts of one batch."""

    run: str
    batch: str
    rollouts: int = 0
    finished: int = 0
    failed: int = 0
    lost: int = 0
    rewards: _Rewards = field(default_factory=_Rewards)
    modes: set[str | None] = field(default_factory=set[str | None])
    resources_ids: dict[str, None] = field(default_factory=dict[str, None])
    start_time: float = math.inf
    end_time: float | None = None
    newest: deque[_Member] = field(default_factory=lambda: deque[_Member](maxlen=_MOST_GROUPED))

    def begin(self, rollout: Rollout) -> _Member:
        """Add a rollout, open or not."""
        self.rollouts += 1
        self.modes.add(rollout.mode)
        if rollout.resources_id:
            self.resources_ids[rollout.resources_id] = None
        self.start_time = min(self.start_time, rollout.start_time)
        member = _Member(rollout.rollout_id)
        self.newest.append(member)
        return member

    def end(self, member: _Member, rollout: Rollout, reward: float | None) -> None:
        """Add how a rollout ended."""
        self.finished += 1
        member.reward = reward
        if _lost_to(rollout) is not None:
            self.lost += 1
        else:
            self.failed += rollout.status == "failed"
            self.rewards.add(rollout, reward)
        if rollout.end_time is not None:
            self.end_time = max(self.end_time or 0.0, rollout.end_time)

    def summary(self) -> BatchSummary:
        rewards = self.rewards
        known = rewards.rewarded > 0
        return BatchSummary(
            run=self.run,
            batch=self.batch,
            mode=next(iter(self.modes)) if len(self.modes) == 1 else None,
            resources_ids=list(self.resources_ids),
            rollouts=self.rollouts,
            finished=self.finished,
            failed=self.failed,
            lost=self.lost,
            rewarded=rewards.rewarded,
            **rewards.fields(),
            reward_min=rewards.low if known else None,
            reward_max=rewards.high if known else None,
            start_time=self.start_time,
            end_time=self.end_time if self.finished == self.rollouts else None,
        )


def _snapshot_scores(
    snapshots: Sequence[tuple[tuple[str, RolloutMode | None], _Rewards]],
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
        self._batches: dict[tuple[str, str], _Batch] = {}
        self._snapshots: dict[tuple[str, RolloutMode | None], _Rewards] = {}
        self._open: dict[str, tuple[_Batch, _Member]] = {}
        self._unrated: deque[_Unrated] = deque(maxlen=_MOST_UNRATED)
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
        found = self._batches.get((run, batch)) or _Batch(run, batch)
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
                    infrastructure=_lost_to(rollout),
                )
            )
            if _lost_to(rollout) is not None:
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
        old, new = (self._snapshots.get((one, mode), _Rewards()) for one in (before, after))
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
            if rollout.resources_id and _lost_to(rollout) is None:
                snapshot = rollout.resources_id, rollout.mode
                of_snapshot = self._snapshots.setdefault(snapshot, _Rewards())
                of_snapshot.add(rollout, reward)
                counted.append(of_snapshot)
            if (
                isinstance(rollout, AttemptedRollout)
                and rollout.status == "succeeded"
                and earned_reward(rollout.status, reward) is None
            ):
                ids = rollout.rollout_id, rollout.attempt.attempt_id
                self._unrated.append(_Unrated(*ids, task_digest(rollout.input), member, counted))

    def _begin(self, rollout: Rollout) -> tuple[_Batch, _Member]:
        labels = rollout.metadata or {}
        run, name = str(labels.get("run") or ""), str(labels.get("batch") or "")
        if rollout.mode == "test" and rollout.resources_id:
            # A comparison runs two prompts in one batch; their scores are no common mean.
            name = f"{name} {rollout.resources_id}".strip()
        batch = self._batches.setdefault((run, name), _Batch(run, name))
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


def _lost_to(rollout: Rollout) -> str | None:
    """Return what failed a rollout that is not the agent; None for any other rollout."""
    if rollout.status != "failed" or not isinstance(rollout, AttemptedRollout):
        return None
    return failed_by(rollout.attempt)


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
