"""Another scorer over stored rollouts: no agent runs.

::

    async def exact(task, spans):              # or a plain function; None means "no score"
        return float(answer_of(spans) == task["answer"])

    result = await rescore(store, "train-eval", exact)
    print(result.score, result.change, result.agreement)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio

from agl_algorithm_kit import read_batch
from agl_core.algorithm import BatchOutcome, RolloutOutcome, show_progress
from agl_core.errors import InvalidArgumentError
from agl_core.statistics import Estimate, Gain, estimate_gain, estimate_mean, means_by_task
from agl_core.store import LightningStore
from agl_core.types import Span
from agl_judge.scorer_agreement import Agreement, agreement

__all__ = ["Rescored", "Scorer", "rescore"]

Scorer: TypeAlias = Callable[[Any, Sequence[Span]], "float | None | Awaitable[float | None]"]
"""Scores a rollout by its task and the spans of its latest attempt; None if it cannot."""

_PROGRESS_EVERY = 50  # rollouts between two updates of the progress display


@dataclass(frozen=True)
class Rescored:
    """Scores of stored rollouts by another scorer.

    Attributes:
        outcomes: The rollouts, with their own rewards.
        scores: The new score of each; None for one that failed or could not be scored.
        score: Mean of the new scores over the tasks; no score counts as the lowest one.
        change: Mean of new minus own, paired by task.
        agreement: Agreement of the new scores with the rollouts' own rewards, where both are; None
            if there are none.
    """

    outcomes: BatchOutcome
    scores: Sequence[float | None]
    score: Estimate
    change: Gain
    agreement: Agreement | None


async def rescore(
    store: LightningStore,
    run: str,
    scorer: Scorer,
    *,
    threshold: float = 0.5,
    concurrent: int = 16,
) -> Rescored:
    """Score the finished rollouts of a run again.

    Nothing is written: the rollouts keep their rewards.

    Args:
        store: The store.
        run: Name of the run, such as one of ``agl eval``.
        scorer: The scorer. An async one is called for several rollouts at a time.
        threshold: Scores and rewards from it on count as good, for the agreement.
        concurrent: Calls of an async scorer at a time.

    Raises:
        InvalidArgumentError: The run has no finished rollouts, or a score is not a finite number.
    """
    outcomes = await read_batch(store, run)
    if not len(outcomes):
        raise InvalidArgumentError(f"the store has no finished rollouts of a run {run!r}")
    scores: list[float | None] = [None] * len(outcomes)
    done = 0
    limit = anyio.CapacityLimiter(concurrent)

    async def score(index: int, outcome: RolloutOutcome) -> None:
        nonlocal done
        async with limit:
            scores[index] = await _checked(scorer, outcome)
        done += 1
        if done % _PROGRESS_EVERY == 0 or done == len(outcomes):
            progress.update(done)

    is_async = inspect.iscoroutinefunction(scorer)
    with show_progress("scoring", len(outcomes)) as progress:
        async with anyio.create_task_group() as group:
            for index, outcome in enumerate(outcomes):
                if outcome.rollout.status != "succeeded":
                    continue
                if is_async:
                    group.start_soon(score, index, outcome)
                else:
                    await score(index, outcome)
    return _summary(outcomes, scores, threshold)


async def _checked(scorer: Scorer, outcome: RolloutOutcome) -> float | None:
    found = scorer(outcome.rollout.input, outcome.spans)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not math.isfinite(found):
        raise InvalidArgumentError(f"the score of {outcome.rollout.rollout_id} is {found}")
    return None if found is None else float(found)


def _summary(outcomes: BatchOutcome, scores: Sequence[float | None], threshold: float) -> Rescored:
    rewards = [one.reward if one.rollout.status == "succeeded" else None for one in outcomes]
    known = [value for value in (*scores, *rewards) if value is not None]
    lowest = min([0.0, *known])

    def by_task(values: Sequence[float | None]) -> list[float]:
        counted = (lowest if value is None else value for value in values)
        digests = (outcome.digest for outcome in outcomes)
        return list(means_by_task(zip(digests, counted, strict=True)).values())

    both = [
        (score, reward)
        for score, reward in zip(scores, rewards, strict=True)
        if score is not None and reward is not None
    ]
    new = by_task(scores)
    return Rescored(
        outcomes,
        scores,
        estimate_mean(new),
        estimate_gain(by_task(rewards), new),
        agreement([score for score, _ in both], [reward for _, reward in both], threshold)
        if both
        else None,
    )
