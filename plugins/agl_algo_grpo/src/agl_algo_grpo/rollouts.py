"""The rollouts of a step: enqueue them, repeat unusable ones, replace groups without a signal."""

from __future__ import annotations

import math
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from agl_adapter_trajectory import TraceToTrajectory
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.forks import Forks
from agl_algo_grpo.samples import Decision, Step, decide, reward_of, version_of
from agl_algo_grpo.serving import Serving
from agl_algorithm_kit import run_batch, run_requests
from agl_core.algorithm import BatchOutcome, RewardScale, Run
from agl_core.statistics import Estimate
from agl_core.store import LightningStore
from agl_core.types import Dataset, RolloutConfig, RolloutMode

__all__ = ["Rollouts", "Validation"]

Decisions = Mapping[str, Decision]
"""Decisions on one rollout, by the policy's name."""


class Validation(NamedTuple):
    """How a policy does on the validation tasks.

    Attributes:
        score: The mean reward over the tasks; a failure counts the lowest possible reward.
        rank: The mean that chooses the best model; a failure counts less than every finished
            rollout (:class:`~agl_core.algorithm.RewardScale`).
    """

    score: Estimate
    rank: float


class Rollouts:
    """Runs the rollouts of steps and selects those to train on.

    Rollouts have names, by which a resumed run finds those that finished before it was killed.

    Args:
        store: Where rollouts are enqueued.
        serving: The models that agents call.
        adapter: Makes rows of spans.
        train: Tasks to train on; groups without a signal are replaced by tasks of it.
        config: See :class:`~agl_algo_grpo.config.GRPOConfig`.
        run: The run that the rollouts belong to.
    """

    def __init__(
        self,
        store: LightningStore,
        serving: Serving,
        adapter: TraceToTrajectory,
        train: Dataset[Any],
        config: GRPOConfig,
        run: Run,
    ) -> None:
        self._store = store
        self._serving = serving
        self._adapter = adapter
        self._train = train
        self._config = config
        self._run = run
        self._val_scales: dict[str, RewardScale] = {}
        self._forks = Forks(store, config) if config.credit.type == "forked" else None

    async def collect(self, step: int, tasks: Sequence[Any]) -> dict[str, Step]:
        """Run the rollouts of a step; replace groups without a signal, up to ``resample`` times.

        Returns:
            What to train each policy on, by its name.
        """
        began = time.monotonic()
        decisions, retried = await self._groups(step, f"step-{step}", tasks)
        selected = self._select(decisions)
        for number in range(1, self._config.resample + 1):
            useful = {group.index for part in selected.values() for group in part.groups}
            missing = len(tasks) - len(useful)
            if not missing:
                break
            # The same draw in a resumed run, which finds these rollouts in the store by their name.
            order = random.Random(f"{self._config.seed}-{step}-{number}")
            drawn = [self._train[i] for i in order.sample(range(len(self._train)), missing)]
            more, repeated = await self._groups(step, f"step-{step}-more-{number}", drawn)
            decisions += more
            retried += repeated
            selected = self._select(decisions)
        if self._forks is not None:
            forks = await self._fork(self._forks, step, selected)
            selected = self._select(decisions, forks)
            self._forks.learn(selected)
        for name, part in selected.items():
            again = [one[name] for one in retried if _is_unusable({name: one[name]})]
            part.retried.update(decision.reason for decision in again)
            part.sampled_tokens += sum(one[name].tokens for one in retried)
            part.number, part.seconds = step, time.monotonic() - began
        return selected

    def _select(
        self,
        decisions: Sequence[Sequence[Decisions]],
        forks: Mapping[int, Sequence[Decisions]] | None = None,
    ) -> dict[str, Step]:
        return {
            name: Step.of(
                [[one[name] for one in group] for group in decisions],
                learner.config,
                {index: [one[name] for one in group] for index, group in (forks or {}).items()},
                self._run.reward_range,
            )
            for name, learner in self._serving.learners.items()
        }

    async def _fork(
        self, forks: Forks, step: int, selected: Mapping[str, Step]
    ) -> dict[int, list[Decisions]]:
        """Run the forks of a step; return the decisions on them by the position of their group."""
        requests = await forks.requests(step, selected)
        if not requests:
            return {}
        # After a resumption the same choice of forks finds those that finished before.
        plan = repr([(index, request.config) for index, request in requests])
        batch = await run_requests(
            self._store,
            [request for _, request in requests],
            adapter=self._adapter,
            timeout=self._config.step_timeout,
            description=f"forks of step {step}",
            run=self._run,
            name=f"step-{step}-forks-{zlib.crc32(plan.encode()):08x}",
        )
        found: dict[int, list[Decisions]] = {}
        for (index, _), outcome in zip(requests, batch, strict=True):
            one = decide(outcome, self._adapter, self._serving.learners, self._versions(step))
            found.setdefault(index, []).append(one)
        if any(_is_unusable(one) for group in found.values() for one in group):
            await self._serving.ensure()
        return found

    def _versions(self, step: int) -> set[str]:
        """Return the versions of the weights that may sample the rollouts of a step."""
        return {version_of(step - age) for age in range(self._config.overlap + 1)}

    async def _groups(
        self, step: int, name: str, tasks: Sequence[Any]
    ) -> tuple[list[list[Decisions]], list[Decisions]]:
        """Run a group of rollouts for each task; repeat unusable ones, up to ``retries`` times.

        Returns:
            The decisions on each group's rollouts, and the decisions that led to repetitions.
        """
        size = self._config.group_size
        learners = self._serving.learners
        decisions: dict[tuple[int, int], Decisions] = {}
        missing = [(group, member) for group in range(len(tasks)) for member in range(size)]
        retried: list[Decisions] = []
        tries = 0
        first = name
        versions = self._versions(step)
        while True:
            restarts = self._serving.restarts
            batch = await self._batch(name, [tasks[g] for g, _ in missing], "train")
            for slot, outcome in zip(missing, batch, strict=True):
                decisions[slot] = decide(outcome, self._adapter, learners, versions)
            missing = [s for s in missing if _is_unusable(decisions[s])]
            if missing:
                await self._serving.ensure()
            # Rollouts lost to a server's death do not count as retries: `Serving` limits restarts.
            tries += self._serving.restarts == restarts
            if not missing or tries > self._config.retries:
                break
            retried += [decisions[slot] for slot in missing]
            # The name identifies these rollouts, so that a resumed run finds them in the store.
            name = f"{first}-again-{zlib.crc32(repr((name, missing)).encode()):08x}"
        groups = [
            [decisions[group, member] for member in range(size)] for group in range(len(tasks))
        ]
        return groups, retried

    async def _batch(self, name: str, tasks: Dataset[Any], mode: RolloutMode) -> BatchOutcome:
        return await run_batch(
            self._store,
            tasks,
            resources=self._serving.as_resources(),
            mode=mode,
            config=RolloutConfig(timeout_seconds=self._config.rollout_timeout),
            adapter=self._adapter if mode == "train" else None,
            timeout=self._config.step_timeout,
            description=name,
            run=self._run,
            name=name,
        )

    async def validate(self, step: int, tasks: Dataset[Any]) -> dict[str, Validation]:
        """Run a rollout for each validation task after ``step`` steps.

        Returns:
            By the policy's name.
        """
        batch = await self._batch(f"val-{step}", tasks, "val")
        found: dict[str, Validation] = {}
        for name, learner in self._serving.learners.items():
            own = _of_policy(batch, learner.config.reward)
            earned = [outcome.earned for outcome in own.scored]
            scale = self._val_scales.setdefault(name, RewardScale(self._run.reward_range))
            scale.learn(earned)
            found[name] = Validation(own.score(), fmean(scale.counted(earned)))
        return found


def _of_policy(batch: BatchOutcome, reward: str | None) -> BatchOutcome:
    """Return a batch with the rewards that a policy learns from; one that is not finite is none."""
    found = [reward_of(outcome, reward) for outcome in batch]
    usable = [one if one is not None and math.isfinite(one) else None for one in found]
    outcomes = [replace(one, reward=own) for one, own in zip(batch, usable, strict=True)]
    return replace(batch, outcomes=outcomes)


def _is_unusable(decisions: Decisions) -> bool:
    """Return whether a repetition of the rollout may help a policy."""
    return any(decision.reason and decision.failed for decision in decisions.values())
