"""An environment of a few turns whose every outcome can be listed, with its exact values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from agl_credit import Path, Turn

State = tuple[int, ...]


@dataclass(frozen=True)
class Environment:
    """A state is the tuple of earlier actions; the only reward comes at the end.

    Attributes:
        turns: Number of turns.
        policy: Probability of each action in a state.
        reward: Reward of an end state.
    """

    turns: int
    policy: Callable[[State], Sequence[float]]
    reward: Callable[[State], float]
    _values: dict[State, float] = field(default_factory=dict[State, float])

    def value(self, state: State) -> float:
        if state not in self._values:
            if len(state) == self.turns:
                self._values[state] = self.reward(state)
            else:
                p = self.policy(state)
                self._values[state] = sum(q * self.value((*state, a)) for a, q in enumerate(p))
        return self._values[state]

    def advantage(self, state: State, action: int) -> float:
        return self.value((*state, action)) - self.value(state)

    def ends(self, state: State = ()) -> Iterator[tuple[State, float]]:
        """Yield each end state that a state can lead to, and its probability."""
        if len(state) == self.turns:
            yield state, 1.0
            return
        for action, p in enumerate(self.policy(state)):
            for end, q in self.ends((*state, action)):
                yield end, p * q

    def path(self, end: State, parent: int | None = None, at: int = 0) -> Path:
        turns = [
            Turn(end[:t], end[t], surprisal=-float(np.log(self.policy(end[:t])[end[t]])))
            for t in range(len(end))
        ]
        return Path(self.reward(end), turns, parent=parent, at=at)

    def groups(self, size: int) -> Iterator[tuple[list[Path], float]]:
        """Yield each group of roots and its probability."""
        for ends in product(list(self.ends()), repeat=size):
            paths = [self.path(end) for end, _ in ends]
            yield paths, float(np.prod([p for _, p in ends]))

    def forks(
        self, group: Sequence[Path], points: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[list[Path], float]]:
        """Yield each group with one fork at each (path, turn), and its probability."""
        options = []
        for i, at in points:
            state = tuple(int(str(turn.action)) for turn in group[i].turns[:at])
            options.append([(self.path(end, i, at), p) for end, p in self.ends(state)])
        for forks in product(*options):
            yield [*group, *(path for path, _ in forks)], float(np.prod([p for _, p in forks]))

    def gradient(self) -> Mapping[tuple[State, int], float]:
        """Return the derivative of the value of the first state in each state's logits."""
        found: dict[tuple[State, int], float] = {}

        def visit(state: State, reach: float) -> None:
            if len(state) == self.turns:
                return
            for action, p in enumerate(self.policy(state)):
                found[state, action] = reach * p * self.advantage(state, action)
                visit((*state, action), reach * p)

        visit((), 1.0)
        return found

    def score(
        self, group: Sequence[Path], advantages: Sequence[np.ndarray]
    ) -> dict[tuple[State, int], float]:
        """Return the policy gradient that a sampled group gives, in each state's logits."""
        found: dict[tuple[State, int], float] = {}
        for path, of_turns in zip(group, advantages, strict=True):
            for turn, advantage in zip(path.turns, of_turns, strict=True):
                state = turn.state
                assert isinstance(state, tuple)
                for action, p in enumerate(self.policy(state)):
                    slope = float(action == turn.action) - p
                    key = (state, action)
                    found[key] = found.get(key, 0.0) + float(advantage) * slope
        return found
