"""Advantages from returns alone: of rollouts, of turns, and of agents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agl_credit.paths import Floats, Path, deviation

__all__ = ["agent_advantages", "group_advantages", "turn_advantages"]


def group_advantages(group: Sequence[Path], *, normalise: bool = True) -> list[Floats]:
    """Return the rollout's advantage for each of its turns: ``r - mean(r)``.

    Shao et al., "DeepSeekMath", 2024 (https://arxiv.org/abs/2402.03300).

    Args:
        group: Rollouts of one task.
        normalise: Divide by the standard deviation of the group.

    Returns:
        float64 ``[T]`` of each path. All are 0 if the rewards are equal.
    """
    advantages = _relative([path.reward for path in group], normalise)
    return [np.full(len(p.turns), a) for p, a in zip(group, advantages, strict=True)]


def agent_advantages(group: Sequence[Path], *, normalise: bool = True) -> list[Floats]:
    """Return for each turn the group advantage of the reward of its agent.

    An agent without a reward of its own shares the rollout's.

    Args:
        group: Rollouts of one task.
        normalise: Divide by the standard deviation of that reward in the group.

    Returns:
        float64 ``[T]`` of each path.
    """
    by_agent = {
        agent: _relative([path.rewards.get(agent, path.reward) for path in group], normalise)
        for agent in {turn.agent for path in group for turn in path.turns}
    }
    return [
        np.array([by_agent[turn.agent][i] for turn in path.turns]) for i, path in enumerate(group)
    ]


def turn_advantages(
    group: Sequence[Path],
    *,
    discount: float = 1.0,
    leave_one_out: bool = False,
    normalise: bool = True,
) -> list[Floats]:
    r"""Return each turn's discounted return, relative to that turn of the group.

    .. math:: A_{i,t} = G_{i,t} - mean_j(G_{j,t}), \quad G_{i,t} = \sum_{s \ge t} d^{s-t} r_{i,s}

    The rollout's reward is that of its last turn. A rollout that ended before turn t counts with
    its last return, and one without turns with its reward, as it does for the other estimators.

    Args:
        group: Rollouts of one task.
        discount: The factor d.
        leave_one_out: Take the mean over the other rollouts. This baseline does not depend on the
            turn's action, so it adds no bias (Ahmadian et al., "Back to Basics", 2024, by turn).
        normalise: Divide by the standard deviation of the group's returns of that turn.

    Returns:
        float64 ``[T]`` of each path.
    """
    returns = [_returns(path, discount) for path in group]
    advantages = [np.zeros(len(path.turns)) for path in group]
    for t in range(max((len(path.turns) for path in group), default=0)):
        at_turn = [
            float(of_turns[min(t, len(of_turns) - 1)]) if len(of_turns) else path.reward
            for path, of_turns in zip(group, returns, strict=True)
        ]
        relative = _relative(at_turn, normalise, leave_one_out=leave_one_out)
        for i, path in enumerate(group):
            if t < len(path.turns):
                advantages[i][t] = relative[i]
    return advantages


def _returns(path: Path, discount: float) -> Floats:
    """Return the discounted return from each turn on, ``[T]``."""
    returns = np.zeros(len(path.turns))
    following = 0.0
    for t in reversed(range(len(path.turns))):
        last = t == len(path.turns) - 1
        following = (path.reward if last else path.turns[t].reward) + discount * following
        returns[t] = following
    return returns


def _relative(values: Sequence[float], normalise: bool, *, leave_one_out: bool = False) -> Floats:
    """Return values relative to their mean; 0 if all are equal."""
    found = np.array(values, dtype=np.float64)
    if len(found) < 2 or bool((found == found[0]).all()):
        return np.zeros(len(found))
    centred = found - found.mean()
    if leave_one_out:
        centred = centred * len(found) / (len(found) - 1)
    return centred / deviation(found) if normalise else centred
