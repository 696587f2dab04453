"""JSON of the progress of training: scores, batches, and their groups of rollouts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from agl_core.types import RolloutMode

__all__ = [
    "BatchGroups",
    "BatchSummary",
    "GroupMember",
    "PairedGain",
    "RolloutGroup",
    "Score",
    "SnapshotScore",
    "TrainingSummary",
]


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
