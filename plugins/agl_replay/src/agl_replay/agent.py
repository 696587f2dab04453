"""The agent of a replay: the user's agent, whose models are the replaying proxy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from agl_core.agent import LitAgent, RunnerView, TrainerView
from agl_core.types import (
    LLM,
    AttemptedRollout,
    NamedResources,
    ProxyLLM,
    Rollout,
    RolloutRawResult,
)

__all__ = ["Around", "ReplayedAgent", "redirect"]

Around = Callable[[AttemptedRollout, NamedResources], AbstractContextManager[NamedResources]]
"""Prepares a replay; yields the resources that the agent gets."""


class ReplayedAgent(LitAgent[Any]):
    """Runs an agent within a context that gives it the resources of a replay.

    Args:
        agent: The user's agent.
        around: Called before each run of the agent, in its thread.
    """

    def __init__(self, agent: LitAgent[Any], around: Around) -> None:
        super().__init__()
        self._agent = agent
        self._around = around
        self.concurrent, self.reward_range = agent.concurrent, agent.reward_range

    def set_trainer(self, trainer: TrainerView) -> None:
        self._agent.set_trainer(trainer)

    def set_runner(self, runner: RunnerView) -> None:
        super().set_runner(runner)
        self._agent.set_runner(runner)

    def is_async(self) -> bool:
        return self._agent.is_async()

    def check_signature(self) -> None:
        self._agent.check_signature()

    def training_rollout(
        self, task: Any, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        with self._around(cast("AttemptedRollout", rollout), resources) as replayed:
            return self._agent.training_rollout(task, replayed, rollout)

    def validation_rollout(
        self, task: Any, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        with self._around(cast("AttemptedRollout", rollout), resources) as replayed:
            return self._agent.validation_rollout(task, replayed, rollout)

    async def training_rollout_async(
        self, task: Any, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        with self._around(cast("AttemptedRollout", rollout), resources) as replayed:
            return await self._agent.training_rollout_async(task, replayed, rollout)

    async def validation_rollout_async(
        self, task: Any, resources: NamedResources, rollout: Rollout
    ) -> RolloutRawResult:
        with self._around(cast("AttemptedRollout", rollout), resources) as replayed:
            return await self._agent.validation_rollout_async(task, replayed, rollout)


def redirect(resources: NamedResources, base_url: str, ids: tuple[str, str]) -> NamedResources:
    """Return resources whose models are behind a proxy, under the URL of one attempt."""
    whole = ProxyLLM(endpoint=base_url, model="")
    found = dict(resources)
    for name, resource in resources.items():
        if isinstance(resource, ProxyLLM):
            found[name] = resource.model_copy(update={"endpoint": base_url})
        elif isinstance(resource, LLM):
            url = whole.get_base_url(*ids)
            found[name] = resource.model_copy(update={"endpoint": url})
    return found
