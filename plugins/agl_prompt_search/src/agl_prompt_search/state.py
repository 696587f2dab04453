"""All that a search knows, as one value that can be written down as JSON and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

from agl_core.algorithm import Estimate, estimate_mean
from agl_prompt_search.budget import Spending

__all__ = ["Candidate", "CurvePoint", "SearchState"]


class Candidate(BaseModel):
    """What was proposed; a row of the history. A search adds the prompt, or the prompts.

    Attributes:
        version: ``v0`` is the seed; the others are numbered in the order of their proposal.
        parent: The version it was edited from; None for the seed.
        round: The round that proposed it, from 1; 0 for the seed.
        critique: What the edit was to mend.
        rejected: Why it was not measured, or why that did not work; empty for all others.
        rewards: Its reward on each validation row that it was measured on.
    """

    version: str
    parent: str | None = None
    round: int = 0
    critique: str = ""
    rejected: str = ""
    rewards: dict[int, float] = Field(default_factory=dict[int, float])

    def texts(self) -> Mapping[str, str]:
        """Return its prompts by name, as the history's columns show them."""
        raise NotImplementedError

    @property
    def number(self) -> int:
        """The number in its version."""
        return int(self.version.removeprefix("v"))

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Return those of these validation rows that it was not measured on."""
        return [row for row in rows if row not in self.rewards]

    def score(self, rows: Sequence[int] | None = None) -> Estimate | None:
        """Return the mean reward with its interval, over all rows measured or those given.

        None if it was measured on none of them.
        """
        wanted = self.rewards if rows is None else rows
        rewards = [self.rewards[row] for row in wanted if row in self.rewards]
        return estimate_mean(rewards) if rewards else None

    def beats(self, other: Candidate) -> bool:
        """Tell whether it is strictly better on the rows that both were measured on."""
        shared = sorted(self.rewards.keys() & other.rewards.keys())
        mine, others = self.score(shared), other.score(shared)
        return mine is not None and others is not None and mine.mean > others.mean


class CurvePoint(BaseModel):
    """A point of the learning curve: the best prompt after a round, and what it took until then."""

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
    """A search between two steps.

    Attributes:
        seed: What all dice are thrown from; a throw depends on it and on what it is for, never on
            how many there were before, so a resumed run throws as an undisturbed one does.
        history: Every candidate, by number.
        best: Version of the best candidate so far.
        rounds: How many rounds are complete.
        curve: A point for the start and for each round.
        batches: Rollouts of each batch that was run, by its name.
        spent: What was used up.
        stopped: Why it ended before its last round; empty if it did not.
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
        """Return the candidate of this version.

        Raises:
            KeyError: There is none.
        """
        for candidate in self.history:
            if candidate.version == version:
                return candidate
        raise KeyError(version)

    def proposed_in(self, round_number: int) -> list[C]:
        """Return the candidates that a round proposed, by number."""
        return [candidate for candidate in self.history if candidate.round == round_number]

    def add(self, candidate: C) -> None:
        """Put a candidate in its place; they come in any order."""
        self.history.append(candidate)
        self.history.sort(key=lambda one: one.number)

    def count_batch(self, name: str, rollouts: int) -> None:
        """Count the rollouts of a batch; one that a resumed run reads again counts once."""
        self.batches[name] = rollouts
        self.spent.rollouts = sum(self.batches.values())

    def add_curve_point(self) -> None:
        """Note where the search stands."""
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
