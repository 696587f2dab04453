"""The test of a finished search on tasks that it did not use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from agl_core.errors import ConfigError
from agl_core.statistics import Estimate, Gain
from agl_core.types import PromptTemplate, task_digest

if TYPE_CHECKING:
    from agl_core.algorithm import ComparisonOutcome
    from agl_core.trainer import Trainer
    from agl_core.types import Dataset, NamedResources, ResourcesUpdate
    from agl_train.file import TrainPlan

__all__ = ["HeldOut", "check_held_out", "measure_held_out"]


class HeldOut(NamedTuple):
    """Scores on the test tasks, before and after a search.

    Attributes:
        before: Score with the resources that the search started from.
        after: Score with its result.
        gain: The gain, paired by task.
        won: Tasks on which the result is better.
        lost: Tasks on which it is worse.
        tied: Tasks on which both are equal.
    """

    before: Estimate
    after: Estimate
    gain: Gain
    won: int
    lost: int
    tied: int

    @classmethod
    def of(
        cls, outcome: ComparisonOutcome, reward_range: tuple[float, float] | None = None
    ) -> HeldOut:
        """Summarise the outcomes of a comparison."""
        signs = [
            (new > old) - (new < old)
            for old, new in outcome.pairs(reward_range=reward_range).values()
        ]
        return cls(
            outcome.before.score(reward_range=reward_range),
            outcome.after.score(reward_range=reward_range),
            outcome.gain(reward_range=reward_range),
            signs.count(1),
            signs.count(-1),
            signs.count(0),
        )

    def rows(self, before: str, after: str) -> list[list[str]]:
        """Return rows for a table.

        Args:
            before: Name of what the gain is over.
            after: Name of the other one.
        """
        shown = "" if self.gain.is_shown else ", not shown"
        return [
            [before, str(self.before)],
            [after, str(self.after)],
            ["gain", f"{self.gain}{shown}"],
            ["tasks", f"{self.won} won, {self.lost} lost, {self.tied} tied"],
        ]

    def as_json(self) -> dict[str, Any]:
        scores = {name: getattr(self, name)._asdict() for name in ("before", "after", "gain")}
        return {**scores, "won": self.won, "lost": self.lost, "tied": self.tied}


def check_held_out(plan: TrainPlan) -> None:
    """Check that a search does not see its test tasks.

    Raises:
        ConfigError: A test task is among the training or validation tasks.
    """
    if plan.test_dataset is None:
        return
    test = _digests(plan.test_dataset)
    for name in ("train_dataset", "val_dataset"):
        used = getattr(plan, name)
        shared = 0 if used is None else len(test & _digests(used))
        if shared:
            raise ConfigError(
                f"{shared} of its {len(test)} tasks are in {name}, too; a test needs tasks that "
                "the search does not use",
                path="test_dataset",
            )


def _digests(tasks: Dataset[Any]) -> set[str]:
    return {task_digest(tasks[index]) for index in range(len(tasks))}


def measure_held_out(
    trainer: Trainer,
    plan: TrainPlan,
    earlier: ResourcesUpdate | None,
    result: ResourcesUpdate,
) -> HeldOut | None:
    """Measure what a search started from and its result on the test tasks, at the same time.

    Args:
        trainer: The trainer of the search.
        plan: The train file.
        earlier: The latest resources before the search.
        result: The latest resources after it.

    Returns:
        None if the search changed no prompt.
    """
    assert plan.test_dataset is not None
    seed = asyncio.run(trainer.store.get_resources_by_id(f"{trainer.run}/v0"))
    if seed is None and plan.resources is None:
        seed = earlier
    start: NamedResources = (plan.resources or {}) if seed is None else seed.resources
    if _prompts(start) == _prompts(result.resources):
        return None
    before = start if seed is None else seed.resources_id
    outcome = trainer.compare(
        plan.agent, plan.test_dataset, before=before, after=result.resources_id
    )
    return HeldOut.of(outcome)


def _prompts(resources: Mapping[str, Any]) -> dict[str, str]:
    return {k: it.template for k, it in resources.items() if isinstance(it, PromptTemplate)}
