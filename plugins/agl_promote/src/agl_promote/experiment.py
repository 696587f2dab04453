"""The experiment of a plan: paired rollouts until there is a decision."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import anyio

from agl_algorithm_kit import run_requests
from agl_core.algorithm import (
    FastAlgorithm,
    LLMProxyLike,
    RolloutOutcome,
    show_progress,
    with_llm_proxy,
)
from agl_core.emitter import find_final_reward, get_rewards_from_span
from agl_core.errors import ConfigError, InvalidArgumentError
from agl_core.store import LightningStore
from agl_core.types import Dataset, EnqueueRolloutRequest, task_digest
from agl_promote.evidence import Decision, Evidence, Pair
from agl_promote.plan import Guardrail, Plan
from agl_promote.promotion import LEASE_SECONDS, Promotion

__all__ = ["Experiment", "known_rewards", "run_name", "segments_of", "used_tasks"]

_LOOKED_AT = 5000  # newest rollouts
_MOST_KNOWN = 300


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

    def __init__(self, promotion: Promotion) -> None:
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
        promotion = self._promotion
        tasks = _in_order(promotion.plan, train_dataset)
        await promotion.acquire()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_lease)
                await self._run_pairs(tasks)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await promotion.release()

    async def _keep_lease(self) -> None:
        while True:
            await anyio.sleep(LEASE_SECONDS / 3)
            await self._promotion.renew(self._promotion.pairs)

    async def _run_pairs(self, tasks: Sequence[Any]) -> None:
        promotion, plan = self._promotion, self._promotion.plan
        evidence = Evidence(plan)
        decision = promotion.decision
        with show_progress(f"promotion {plan.name}", len(tasks)) as progress:
            first = 0
            while decision is None and first < len(tasks):
                for pair in await self._batch(tasks[first : first + plan.batch], first):
                    if evidence.add(pair).kind != "undecided":
                        decision = evidence.decision
                        break
                first += plan.batch
                if decision is None:
                    await promotion.renew(evidence.decision.pairs)
                progress.update(evidence.decision.pairs, f"gain {evidence.decision.gain:+.3f}")
        self.decision = decision or evidence.decision
        if promotion.decision is None:
            await promotion.decide(self.decision)
        else:
            await promotion.apply()

    async def _batch(self, tasks: Sequence[Any], first: int) -> list[Pair]:
        """Run both on some tasks; return their pairs in order."""
        plan, run = self._promotion.plan, self.get_run()
        chance = random.Random(f"{plan.seed}|{first}")
        requests: list[EnqueueRolloutRequest] = []
        slots: list[tuple[int, str]] = []
        for index, task in enumerate(tasks):
            arms = [plan.champion, plan.candidate] * plan.repeats
            chance.shuffle(arms)
            for arm in arms:
                request = EnqueueRolloutRequest(input=task, mode="test", resources_id=arm)
                requests.append(request)
                slots.append((index, arm))
        outcomes = await run_requests(
            self.get_store(),
            requests,
            timeout=plan.deadline,
            description=f"pairs {first + 1} to {first + len(tasks)}",
            run=run,
            name=f"pairs-{first}",
        )
        by_slot: dict[tuple[int, str], list[RolloutOutcome]] = {}
        for slot, outcome in zip(slots, outcomes, strict=True):
            by_slot.setdefault(slot, []).append(outcome)
        return [
            _pair(plan, task, by_slot[index, plan.champion], by_slot[index, plan.candidate])
            for index, task in enumerate(tasks)
        ]


def run_name(plan: Plan) -> str:
    """Return the name of the run that has the rollouts of a promotion."""
    return f"promotion.{plan.name}"


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


def _pair(
    plan: Plan,
    task: Any,
    champion: Sequence[RolloutOutcome],
    candidate: Sequence[RolloutOutcome],
) -> Pair:
    low, high = plan.reward_range

    def mean(outcomes: Sequence[RolloutOutcome], name: str | None = None) -> float:
        found = [_reward(outcome, name, low) for outcome in outcomes]
        outside = next((reward for reward in found if not low <= reward <= high), None)
        if outside is not None:
            raise InvalidArgumentError(
                f"the reward {outside} of {outcomes[0].rollout.rollout_id} is outside the declared "
                f"range, {low:g} to {high:g}"
            )
        return fmean(found)

    pair = mean(champion), mean(candidate)
    guarded: dict[str, tuple[float, float]] = {}
    for rail in plan.guardrails:
        kind, _, path = rail.path.partition(".")
        if kind == "reward":
            guarded[rail.path] = mean(champion, path), mean(candidate, path)
        else:
            guarded[_segment(task, path)] = pair
    return Pair(*pair, guarded)


def _reward(outcome: RolloutOutcome, name: str | None, lowest: float) -> float:
    """Return a rollout's reward, or one by name; the lowest for a failure."""
    if outcome.rollout.status != "succeeded":
        return lowest
    if name is None:
        return lowest if outcome.reward is None else outcome.reward
    rewards = (get_rewards_from_span(span) for span in reversed(outcome.spans))
    last = next((found for found in rewards if found), [])
    return next((one.value for one in last if one.name == name), lowest)


def segments_of(tasks: Iterable[Any], guardrails: Iterable[Guardrail]) -> list[str]:
    """Return every segment of tasks that guardrails look at, such as ``input.country=de``."""
    paths = [
        path
        for rail in guardrails
        if (path := rail.path.partition(".")[2]) and rail.path.startswith("input.")
    ]
    return sorted({_segment(task, path) for task in tasks for path in paths})


def _segment(task: Any, path: str) -> str:
    """Return the segment of a task by a dotted path into its input."""
    for key in path.split("."):
        task = task.get(key) if isinstance(task, Mapping) else None
    return f"input.{path}={task}"


async def known_rewards(store: LightningStore, plan: Plan) -> list[float]:
    """Return the rewards that the champion got in evaluations, the newest 300."""
    page = await store.query_rollouts(
        mode_in=["val", "test"], sort_by="start_time", sort_order="desc", limit=_LOOKED_AT
    )
    own = [one for one in page if one.resources_id == plan.champion and one.status == "succeeded"]
    low, high = plan.reward_range
    found: list[float] = []
    for rollout in own[:_MOST_KNOWN]:
        reward = find_final_reward((await store.query_spans(rollout.rollout_id, "latest")).items)
        if reward is not None and low <= reward <= high:
            found.append(reward)
    return found


async def used_tasks(store: LightningStore, *resources_ids: str) -> set[str]:
    """Return the digests of the tasks that the searches of these snapshots used.

    A snapshot ``search/v12`` was made by the run ``search``, and all of that run's rollouts count.
    """
    runs = {one.partition("/")[0] for one in resources_ids if "/" in one}
    found: set[str] = set()
    offset = 0
    while True:
        page = await store.query_rollouts(mode_in=["train", "val"], limit=1000, offset=offset)
        for rollout in page:
            labels = rollout.metadata or {}
            if labels.get("run") in runs or rollout.resources_id in resources_ids:
                found.add(task_digest(rollout.input))
        offset += len(page)
        if not len(page) or offset >= page.total:
            return found
