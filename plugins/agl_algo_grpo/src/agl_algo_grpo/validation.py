"""How a policy does on the validation tasks, and which of its models is the best."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agl_core.algorithm import BatchOutcome, RewardRange, RewardScale
from agl_core.statistics import Estimate

__all__ = ["Validation", "rank_all"]

RANK: Final = "val_rank"
_EARNED: Final = "val_earned"
_FINISHED: Final = "val_finished"
_FAILED: Final = "val_failed"
_LOWEST: Final = "val_lowest"
_HIGHEST: Final = "val_highest"


@dataclass(frozen=True, slots=True)
class Validation:
    """How a policy does on the validation tasks.

    Attributes:
        score: The mean reward over the tasks; a failure counts the lowest possible reward.
        earned: The rewards of the rollouts; None is a failure.
    """

    score: Estimate
    earned: Sequence[float | None]

    @classmethod
    def of(cls, batch: BatchOutcome) -> Validation:
        """Return what a batch of the validation tasks shows."""
        return cls(batch.score(), [outcome.earned for outcome in batch.scored])

    def figures(self) -> dict[str, float]:
        """Return the figures of the step; :func:`rank_all` ranks by them."""
        found = [reward for reward in self.earned if reward is not None]
        figures = self.score.figures("val_reward")
        figures |= {_FINISHED: len(found), _FAILED: len(self.earned) - len(found)}
        if found:
            figures |= {
                _EARNED: sum(found) / len(found),
                _LOWEST: min(found),
                _HIGHEST: max(found),
            }
        return figures


def rank_all(steps: Sequence[MutableMapping[str, Any]], reward_range: RewardRange | None) -> None:
    """Set ``val_rank`` of all validated steps: the mean in which a failure is last.

    What a failure counts depends on the rewards that were seen, so steps can be compared only if
    all are ranked anew after each validation. Rows of older versions keep the rank they have.

    Args:
        steps: Figures of the steps, numbers or their texts.
        reward_range: Lowest and highest possible reward, if they are declared.
    """
    validated = [row for row in steps if row.get(_FINISHED, "") != ""]
    scale = RewardScale(reward_range)
    for row in validated:
        if row.get(_EARNED, "") != "":
            scale.learn((float(row[_LOWEST]), float(row[_HIGHEST])))
    for row in validated:
        row[RANK] = _rank(row, scale.failure)


def _rank(row: Mapping[str, Any], failure: float) -> float:
    finished, failed = int(float(row[_FINISHED])), int(float(row[_FAILED]))
    total = finished * float(row[_EARNED]) if finished else 0.0
    total += failed * failure if failed else 0.0
    return total / (finished + failed) if finished + failed else float("-inf")
