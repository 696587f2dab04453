"""The state of a search: a value that can be saved as JSON and loaded again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

from agl_core.algorithm import Estimate, estimate_mean
from agl_prompt_search.budget import Spending

__all__ = ["Candidate", "CurvePoint", "SearchState"]


class Candidate(BaseModel):
    """A proposed candidate; one row of the history. Subclasses add the prompt or prompts.

    Attributes:
        version: ``v0`` is the seed; the others are numbered in the order of their proposal.
        parent: Version that it was edited from; None for the seed.
        round: Round that proposed it, from 1; 0 for the seed.
        critique: Criticism that the edit answers.
        rejected: Why it was rejected; empty if it was not.
        rewards: Reward on each validation row that it was measured on.
    """

    version: str
    parent: str | None = None
    round: int = 0
    critique: str = ""
    rejected: str = ""
    rewards: dict[int, float] = Field(default_factory=dict[int, float])

    def texts(self) -> Mapping[str, str]:
        """Return its prompts by name, for the columns of the history."""
        raise NotImplementedError

    @property
    def number(self) -> int:
        """The number in its version."""
        return int(self.version.removeprefix("v"))

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Return the given validation rows that it was not measured on."""
        return [row for row in rows if row not in self.rewards]

    def score(self, rows: Sequence[int] | None = None) -> Estimate | None:
        """Return the mean reward with its interval over the given rows, or over all measured ones.

        Returns:
            None if it was measured on none of them.
        """
        wanted = self.rewards if rows is None else rows
        rewards = [self.rewards[row] for row in wanted if row in self.rewards]
        return estimate_mean(rewards) if rewards else None

    def beats(self, other: Candidate) -> bool:
        """Return whether it is strictly better on the rows that both were measured on."""
        shared = sorted(self.rewards.keys() & other.rewards.keys())
        own, others = self.score(shared), other.score(shared)
        return own is not None and others is not None and own.mean > others.mean


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
    """

    seed: int
    history: list[C] = Field(default_factory=list[Any])
    best: str = "v0"
    rounds: int = 0
    curve: list[CurvePoint] = Field(default_factory=list[CurvePoint])
    batches: dict[str, int] = Field(default_factory=dict[str, int])
    spent: Spending = Field(default_factory=Spending)
    stopped: str = ""

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
