"""Another scorer over stored rollouts: no agent runs.

::

    async def exact(task, spans):              # or a plain function; None means "no score"
        return float(answer_of(spans) == task["answer"])

    result = await rescore(store, "train-eval", exact, keep_as="exact")
    print(result.score, result.change, result.agreement)
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import anyio

from agl_algorithm_kit import (
    check_scorer_name,
    keep_scores,
    kept_scores,
    read_batch,
    with_scores,
)
from agl_core.algorithm import BatchOutcome, RolloutOutcome, show_progress
from agl_core.errors import InvalidArgumentError
from agl_core.statistics import Estimate, Gain
from agl_core.store import LightningStore
from agl_core.types import Span
from agl_judge.scorer_agreement import Agreement, agreement

__all__ = ["Rescored", "Scorer", "rescore"]

logger = logging.getLogger(__name__)

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
        others: The same with the scores of other scorers that the store keeps, by scorer.
        problems: Why the scorer failed on a rollout, by rollout id.
    """

    outcomes: BatchOutcome
    scores: Sequence[float | None]
    score: Estimate
    change: Gain
    agreement: Agreement | None
    others: Mapping[str, Agreement]
    problems: Mapping[str, str] = field(default_factory=dict[str, str])


async def rescore(
    store: LightningStore,
    run: str,
    scorer: Scorer,
    *,
    threshold: float = 0.5,
    concurrent: int = 16,
    keep_as: str | None = None,
    resume: bool = False,
    reward_range: tuple[float, float] | None = None,
) -> Rescored:
    """Score the finished rollouts of a run again.

    The rollouts keep their rewards. A rollout on which the scorer raises, or returns what is not a
    finite number, has no score; a warning says how many they are and why. When it is cancelled, the
    scores until then are kept for ``resume``.

    Args:
        store: The store.
        run: Name of the run, such as one of ``agl eval``.
        scorer: The scorer. An async one is called for several rollouts at a time.
        threshold: Scores and rewards from it on count as good, for the agreement.
        concurrent: Calls of an async scorer at a time.
        keep_as: Name under which the store keeps the scores, in place of earlier ones of this name;
            None keeps nothing.
        resume: Whether to take over the scores that an interrupted call kept under this name.
        reward_range: Lowest and highest possible reward and score, if they are declared; a rollout
            that failed counts the lowest.

    Raises:
        ConfigError: The range is not a pair of finite numbers, the lower first.
        InvalidArgumentError: The run has no finished rollouts, none could be scored, or the name
            has other characters than letters, digits, ``_``, ``-`` and ``.``.
    """
    if keep_as is not None:
        check_scorer_name(keep_as)
    outcomes = await read_batch(store, run, reward_range=reward_range)
    if not len(outcomes):
        raise InvalidArgumentError(f"the store has no finished rollouts of a run {run!r}")
    unfinished = (await kept_scores(store, run, finished=False)).get(keep_as or "", {})
    found = dict(unfinished) if resume else {}
    try:
        problems = await _score(outcomes, scorer, concurrent, found)
    except anyio.get_cancelled_exc_class():
        if keep_as is not None and found:
            with anyio.CancelScope(shield=True):
                await keep_scores(store, run, keep_as, found, finished=False)
            logger.warning(
                "interrupted: the scores of %d rollouts are kept for --resume", len(found)
            )
        raise
    scores = [found.get(one.rollout.rollout_id) for one in outcomes]
    ids = [one.rollout.rollout_id for one in outcomes]
    if not any(score is not None for score in scores):
        why = f"; {_in_short(problems)}" if problems else ""
        raise InvalidArgumentError(f"the scorer scored none of the {len(scores)} rollouts{why}")
    if problems:
        logger.warning("the scorer failed on %s", _in_short(problems))
    others = await kept_scores(store, run)
    if keep_as is not None:  # before the summary, which could fail: scores may have cost money
        await keep_scores(store, run, keep_as, dict(zip(ids, scores, strict=True)))
        if unfinished:
            await keep_scores(store, run, keep_as, {}, finished=False)
    return _summary(outcomes, scores, others, threshold, problems)


async def _score(
    outcomes: BatchOutcome, scorer: Scorer, concurrent: int, found: dict[str, float | None]
) -> dict[str, str]:
    """Score the rollouts that have no score; return why the scorer failed on some, by rollout id.

    Args:
        outcomes: The rollouts.
        scorer: The scorer.
        concurrent: Calls of an async scorer at a time.
        found: The scores by rollout id. Each is added as soon as it is there.
    """
    problems: dict[str, str] = {}
    done = len(outcomes)
    limit = anyio.CapacityLimiter(concurrent)

    async def score(outcome: RolloutOutcome) -> None:
        nonlocal done
        name = outcome.rollout.rollout_id
        async with limit:
            try:
                found[name] = await _checked(scorer, outcome)
            except Exception as error:  # the others' scores may have cost money
                problems[name] = f"{type(error).__name__}: {error}"
                logger.debug("%s is not scored", name, exc_info=True)
        done += 1
        if done % _PROGRESS_EVERY == 0 or done == len(outcomes):
            progress.update(done)

    is_async = inspect.iscoroutinefunction(scorer)
    waiting = [
        one
        for one in outcomes
        if one.rollout.status == "succeeded" and one.rollout.rollout_id not in found
    ]
    done -= len(waiting)
    with show_progress("scoring", len(outcomes)) as progress:
        async with anyio.create_task_group() as group:
            for outcome in waiting:
                if is_async:
                    group.start_soon(score, outcome)
                else:
                    await score(outcome)
    return problems


async def _checked(scorer: Scorer, outcome: RolloutOutcome) -> float | None:
    found = scorer(outcome.rollout.input, outcome.spans)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not math.isfinite(found):
        raise InvalidArgumentError(f"the score is {found}, not a finite number")
    return None if found is None else float(found)


def _in_short(problems: Mapping[str, str]) -> str:
    """Return how many rollouts have problems, and the most frequent one with its first rollout."""
    (text, count), *others = Counter(problems.values()).most_common()
    first = next(name for name, problem in problems.items() if problem == text)
    more = f", and {len(others)} other errors" if others else ""
    return f"{len(problems)} rollouts; {count} times, first on {first}: {text}{more}"


def _summary(
    outcomes: BatchOutcome,
    scores: Sequence[float | None],
    others: Mapping[str, Mapping[str, float | None]],
    threshold: float,
    problems: Mapping[str, str],
) -> Rescored:
    ids = [one.rollout.rollout_id for one in outcomes]
    rated = with_scores(outcomes, dict(zip(ids, scores, strict=True)))
    new = replace(rated, reward_range=outcomes.reward_range)

    def agree(labels: Sequence[float | None]) -> Agreement | None:
        labelled = [
            (outcome.digest, score, label)
            for outcome, score, label in zip(outcomes, scores, labels, strict=True)
            if label is not None
        ]
        if all(score is None for _, score, _ in labelled):
            return None
        tasks, own, given = zip(*labelled, strict=True)
        return agreement(own, given, threshold, tasks=tasks)

    by_scorer = {name: agree([kept.get(one) for one in ids]) for name, kept in others.items()}
    return Rescored(
        outcomes,
        scores,
        new.score(),
        new.gain_over(outcomes),
        agree([one.earned for one in outcomes]),
        {name: found for name, found in by_scorer.items() if found is not None},
        problems,
    )
