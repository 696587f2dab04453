"""Agreement between a judge's scores and labels given by people."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from agl_core.errors import InvalidArgumentError
from agl_core.statistics import Estimate, estimate_mean, means_by_task

__all__ = ["Agreement", "agreement"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of scores with labels, both from 0 to 1.

    Attributes:
        n: Number of pairs of a score and a label.
        missing: Number of labels without a score.
        accuracy: Share of pairs on the same side of the threshold, with its interval. Its unit is
            the task: several rollouts of one are one value, their mean.
        kappa: Cohen's kappa of the two sides: 1 is full agreement, 0 is chance level; None if all
            scores and labels are on one side.
        error: Mean absolute difference.
        ordered: Share of the pairs of items with different labels that the scores order in the same
            way; ties count half. For labels of 0 and 1 this is the area under the ROC curve. None
            if all labels are equal.
    """

    n: int
    missing: int
    accuracy: Estimate
    kappa: float | None
    error: float
    ordered: float | None

    def __str__(self) -> str:
        kappa = "-" if self.kappa is None else f"{self.kappa:.2f}"
        ordered = "-" if self.ordered is None else f"{self.ordered:.2f}"
        return (
            f"accuracy {self.accuracy}, kappa {kappa}, mean error {self.error:.3f}, "
            f"in order {ordered}, {self.missing} without a score"
        )


def agreement(
    scores: Sequence[float | None],
    labels: Sequence[float],
    threshold: float = 0.5,
    *,
    tasks: Sequence[Hashable] | None = None,
) -> Agreement:
    """Compare scores with labels, item by item.

    Args:
        scores: The judge's scores; None where it gave none.
        labels: The correct values.
        threshold: Scores and labels at or above it count as good.
        tasks: The task of each item; None if each is of a task of its own.

    Raises:
        InvalidArgumentError: The numbers of scores, labels and tasks differ, or there is no score
            at all.
    """
    tasks = range(len(scores)) if tasks is None else tasks
    if not len(scores) == len(labels) == len(tasks):
        counts = f"{len(scores)} scores for {len(labels)} labels of {len(tasks)} items"
        raise InvalidArgumentError(counts)
    known = [item for item in zip(tasks, scores, labels, strict=True) if item[1] is not None]
    if not known:
        raise InvalidArgumentError("there is no score to compare")
    pairs = [(score, label) for _, score, label in known if score is not None]
    sides = [(score >= threshold, label >= threshold) for score, label in pairs]
    same = [float(score == label) for score, label in sides]
    by_task = means_by_task(zip((task for task, *_ in known), same, strict=True))
    return Agreement(
        n=len(pairs),
        missing=len(scores) - len(pairs),
        accuracy=estimate_mean(list(by_task.values())),
        kappa=_kappa(sides, fmean(same)),
        error=fmean(abs(score - label) for score, label in pairs),
        ordered=_ordered(pairs),
    )


def _kappa(sides: Sequence[tuple[bool, bool]], observed: float) -> float | None:
    """Return Cohen's kappa ("A coefficient of agreement for nominal scales", 1960)."""
    scores, labels = fmean(a for a, _ in sides), fmean(b for _, b in sides)
    by_chance = scores * labels + (1 - scores) * (1 - labels)
    return None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)


def _ordered(pairs: Sequence[tuple[float, float]]) -> float | None:
    wins, total = 0.0, 0
    lower: list[float] = []
    """Scores of the items with lower labels, sorted."""
    for _, same in groupby(sorted(pairs, key=itemgetter(1)), key=itemgetter(1)):
        scores = [score for score, _ in same]
        for score in scores:
            below, up_to = bisect_left(lower, score), bisect_right(lower, score)
            wins += below + (up_to - below) / 2
        total += len(scores) * len(lower)
        lower = sorted(lower + scores)  # two sorted runs: a merge
    return wins / total if total else None
