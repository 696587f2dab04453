"""The power of a plan, by simulation, before it costs anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

from agl_promote.episodes import Episode
from agl_promote.evidence import Evidence, Pair
from agl_promote.plan import LivePlan, Plan

__all__ = ["GAINS", "power_of"]

GAINS: Final = (0.05, 0.1, 0.2)
"""Gains, as shares of the reward range, for which the power is printed."""
_TWO_KINDS: Final = (0.1, 0.8)
"""The champion's chances on hard and easy tasks, of which tasks are if nothing is known."""
_RUNS: Final = 200
"""Simulated tests per gain: the power's standard error is at most 3.5 points."""
_FEWEST_RUNS: Final = 20
"""Simulated tests per gain of a long plan: enough to tell a hopeless one, at 11 points."""
_BUDGET: Final = 60_000
"""Pairs or episodes to simulate for one gain, unless the fewest runs are more: they take less than
a second."""


class _Task(NamedTuple):
    """The chances of the highest reward of a task, else it is the lowest.

    Attributes:
        champion: With the champion.
        candidate: With the candidate.
    """

    champion: float
    candidate: float


def power_of(
    plan: Plan | LivePlan,
    known: Sequence[float],
    gain: float,
    *,
    most: int | None = None,
    seed: int = 0,
) -> float:
    """Return the probability that a candidate with a true gain is promoted.

    Args:
        plan: The plan; guardrails are left out.
        known: Rewards of the champion, of which tasks are drawn. A reward between the ends of the
            range is taken as the chance of the highest one, and a reward at an end as a task that
            always or never succeeds. Rewards of single rollouts are at an end by chance, so the
            power is then estimated too high. Without any, half of the tasks are easy and half are
            hard.
        gain: True mean gain, as a share of the reward range; at most what the known rewards leave
            to gain.
        most: Pairs that the budget suffices for; None for all.
        seed: Of the simulation.
    """
    rng = random.Random(seed)
    tasks = _tasks([(reward - plan.reward_range[0]) / plan.width for reward in known], gain)
    simulated = _relative(plan)
    count = plan.most if most is None else min(most, plan.most)
    runs = max(_FEWEST_RUNS, min(_RUNS, _BUDGET // max(1, count)))
    promoted = 0
    for _ in range(runs):
        evidence: Evidence[Any] = Evidence(simulated)
        for _ in range(count):
            if evidence.add(_sample(plan, rng.choice(tasks), rng)).kind != "undecided":
                break
        promoted += evidence.decision.kind == "promote"
    return promoted / runs


def _tasks(shares: Sequence[float], gain: float) -> list[_Task]:
    """Return tasks on which the candidate gains so much in the mean.

    Each task gains the same part of what it leaves to gain: rewards of single rollouts often are
    the highest one already, so an equal gain of all would mostly be cut off.

    Args:
        shares: The champion's rewards, as shares of the range; none for tasks of two kinds.
        gain: The mean gain.
    """
    shares = shares or _TWO_KINDS
    room = fmean(1 - share for share in shares)
    part = min(1.0, gain / room) if room > 0 else 0.0
    return [_Task(share, share + (1 - share) * part) for share in shares]


def _relative(plan: Plan | LivePlan) -> Plan | LivePlan:
    """Return the plan for rewards from 0 to 1, without its guardrails."""
    wanted = None if plan.wanted_gain is None else plan.wanted_gain / plan.width
    gains = {"min_gain": plan.min_gain / plan.width, "wanted_gain": wanted}
    return plan.model_copy(update={"reward_range": (0.0, 1.0), "guardrails": [], **gains})


def _sample(plan: Plan | LivePlan, task: _Task, rng: random.Random) -> Pair | Episode:
    if isinstance(plan, LivePlan):
        is_candidate = rng.random() < plan.share
        return Episode(is_candidate, _mean(task[is_candidate], 1, rng))
    champion, candidate = (_mean(share, plan.repeats, rng) for share in task)
    return Pair(champion, candidate)


def _mean(share: float, repeats: int, rng: random.Random) -> float:
    return sum(rng.random() < share for _ in range(repeats)) / repeats
