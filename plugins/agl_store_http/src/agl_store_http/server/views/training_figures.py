"""The figures of batches and snapshots, which grow with each rollout that ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agl_core.algorithm import earned_reward
from agl_core.statistics import Estimate, estimate_mean, reward_ends
from agl_core.status import failed_by
from agl_core.types import AttemptedRollout, Rollout, task_digest
from agl_store_http.server.views.training_schemas import BatchSummary

__all__ = ["Batch", "Member", "Rewards", "Unrated", "lost_to"]

_MOST_GROUPED: Final = 2000
"""Rollouts of a batch that a page shows; larger batches show their newest."""


@dataclass(slots=True)
class Member:
    rollout_id: str
    reward: float | None = None


@dataclass(slots=True)
class Task:
    """The rollouts of one task that count."""

    total: float = 0.0
    """Sum of the rewards."""
    rewarded: int = 0
    missing: int = 0
    """Rollouts that ended without a reward."""


@dataclass(slots=True)
class Rewards:
    """The rewards of rollouts by task."""

    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
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
        task = self.tasks.setdefault(task_digest(rollout.input), Task())
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

    def _count(self, task: Task, reward: float) -> None:
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
class Unrated:
    """A rollout that succeeded without a reward."""

    rollout_id: str
    attempt_id: str
    task: str
    """Digest of its input."""
    member: Member
    counted: Sequence[Rewards]
    """Where it counts."""


@dataclass(slots=True)
class Batch:
    """What is known of the rollouts of one batch."""

    run: str
    batch: str
    rollouts: int = 0
    finished: int = 0
    failed: int = 0
    lost: int = 0
    rewards: Rewards = field(default_factory=Rewards)
    modes: set[str | None] = field(default_factory=set[str | None])
    resources_ids: dict[str, None] = field(default_factory=dict[str, None])
    start_time: float = math.inf
    end_time: float | None = None
    newest: deque[Member] = field(default_factory=lambda: deque[Member](maxlen=_MOST_GROUPED))

    def begin(self, rollout: Rollout) -> Member:
        """Add a rollout, open or not."""
        self.rollouts += 1
        self.modes.add(rollout.mode)
        if rollout.resources_id:
            self.resources_ids[rollout.resources_id] = None
        self.start_time = min(self.start_time, rollout.start_time)
        member = Member(rollout.rollout_id)
        self.newest.append(member)
        return member

    def end(self, member: Member, rollout: Rollout, reward: float | None) -> None:
        """Add how a rollout ended."""
        self.finished += 1
        member.reward = reward
        if lost_to(rollout) is not None:
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


def lost_to(rollout: Rollout) -> str | None:
    """Return what failed a rollout that is not the agent; None for any other rollout."""
    if rollout.status != "failed" or not isinstance(rollout, AttemptedRollout):
        return None
    return failed_by(rollout.attempt)
