"""Reads from rollouts what a plan compares: the reward, and what its guardrails look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from agl_core.emitter import by_authority, find_final_reward, get_rewards_from_span
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.types import Span
from agl_promote.plan import Guardrail, Terms

__all__ = ["RewardReader", "segment_of", "segments_of"]

_ENOUGH: Final = 20
"""Rollouts with a reward, of which one should have each other reward that is guarded."""
_INPUT, _REWARD = "input.", "reward."


class RewardReader:
    """Reads the rewards of rollouts.

    A reward that is missing counts as the lowest, so one that no rollout has would never get worse,
    and its guardrail would guard nothing. That is an error.

    Args:
        plan: What is compared.
    """

    def __init__(self, plan: Terms) -> None:
        self._range = plan.reward_range
        paths = (rail.path for rail in plan.guardrails)
        self._unseen = {path for path in paths if path.startswith(_REWARD)}
        self._names = sorted(self._unseen)
        self._read = 0

    def read(self, rollout_id: str, spans: Sequence[Span]) -> tuple[float | None, dict[str, float]]:
        """Return the reward of a rollout that succeeded, and by path the others that are guarded.

        Raises:
            InvalidArgumentError: A reward is outside the declared range.
            ConfigError: No rollout has a reward that is guarded.
        """
        reward = find_final_reward(spans)
        others = {path: _named(spans, path.removeprefix(_REWARD)) for path in self._names}
        if reward is not None:
            self._read += 1
            self._unseen -= {path for path, value in others.items() if value is not None}
            if self._unseen and self._read >= _ENOUGH:
                raise ConfigError(
                    f"none of {self._read} rollouts has the reward that is guarded as "
                    f"{', '.join(sorted(self._unseen))}; make a plan with the name that agents emit"
                )
        low, high = self._range
        for value in (reward, *others.values()):
            if value is not None and not low <= value <= high:
                raise InvalidArgumentError(
                    f"the reward {value} of {rollout_id} is outside the declared range, "
                    f"{low:g} to {high:g}"
                )
        return reward, {path: low if value is None else value for path, value in others.items()}

    def lowest(self) -> tuple[float, dict[str, float]]:
        """Return the rewards of a failure."""
        return self._range[0], dict.fromkeys(self._names, self._range[0])


def _named(spans: Sequence[Span], name: str) -> float | None:
    return next(
        (
            reward.value
            for span in by_authority(spans)
            for reward in get_rewards_from_span(span)
            if reward.name == name
        ),
        None,
    )


def segments_of(tasks: Iterable[Any], guardrails: Iterable[Guardrail]) -> list[str]:
    """Return every segment of tasks that guardrails look at, such as ``input.country=de``."""
    paths = [rail.path for rail in guardrails if rail.path.startswith(_INPUT)]
    return sorted({segment_of(task, path) for task in tasks for path in paths})


def segment_of(task: Any, path: str) -> str:
    """Return the segment of a task by a path such as ``input.country``."""
    for key in path.removeprefix(_INPUT).split("."):
        task = task.get(key) if isinstance(task, Mapping) else None
    return f"{path}={task}"
