"""The rollouts of a step: enqueue them, repeat unusable ones, replace groups without a signal."""

from __future__ import annotations

import logging
import math
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agl_adapter_trajectory import TraceToTrajectory
from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.forks import Forks
from agl_algo_grpo.samples import (
    Decision,
    Reason,
    Step,
    decide,
    lost_calls,
    reward_of,
    version_of,
)
from agl_algo_grpo.serving import Serving
from agl_algo_grpo.validation import Validation
from agl_algorithm_kit import run_batch, run_requests
from agl_core import semconv
from agl_core.algorithm import BatchOutcome, RolloutOutcome, Run
from agl_core.errors import RunFailedError
from agl_core.store import LightningStore
from agl_core.types import Dataset, RolloutConfig, RolloutMode, Span

__all__ = ["Rollouts", "Validation"]

logger = logging.getLogger(__name__)

_MODEL: Final = "gen_ai.request.model"

Decisions = Mapping[str, Decision]
"""Decisions on one rollout, by the policy's name."""


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
            part.skipped_forks = 0 if self._forks is None else self._forks.skipped[name]
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
        decisions: list[Decisions] = []
        try:
            batch = await run_requests(
                self._store,
                [request for _, request in requests],
                adapter=self._adapter,
                timeout=self._config.step_timeout,
                description=f"forks of step {step}",
                run=self._run,
                name=f"step-{step}-forks-{zlib.crc32(plan.encode()):08x}",
            )
        except RunFailedError as error:
            decisions = self._all_lost(error, len(requests))
        else:
            for outcome in batch:
                decisions.append(self._decide(outcome, step))
        found: dict[int, list[Decisions]] = {}
        for (index, _), one in zip(requests, decisions, strict=True):
            found.setdefault(index, []).append(one)
        if any(_is_unusable(one) for group in found.values() for one in group):
            await self._serving.ensure()
        return found

    def _decide(self, outcome: RolloutOutcome, step: int) -> Decisions:
        return decide(outcome, self._adapter, self._serving.learners, self._versions(step))

    def _all_lost(self, error: RunFailedError, number: int) -> list[Decisions]:
        """Return the decisions on a batch that the infrastructure failed as a whole.

        A step's first batch ends the run so. One of a few repetitions, replacements or forks may
        have met what fails a single task each time.
        """
        logger.warning("%s", error)
        lost = Decision(None, Reason.INFRASTRUCTURE)
        return [dict.fromkeys(self._serving.learners, lost) for _ in range(number)]

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
        decisions: dict[tuple[int, int], Decisions] = {}
        missing = [(group, member) for group in range(len(tasks)) for member in range(size)]
        retried: list[Decisions] = []
        tries = 0
        first = name
        while True:
            restarts = self._serving.restarts
            try:
                batch = await self._batch(name, [tasks[g] for g, _ in missing], "train")
            except RunFailedError as error:
                if name == f"step-{step}":
                    raise
                decisions.update(zip(missing, self._all_lost(error, len(missing)), strict=True))
            else:
                for slot, outcome in zip(missing, batch, strict=True):
                    decisions[slot] = self._decide(outcome, step)
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
        """Run a rollout for each validation task after ``step`` steps; repeat lost ones.

        A rollout is lost if the server, the proxy or the store failed it: that says nothing about
        the policy. Those lost to a server's death do not count as retries.

        Returns:
            By the policy's name.
        """
        first = name = f"val-{step}"
        restarts, tries = self._serving.restarts, 0
        batch = await self._batch(name, tasks, "val")
        outcomes = list(batch)
        missing = list(range(len(outcomes)))
        while True:
            if any(one.rollout.status != "succeeded" or _lost_calls(one) for one in outcomes):
                await self._serving.ensure()
            restarted = self._serving.restarts != restarts
            tries += not restarted
            missing = [i for i in missing if self._is_lost(outcomes[i], restarted)]
            if not missing or tries > self._config.retries:
                break
            logger.warning("%s: %d rollouts are lost and repeated", first, len(missing))
            name = f"{first}-again-{zlib.crc32(repr((name, missing)).encode()):08x}"
            restarts = self._serving.restarts
            try:
                again = await self._batch(name, [tasks[i] for i in missing], "val")
            except RunFailedError as error:
                logger.warning("%s", error)
                continue
            for i, outcome in zip(missing, again, strict=True):
                outcomes[i] = outcome
        batch = replace(batch, outcomes=outcomes)
        return {
            name: Validation.of(_of_policy(batch, learner.config.reward))
            for name, learner in self._serving.learners.items()
        }

    def _is_lost(self, outcome: RolloutOutcome, restarted: bool) -> bool:
        """Return whether a rollout failed, or may have failed, by no fault of the policy."""
        if outcome.infrastructure is not None:
            return True
        models = {learner.model for learner in self._serving.learners.values()} | {None}
        if any(call.attributes.get(_MODEL) in models for call in _lost_calls(outcome)):
            return True
        return restarted and outcome.rollout.status != "succeeded"


def _lost_calls(outcome: RolloutOutcome) -> list[Span]:
    calls = [span for span in outcome.spans if span.name == semconv.SPAN_MODEL_CALL]
    return lost_calls(calls)


def _of_policy(batch: BatchOutcome, reward: str | None) -> BatchOutcome:
    """Return a batch with the rewards that a policy learns from; one that is not finite is none."""
    found = [reward_of(outcome, reward) for outcome in batch]
    usable = [one if one is not None and math.isfinite(one) else None for one in found]
    outcomes = [replace(one, reward=own) for one, own in zip(batch, usable, strict=True)]
    return replace(batch, outcomes=outcomes)


def _is_unusable(decisions: Decisions) -> bool:
    """Return whether a repetition of the rollout may help a policy."""
    return any(decision.reason and decision.failed for decision in decisions.values())
