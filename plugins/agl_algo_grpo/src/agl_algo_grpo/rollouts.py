"""The rollouts of a step: enqueue them, repeat unusable ones, replace groups without a signal."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Sequence
from typing import Any

from agl_algo_grpo.config import GRPOConfig
from agl_algo_grpo.samples import Decision, Step, decide, version_of
from agl_algo_grpo.serving import Serving
from agl_core.adapter import TraceToTrajectory
from agl_core.algorithm import BatchOutcome, Run, run_batch
from agl_core.store import LightningStore
from agl_core.types import Dataset, RolloutConfig, RolloutMode

__all__ = ["Rollouts"]


class Rollouts:
    """Runs the rollouts of steps and selects those to train on.

    Rollouts have names, by which a resumed run finds those that finished before it was killed.

    Args:
        store: Where rollouts are enqueued.
        serving: The model that agents call.
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

    async def collect(self, step: int, tasks: Sequence[Any]) -> Step:
        """Run the rollouts of a step; replace groups without a signal, up to ``resample`` times."""
        began = time.monotonic()
        decisions, retried = await self._groups(step, f"step-{step}", tasks)
        selected = Step.of(decisions, self._config)
        for number in range(1, self._config.resample + 1):
            missing = len(tasks) - len(selected.groups)
            if not missing:
                break
            # The same draw in a resumed run, which finds these rollouts in the store by their name.
            order = random.Random(f"{self._config.seed}-{step}-{number}")
            drawn = [self._train[i] for i in order.sample(range(len(self._train)), missing)]
            more, again = await self._groups(step, f"step-{step}-more-{number}", drawn)
            decisions += more
            retried += again
            selected = Step.of(decisions, self._config)
        selected.retried.update(decision.reason for decision in retried)
        selected.number, selected.seconds = step, time.monotonic() - began
        return selected

    async def _groups(
        self, step: int, name: str, tasks: Sequence[Any]
    ) -> tuple[list[list[Decision]], list[Decision]]:
        """Run a group of rollouts for each task; repeat unusable ones, up to ``retries`` times.

        Returns:
            The decisions on each group's rollouts, and the decisions that led to repetitions.
        """
        size = self._config.group_size
        decisions: dict[tuple[int, int], Decision] = {}
        missing = [(group, member) for group in range(len(tasks)) for member in range(size)]
        retried: list[Decision] = []
        tries = 0
        first = name
        versions = {version_of(step - age) for age in range(self._config.overlap + 1)}
        while True:
            restarts = self._serving.restarts
            batch = await self._batch(name, [tasks[g] for g, _ in missing], "train")
            for slot, outcome in zip(missing, batch, strict=True):
                decisions[slot] = decide(outcome, self._adapter, self._config, versions)
            missing = [s for s in missing if decisions[s].reason and decisions[s].failed]
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
            timeout=self._config.step_timeout,
            description=name,
            run=self._run,
            name=name,
        )

    async def validate(self, step: int, tasks: Dataset[Any]) -> float:
        """Run a rollout for each validation task after ``step`` steps; return the mean reward."""
        batch = await self._batch(f"val-{step}", tasks, "val")
        return batch.score().mean
