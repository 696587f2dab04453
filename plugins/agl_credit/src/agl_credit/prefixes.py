"""Advantages from the values of states that several rollouts of a group passed through.

The rollouts of one task begin alike. The mean reward of those that passed through a state estimates
its value, without further samples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from agl_credit.paths import Floats, Path, deviation

__all__ = ["rtmc_advantages", "tempo_advantages"]


def tempo_advantages(group: Sequence[Path], *, normalise: bool = True) -> list[Floats]:
    r"""Return the group advantage plus the change of the prefix value at each turn.

    .. math:: A_{i,t} = r_i - mean(r) + V(s_{t+1}) - V(s_t)

    V of a state is the mean reward of the rollouts that passed through it, and of the end the
    rollout's reward. Where no other rollout branches off, V does not change and the group advantage
    is left (TEMPO, 2025, https://arxiv.org/abs/2509.18314). The baseline contains the rollout
    itself, so the estimate is biased towards 0 in small groups.

    Args:
        group: Rollouts of one task.
        normalise: Divide by the standard deviation of the group's rewards.

    Returns:
        float64 ``[T]`` of each path.
    """
    rewards = np.array([path.reward for path in group])
    if _is_uniform(rewards):
        return _zeros(group)
    visits = _visits(group, lambda path, t: path.turns[t].state)
    scale = deviation(rewards) if normalise else 1.0
    advantages: list[Floats] = []
    for path in group:
        values = [float(rewards[visits[turn.state]].mean()) for turn in path.turns]
        changes = np.diff([*values, path.reward])
        advantages.append((path.reward - rewards.mean() + changes) / scale)
    return advantages


def rtmc_advantages(group: Sequence[Path], *, normalise: bool = True) -> list[Floats]:
    r"""Return ``Q(s, a) - V(s)`` of each turn, both means of rewards in the group.

    Q is the mean reward of the rollouts that took the action in that state (RTMC, 2026,
    https://arxiv.org/abs/2604.11037). V is the mean over the *other* rollouts that passed through
    the state, or else through the last state before it that others passed through. So V does not
    depend on the turn's action, and the estimate is unbiased.

    Args:
        group: Rollouts of one task.
        normalise: Divide by the standard deviation of the group's rewards.

    Returns:
        float64 ``[T]`` of each path.
    """
    rewards = np.array([path.reward for path in group])
    if _is_uniform(rewards):
        return _zeros(group)
    states = _visits(group, lambda path, t: path.turns[t].state)
    actions = _visits(group, lambda path, t: (path.turns[t].state, path.turns[t].action))
    scale = deviation(rewards) if normalise else 1.0
    advantages: list[Floats] = []
    for i, path in enumerate(group):
        value = float(np.delete(rewards, i).mean())
        found = np.zeros(len(path.turns))
        for t, turn in enumerate(path.turns):
            others = [j for j in states[turn.state] if j != i]
            if others:
                value = float(rewards[others].mean())
            found[t] = float(rewards[actions[turn.state, turn.action]].mean()) - value
        advantages.append(found / scale)
    return advantages


def _visits(
    group: Sequence[Path], key: Callable[[Path, int], Hashable]
) -> Mapping[Hashable, list[int]]:
    """Return the indices of the paths that have a turn of each key; each path counts once."""
    found: dict[Hashable, dict[int, None]] = {}
    for i, path in enumerate(group):
        for t in range(len(path.turns)):
            found.setdefault(key(path, t), {})[i] = None
    return {name: list(paths) for name, paths in found.items()}


def _is_uniform(rewards: Floats) -> bool:
    return len(rewards) < 2 or bool((rewards == rewards[0]).all())


def _zeros(group: Sequence[Path]) -> list[Floats]:
    return [np.zeros(len(path.turns)) for path in group]
