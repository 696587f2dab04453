"""What a pass over tasks found: outcomes, and the figures of a batch of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from agl_core.algorithm._reward_scale import RewardRange, RewardScale, earned_reward
from agl_core.statistics import (
    CONFIDENCE,
    Estimate,
    Gain,
    estimate_gain,
    estimate_mean,
    means_by_task,
    pass_at_k,
    reward_ends,
)
from agl_core.types import Rollout, Span, task_digest


@dataclass(frozen=True)
class RolloutOutcome:
    """Result of one task.

    Attributes:
        rollout: The rollout after its end; ``cancelled`` if it did not end in time.
        reward: Its final reward; None if it has none. :attr:`earned` is the one to score with.
        spans: The spans of its latest attempt, by sequence id.
        adapted: The adapter's output for the spans; None without an adapter or without spans.
        started: False if no runner had begun it when its batch timed out.
        infrastructure: What failed it that is not the agent, such as ``proxy``; None otherwise. It
            says nothing about the agent, so it is not scored.
    """

    rollout: Rollout
    reward: float | None
    spans: Sequence[Span] = field(repr=False)
    adapted: Any = field(default=None, repr=False)
    started: bool = True
    infrastructure: str | None = None

    @property
    def earned(self) -> float | None:
        """The reward of a rollout that finished; None for a failure (:func:`earned_reward`)."""
        return earned_reward(self.rollout.status, self.reward)

    @property
    def digest(self) -> str:
        """Digest of its task (:func:`agl_core.types.task_digest`)."""
        return task_digest(self.rollout.input)


@dataclass(frozen=True)
class BatchOutcome(Sequence[RolloutOutcome]):
    """Results of a batch, in the order of its tasks.

    Attributes:
        outcomes: One per task.
        resources_id: The snapshot that the tasks ran with.
        reward_range: Lowest and highest possible reward, if the user declared them.
    """

    outcomes: Sequence[RolloutOutcome]
    resources_id: str | None = None
    reward_range: RewardRange | None = None

    @overload
    def __getitem__(self, index: int) -> RolloutOutcome: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RolloutOutcome]: ...
    def __getitem__(self, index: int | slice) -> RolloutOutcome | Sequence[RolloutOutcome]:
        return self.outcomes[index]

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def scored(self) -> Sequence[RolloutOutcome]:
        """The outcomes that say something about the agent: those not failed by infrastructure."""
        return [one for one in self.outcomes if one.infrastructure is None]

    @property
    def scale(self) -> RewardScale:
        """The scale of the rewards: the declared one, or that of this batch."""
        scale = RewardScale(self.reward_range)
        scale.learn(one.earned for one in self.outcomes)
        return scale

    def rewards(self, missing: float | Literal["last"] | None = "last") -> list[float]:
        """Return a reward per task of :attr:`scored`.

        Args:
            missing: Reward of a failure: a task that failed, did not end in time, or got no
                reward. ``last`` is what :attr:`RewardScale.failure` says, which is below the
                rewards of all others; None leaves such tasks out.
        """
        if missing == "last":
            return self.scale.counted(one.earned for one in self.scored)
        found = (missing if o.earned is None else o.earned for o in self.scored)
        return [reward for reward in found if reward is not None]

    def task_rewards(
        self, missing: float | None = None, reward_range: tuple[float, float] | None = None
    ) -> dict[str, float]:
        """Return the mean reward of each task by its digest, in the order of the tasks.

        Args:
            missing: Reward of a failure: a rollout that failed, did not end in time, or got no
                reward. None takes the lowest possible one: the lower end of the range or, without
                a declared range, 0 or the lowest reward of the batch if that is below 0.
            reward_range: The declared range; by default that of the batch.
        """
        if missing is None:
            missing, _ = _reward_ends([self], reward_range)
        digests = (outcome.digest for outcome in self.scored)
        return means_by_task(zip(digests, self.rewards(missing), strict=True))

    def pass_at(self, k: int, threshold: float = 1.0) -> Estimate:
        """Return pass@k over the tasks with its interval: the chance that one of k attempts passes.

        Args:
            k: Number of attempts; every task needs as many rollouts.
            threshold: Reward from which on a rollout passes; a failure does not.

        Raises:
            InvalidArgumentError: A task has fewer than ``k`` rollouts, or there is none.
        """
        counts: dict[str, list[int]] = {}
        for outcome in self.scored:
            count = counts.setdefault(outcome.digest, [0, 0])
            count[0] += outcome.earned is not None and outcome.earned >= threshold
            count[1] += 1
        return estimate_mean([pass_at_k(passed, n, k) for passed, n in counts.values()])

    @property
    def attempts(self) -> int:
        """The smallest number of rollouts of a task."""
        return min(Counter(one.digest for one in self.scored).values(), default=0)

    def score(
        self,
        confidence: float = CONFIDENCE,
        *,
        missing: float | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> Estimate:
        """Return the mean reward over the tasks and its confidence interval.

        Several rollouts of one task count as one value, their mean.

        Args:
            confidence: Between 0 and 1, exclusive.
            missing: Reward of a failure; see :meth:`task_rewards`.
            reward_range: The declared range; by default that of the batch.

        Returns:
            Minus infinity, with an infinite interval, if no task finished and neither a range nor
            ``missing`` is given: nothing is known of the rewards then.

        Raises:
            InvalidArgumentError: The batch is empty, or a reward is outside the given range.
        """
        ends = _reward_ends([self], reward_range)
        values = list(self.task_rewards(missing, ends).values())
        given = (missing, reward_range, self.reward_range)
        if values and given == (None, None, None) and not self.rewards(missing=None):
            return Estimate(-math.inf, -math.inf, math.inf, len(values))
        return estimate_mean(values, confidence, reward_range=_widened(ends, missing))

    def gain_over(
        self,
        before: BatchOutcome,
        confidence: float = CONFIDENCE,
        *,
        missing: float | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> Gain:
        """Return the mean gain over an earlier batch, paired by task, and its confidence interval.

        Args:
            before: The other batch; tasks that only one of the two has are left out.
            confidence: Between 0 and 1, exclusive.
            missing: Reward of a failure; see :meth:`paired_with`.
            reward_range: The declared range; by default that of the batches.

        Raises:
            InvalidArgumentError: The batches share no task, or a reward is outside the given range.
        """
        ends = _reward_ends([self, before], reward_range)
        pairs = self.paired_with(before, missing=missing, reward_range=ends).values()
        return estimate_gain(
            [old for old, _ in pairs],
            [new for _, new in pairs],
            confidence,
            reward_range=_widened(ends, missing),
        )

    def paired_with(
        self,
        before: BatchOutcome,
        *,
        missing: float | None = None,
        reward_range: tuple[float, float] | None = None,
    ) -> dict[str, tuple[float, float]]:
        """Return the mean rewards of each task that both batches have: in ``before``, and here.

        Args:
            before: The other batch.
            missing: Reward of a failure; see :meth:`task_rewards`. Without a declared range the
                lowest reward of both batches counts.
            reward_range: The declared range; by default that of the batches.

        Returns:
            By the task's digest, in the order of ``before``.
        """
        ends = _reward_ends([self, before], reward_range)
        old, new = (one.task_rewards(missing, ends) for one in (before, self))
        return {task: (old[task], new[task]) for task in old if task in new}

    def statuses(self) -> dict[str, int]:
        """Count the tasks by the status they ended with."""
        return dict(Counter(outcome.rollout.status for outcome in self.outcomes))


@dataclass(frozen=True)
class ComparisonOutcome:
    """Outcomes of the same tasks with two snapshots.

    Attributes:
        before: With the first snapshot.
        after: With the second one.
    """

    before: BatchOutcome
    after: BatchOutcome

    def pairs(
        self, *, reward_range: tuple[float, float] | None = None
    ) -> dict[str, tuple[float, float]]:
        """Return the mean rewards of each task, before and after, by the task's digest."""
        return self.after.paired_with(self.before, reward_range=reward_range)

    def gain(
        self,
        confidence: float = CONFIDENCE,
        *,
        reward_range: tuple[float, float] | None = None,
    ) -> Gain:
        """Return the gain, paired by task; see :meth:`BatchOutcome.gain_over`."""
        return self.after.gain_over(self.before, confidence, reward_range=reward_range)


def _reward_ends(
    batches: Sequence[BatchOutcome], given: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the lowest and the highest possible reward of batches of one agent.

    Args:
        batches: The batches.
        given: The range that the caller declares; None takes what the scale of the rewards says.

    Raises:
        InvalidArgumentError: A reward is outside the given range.
    """
    rewards = [reward for one in batches for reward in one.rewards(missing=None)]
    if given is not None:
        return reward_ends(rewards, given)
    declared = (one.reward_range for one in batches if one.reward_range is not None)
    scale = RewardScale(next(declared, None))
    scale.learn(rewards)
    return scale.ends


def _widened(ends: tuple[float, float], missing: float | None) -> tuple[float, float]:
    """Return a range that includes what the caller lets a failure count."""
    return ends if missing is None else (min(ends[0], missing), max(ends[1], missing))
