"""The experiment of a plan: paired rollouts until there is a decision."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any, TypeAlias

from agl_algorithm_kit import run_requests
from agl_core.algorithm import (
    FastAlgorithm,
    LLMProxyLike,
    RolloutOutcome,
    show_progress,
    with_llm_proxy,
)
from agl_core.errors import ConfigError
from agl_core.types import Dataset, EnqueueRolloutRequest, task_digest
from agl_promote.evidence import Decision, Evidence, Pair
from agl_promote.plan import Plan
from agl_promote.promotion import Promotion
from agl_promote.rewards import RewardReader, segment_of
from agl_train import Spending

__all__ = ["Experiment", "run_name"]

_Arms: TypeAlias = tuple[Sequence[RolloutOutcome], Sequence[RolloutOutcome]]
"""Outcomes with the champion and with the candidate."""
_Rewards: TypeAlias = tuple[float, Mapping[str, float]]
"""The reward, and by path those that are guarded."""


class Experiment(FastAlgorithm):
    """Runs the pairs of a promotion and decides; the tasks are the training dataset.

    Pairs are enqueued in batches, the two rollouts of each in random order, and count in the order
    of their enrolment: a candidate must not look better because its failures come later. The
    decision is a function of the plan and the rewards, so a run that was killed and resumed comes
    to the same one; it enqueues no rollout twice.

    Args:
        promotion: What to decide.

    Attributes:
        decision: The decision; None until there is one.
    """

    def __init__(self, promotion: Promotion[Plan]) -> None:
        self._promotion = promotion
        self.decision: Decision | None = promotion.decision

    @with_llm_proxy()
    async def run(
        self,
        llm_proxy: LLMProxyLike | None,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Run pairs until the decision.

        Raises:
            ConfigError: The tasks are not those of the plan, or another process works on it.
        """
        tasks = _in_order(self._promotion.plan, train_dataset)
        async with self._promotion.held():
            if self.decision is None:
                self.decision = await self._run_pairs(tasks)
                await self._promotion.decide(self.decision)
            else:
                await self._promotion.apply()

    async def _run_pairs(self, tasks: Sequence[Any]) -> Decision:
        promotion, plan = self._promotion, self._promotion.plan
        evidence: Evidence[Plan] = Evidence(plan)
        spending = Spending(None, plan.max_cost, plan.price)
        reader = RewardReader(plan)
        with show_progress(f"promotion {plan.name}", len(tasks)) as progress:
            for first in range(0, len(tasks), plan.batch):
                outcomes = await self._batch(tasks[first : first + plan.batch], first)
                for task, arms in outcomes:
                    if evidence.add(_pair(plan, task, arms, reader)).kind != "undecided":
                        return evidence.decision
                await promotion.renew(pairs=evidence.decision.pairs)
                progress.update(evidence.decision.pairs, f"gain {evidence.decision.gain:+.3f}")
                if spending.add([one for _, arms in outcomes for ran in arms for one in ran]):
                    return evidence.end(f"max_cost = {plan.max_cost:g} is spent, and not shown yet")
        return evidence.decision

    async def _batch(self, tasks: Sequence[Any], first: int) -> list[tuple[Any, _Arms]]:
        """Run both on some tasks; return each with the outcomes of champion and candidate."""
        plan, run = self._promotion.plan, self.get_run()
        chance = random.Random(f"{plan.seed}|{first}")
        requests: list[EnqueueRolloutRequest] = []
        for task in tasks:
            arms = [plan.champion, plan.candidate] * plan.repeats
            chance.shuffle(arms)
            requests += [
                EnqueueRolloutRequest(input=task, mode="test", resources_id=arm) for arm in arms
            ]
        outcomes = iter(
            await run_requests(
                self.get_store(),
                requests,
                timeout=plan.deadline,
                description=f"pairs {first + 1} to {first + len(tasks)}",
                run=run,
                name=f"pairs-{first}",
            )
        )
        found: list[tuple[Any, _Arms]] = []
        for task in tasks:
            own = list(islice(outcomes, 2 * plan.repeats))
            champion, candidate = (
                [one for one in own if one.rollout.resources_id == arm]
                for arm in (plan.champion, plan.candidate)
            )
            found.append((task, (champion, candidate)))
        return found


def run_name(promotion: Promotion[Plan]) -> str:
    """Return the name of the run that has the rollouts of a promotion, and of no other one."""
    name = f"promotion.{promotion.plan.name}"
    # 8 digits: the name of a run has at most 100 characters, and that of a promotion 80.
    return f"{name}.{promotion.digest[:8]}" if promotion.plan.follows else name


def _in_order(plan: Plan, tasks: Dataset[Any] | None) -> list[Any]:
    """Return the tasks in the order of the plan.

    Raises:
        ConfigError: One is missing.
    """
    known = {} if tasks is None else {task_digest(tasks[i]): tasks[i] for i in range(len(tasks))}
    missing = sum(digest not in known for digest in plan.tasks)
    if missing:
        raise ConfigError(f"{missing} of the {len(plan.tasks)} tasks of the plan are missing")
    return [known[digest] for digest in plan.tasks]


def _pair(plan: Plan, task: Any, arms: _Arms, reader: RewardReader) -> Pair:
    champion, candidate = ([_rewards(one, reader) for one in ran] for ran in arms)

    def means(read: Callable[[_Rewards], float]) -> tuple[float, float]:
        return fmean(map(read, champion)), fmean(map(read, candidate))

    pair = means(lambda rewards: rewards[0])
    guarded: dict[str, tuple[float, float]] = {}
    for path in (rail.path for rail in plan.guardrails):
        if path.startswith("reward."):
            guarded[path] = means(lambda rewards, path=path: rewards[1][path])
        else:
            guarded[segment_of(task, path)] = pair
    return Pair(*pair, guarded)


def _rewards(outcome: RolloutOutcome, reader: RewardReader) -> _Rewards:
    """Return the rewards of a rollout; the lowest for a failure, and for one without a reward."""
    if outcome.rollout.status == "succeeded":
        reward, others = reader.read(outcome.rollout.rollout_id, outcome.spans)
        if reward is not None:
            return reward, others
    return reader.lowest()
