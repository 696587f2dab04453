"""The choice of the turns to fork, under a budget.

A fork lowers the variance of the advantage most where the model is undecided, or where values
spread, and costs the tokens of the turns after it. Forks are unbiased only if the choice does not
depend on what the parent sampled at that turn or later. So the scores of a rollout's turns come
from other rollouts. A rollout that does not reach its turn is not forked elsewhere instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import numpy as np

from agl_credit.paths import Floats, Path

__all__ = ["By", "ForkPoint", "TurnSpread", "choose_forks"]

By = Literal["entropy", "spread", "uniform"]


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A turn to fork.

    Attributes:
        path: Index of the parent in its group.
        at: Number of turns to repeat; the fork samples the turns from ``at`` on.
    """

    path: int
    at: int


@dataclass(slots=True)
class TurnSpread:
    """Running mean of the squared advantages of each turn, over earlier steps.

    Attributes:
        decay: Weight of the mean so far at an update.
        means: The mean by the turn's position.
    """

    decay: float = 0.8
    means: dict[int, float] = field(default_factory=dict[int, float])

    def update(self, group: Sequence[Path], advantages: Sequence[Floats]) -> None:
        """Add a finished group; turns that a fork repeats do not count."""
        found: dict[int, list[float]] = {}
        for path, of_turns in zip(group, advantages, strict=True):
            for t in range(path.at, len(path.turns)):
                found.setdefault(t, []).append(float(of_turns[t]) ** 2)
        for t, squares in found.items():
            mean = float(np.mean(squares))
            before = self.means.get(t, mean)
            self.means[t] = self.decay * before + (1 - self.decay) * mean


def choose_forks(
    group: Sequence[Path],
    count: int,
    *,
    by: By = "entropy",
    rng: np.random.Generator,
    spread: TurnSpread | None = None,
) -> list[ForkPoint]:
    """Return turns of the group's roots to fork.

    The roots take turns, and each draws a turn in proportion to a score by the tokens that a fork
    there costs. Its own samples have no part in either.

    Args:
        group: Roots of one task.
        count: Limit of the number of turns. Rollouts that end before their turn use up the budget
            without a fork.
        by: ``entropy``: mean surprisal of the other roots at that position. ``spread``: standard
            deviation of the advantages at that position in earlier steps; unseen positions count as
            the highest. ``uniform``: the same score everywhere.
        rng: Source of the draws.
        spread: The statistics of ``spread``.

    Returns:
        At most ``count`` different points, in the order of their paths.
    """
    chosen: dict[ForkPoint, None] = {}
    for number in range(count):
        i = number % len(group)
        others = [path for j, path in enumerate(group) if j != i]
        scores = [s / c for s, c in zip(_scores(others, by, spread), _costs(others), strict=True)]
        total = sum(scores)
        if not scores or total <= 0:
            continue
        at = int(rng.choice(len(scores), p=np.array(scores) / total))
        if at < len(group[i].turns):
            chosen[ForkPoint(i, at)] = None
    return sorted(chosen, key=lambda point: (point.path, point.at))


def _costs(others: Sequence[Path]) -> list[float]:
    """Return the mean number of tokens from each position to the end, of those that reach it."""
    longest = max((len(path.turns) for path in others), default=0)
    return [
        max(1.0, fmean(_rest(path, t) for path in others if t < len(path.turns)))
        for t in range(longest)
    ]


def _rest(path: Path, start: int) -> int:
    return sum(turn.tokens for turn in path.turns[start:])


def _scores(others: Sequence[Path], by: By, spread: TurnSpread | None) -> list[float]:
    """Return the score of each position, 0 if it is never forked."""
    longest = max((len(path.turns) for path in others), default=0)
    if by == "uniform":
        return [1.0] * longest
    if by == "spread":
        known = spread.means if spread is not None else {}
        highest = max(known.values(), default=1.0)
        return [math.sqrt(known.get(t, highest)) for t in range(longest)]
    scores: list[float] = []
    for t in range(longest):
        found = [path.turns[t].surprisal for path in others if t < len(path.turns)]
        scores.append(max(fmean(found), 0.0))
    return scores
