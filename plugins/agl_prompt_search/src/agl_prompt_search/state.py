"""The state of a search: a value that can be saved as JSON and loaded again."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, Field, PrivateAttr

from agl_core.algorithm import BatchOutcome, RewardScale
from agl_core.statistics import Estimate, estimate_mean
from agl_prompt_search.budget import Spending
from agl_prompt_search.selection import selection_excess

__all__ = ["Candidate", "CurvePoint", "SearchState"]


logger = logging.getLogger(__name__)

_LEAST_SHARE: Final = 0.5
"""Share of a candidate's rows on which another one must be better: fewer may just be easy ones."""


class Candidate(BaseModel):
    """A proposed candidate; one row of the history. Subclasses add the prompt or prompts.

    Attributes:
        version: ``v0`` is the seed; the others are numbered in the order of their proposal.
        parent: Version that it was edited from; None for the seed.
        round: Round that proposed it, from 1; 0 for the seed.
        critique: Criticism that the edit answers.
        rejected: Why it was rejected; empty if it was not.
        unusable: Whether it was rejected because the model's reply held no usable prompt.
        rewards: Reward on each validation row that it was measured on; on failed ones what a
            failure counts (:meth:`SearchState.recount`).
        failed: Validation rows on which the agent failed.
    """

    version: str
    parent: str | None = None
    round: int = 0
    critique: str = ""
    rejected: str = ""
    unusable: bool = False
    rewards: dict[int, float] = Field(default_factory=dict[int, float])
    failed: list[int] = Field(default_factory=list[int])
    _scale: RewardScale | None = PrivateAttr(default=None)
    """The scale of the search, for printed scores."""

    def texts(self) -> Mapping[str, str]:
        """Return its prompts by name, for the columns of the history."""
        raise NotImplementedError

    @property
    def number(self) -> int:
        """The number in its version."""
        return int(self.version.removeprefix("v"))

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Return the given validation rows that it was not measured on."""
        return [row for row in rows if row not in self.rewards and row not in self.failed]

    def record(self, row: int, reward: float | None) -> None:
        """Keep the reward of a validation row; None if the agent failed on it."""
        if reward is None:
            self.failed.append(row)
        else:
            self.rewards[row] = reward

    @property
    def earned(self) -> list[float]:
        """The rewards of the rows on which the agent finished."""
        return [reward for row, reward in self.rewards.items() if row not in self.failed]

    def failures(self, rows: Iterable[int]) -> int:
        """Return the number of these rows on which the agent failed."""
        return len(set(self.failed).intersection(rows))

    def count_failures(self, scale: RewardScale) -> None:
        """Set the rewards of failed rows to what a failure counts on a scale, if it is known."""
        self._scale = scale
        if math.isfinite(scale.failure):
            self.rewards.update(dict.fromkeys(self.failed, scale.failure))

    def mean(self, rows: Iterable[int] | None = None) -> float | None:
        """Return the mean reward over the given rows, or over all measured ones, for rankings.

        A failure counts less than every finished rollout. None if it was measured on none of them.
        """
        rewards = self._on(rows)
        return fmean(rewards.values()) if rewards else None

    def score(self, rows: Iterable[int] | None = None) -> Estimate | None:
        """Return the mean reward with its interval over the given rows, or over all measured ones.

        It is what people read: a failure counts the lowest possible reward. :meth:`mean` ranks.

        Returns:
            None if it was measured on none of them.
        """
        rewards = self.shown(rows)
        return estimate_mean(list(rewards.values()), reward_range=self._ends) if rewards else None

    def shown(self, rows: Iterable[int] | None = None) -> dict[int, float]:
        """Return its rewards as people read them: a failure counts the lowest possible reward."""
        rewards = self._on(rows)
        return rewards | dict.fromkeys(rewards.keys() & set(self.failed), self._ends[0])

    @property
    def _ends(self) -> tuple[float, float]:
        scale = self._scale or RewardScale()
        scale.learn(self.earned)
        return scale.ends

    def _on(self, rows: Iterable[int] | None) -> dict[int, float]:
        wanted = self.rewards if rows is None else rows
        return {row: self.rewards[row] for row in wanted if row in self.rewards}

    def beats(self, other: Candidate) -> bool:
        """Return whether it is strictly better on the rows that both were measured on.

        Of equal scores the one with fewer failures is better. On fewer than half of the other's
        rows, which is what the infrastructure left of the rest, it is not.
        """
        shared = sorted(self.rewards.keys() & other.rewards.keys())
        if len(shared) < _LEAST_SHARE * len(other.rewards):
            return False
        own, others = self.mean(shared), other.mean(shared)
        if own is None or others is None:
            return False
        return (own, -self.failures(shared)) > (others, -other.failures(shared))


class CurvePoint(BaseModel):
    """A point of the learning curve: the best prompt after a round, and the spending until then."""

    round: int
    best: str
    score: float | None
    low: float | None
    high: float | None
    rollouts: int
    calls: int
    tokens: int
    cost: float


C = TypeVar("C", bound=Candidate)


class SearchState(BaseModel, Generic[C]):
    """The state of a search between two steps.

    Attributes:
        seed: Seed of all random draws. A draw depends on the seed and its purpose, not on the
            number of draws before it, so a resumed run draws the same as an uninterrupted one.
        history: Every candidate, by number.
        best: Version of the best candidate so far.
        rounds: Number of completed rounds.
        curve: One point for the start and one per round.
        batches: Number of rollouts of each batch, by name.
        spent: Spending of the search.
        stopped: Why the search ended before its last round; empty if it did not.
        limits: Options that may stop it; a finished search goes on only with other ones.
        crashed: Whether a rollout failed; the trainer says why if none succeeded.
        unrated: Number of rollouts that succeeded without a reward, and count as failed.
    """

    seed: int
    history: list[C] = Field(default_factory=list[Any])
    best: str = "v0"
    rounds: int = 0
    curve: list[CurvePoint] = Field(default_factory=list[CurvePoint])
    batches: dict[str, int] = Field(default_factory=dict[str, int])
    spent: Spending = Field(default_factory=Spending)
    stopped: str = ""
    limits: dict[str, Any] = Field(default_factory=dict[str, Any])
    crashed: bool = False
    unrated: int = 0
    _unanswered: bool = PrivateAttr(default=False)
    _scale: RewardScale = PrivateAttr(default_factory=RewardScale)

    @property
    def unanswered(self) -> bool:
        """Whether the search ended because the models gave no answer."""
        return self._unanswered

    def stop_unanswered(self, reason: str) -> None:
        """Note that the search ends because the models give no answer."""
        self.stopped, self._unanswered = reason, True

    def asks_for_more(self, rounds: int, limits: Mapping[str, Any]) -> bool:
        """Return whether a finished search goes on with these options.

        Args:
            rounds: Number of rounds that are asked for.
            limits: See :attr:`limits`. What stopped the search would stop it again with the same.
        """
        return self.rounds < rounds and (not self.stopped or self.limits != limits)

    @property
    def solved(self) -> bool:
        """Whether the search ended because the best candidate solves every task."""
        return self.stopped.endswith("solves every validation task")

    def look_at(self, outcomes: BatchOutcome) -> None:
        """Take note of the rewards and failures of a batch."""
        self.crashed = self.crashed or "failed" in outcomes.statuses()
        self.unrated += sum(
            outcome.rollout.status == "succeeded" and outcome.earned is None
            for outcome in outcomes.scored
        )
        self._scale.learn(outcome.earned for outcome in outcomes)

    @property
    def scale(self) -> RewardScale:
        """The scale of the rewards, of which it has seen those of all candidates."""
        return self._scale

    def use_scale(self, scale: RewardScale) -> None:
        """Use a declared scale, and what a resumed run has seen."""
        self._scale = scale
        for candidate in self.history:
            scale.learn(candidate.earned)
        self.recount()

    def recount(self) -> None:
        """Set the rewards of failed rows to what a failure counts on the present scale.

        They have none as long as no scale is known.
        """
        for candidate in self.history:
            candidate.count_failures(self._scale)

    def is_solved(self, rows: Sequence[int], target: float | None) -> bool:
        """Return whether the best candidate has the highest possible reward on all these rows.

        Args:
            rows: Validation rows.
            target: The highest possible reward; None if it is not known.
        """
        best = self.candidate(self.best)
        if target is None or best.missing(rows) or best.failed:
            return False
        if any(best.rewards[row] < target for row in rows):
            return False
        if self._scale.declared is None and self._scale.lowest == target:
            logger.warning(
                "Every reward is %g, which counts as the highest possible one; declare the "
                "reward_range if there are higher ones",
                target,
            )
        return True

    @property
    def survivors(self) -> Sequence[str]:
        """Versions that the next round edits, best first."""
        raise NotImplementedError

    def candidate(self, version: str) -> C:
        """Return the candidate of a version.

        Raises:
            KeyError: The version is unknown.
        """
        for candidate in self.history:
            if candidate.version == version:
                return candidate
        raise KeyError(version)

    def proposed_in(self, round_number: int) -> list[C]:
        """Return the candidates that a round proposed, by number."""
        return [candidate for candidate in self.history if candidate.round == round_number]

    def add(self, candidate: C) -> None:
        """Insert a candidate in the order of numbers; candidates may arrive in any order."""
        self.history.append(candidate)
        self.history.sort(key=lambda one: one.number)

    def count_batch(self, name: str, rollouts: int) -> None:
        """Count the rollouts of a batch; a batch that a resumed run reads again counts once."""
        self.batches[name] = rollouts
        self.spent.rollouts = sum(self.batches.values())

    def excess(self) -> float:
        """Estimate by how much the best candidate's validation score is too high, as it was chosen.

        See :func:`~agl_prompt_search.selection.selection_excess`.
        """
        return selection_excess(
            [one.shown() for one in self.history if one.rewards],
            len(self.candidate(self.best).rewards),
        )

    def add_curve_point(self) -> None:
        """Append the current best score and spending to the curve."""
        score = self.candidate(self.best).score()
        self.curve.append(
            CurvePoint(
                round=self.rounds,
                best=self.best,
                score=score.mean if score else None,
                low=score.low if score else None,
                high=score.high if score else None,
                rollouts=self.spent.rollouts,
                calls=self.spent.calls,
                tokens=self.spent.tokens,
                cost=self.spent.cost,
            )
        )
