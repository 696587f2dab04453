"""Base of the parts of the algorithm suite: the fixtures, the flags, and helpers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agl_adapters import TracerTraceToTriplet
from agl_core.agent import LitAgent, rollout
from agl_core.algorithm import Algorithm
from agl_core.runner import Hook
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import NamedResources, PromptTemplate, Rollout
from agl_store_memory import InMemoryLightningStore
from agl_testing.suite import Suite

__all__ = ["N_RUNNERS", "AlgorithmTests", "rollouts_of", "statuses_of"]

N_RUNNERS = 2
"""Two show what goes wrong beside each other."""


class SlowStart(Hook):
    """Delays each runner's first rollout by half a second, as a model call would.

    Without the delay, runners may finish all tasks before an algorithm that fails to wait for them
    ends, and the fault would show only in some runs.
    """

    def __init__(self) -> None:
        self._started = itertools.count()

    async def on_rollout_start(self, **given: Any) -> None:
        if next(self._started) < N_RUNNERS:
            await asyncio.sleep(0.5)


class AlgorithmTests(Suite):
    """Base of the algorithm suite's parts.

    The author supplies a fixture ``algorithm`` whose run ends by itself within seconds on the
    datasets below, and may override the other fixtures.
    """

    suite_name = "algorithm"
    FLAGS: ClassVar[dict[str, str]] = {
        "resources": "the algorithm writes resources to the store",
        "improves": "a run tries several prompts, and the best of them is the latest when it ends",
        "all_tasks": "a run runs every task of its datasets",
        "resumes": "a run with a name that was cut off continues where it was",
        "no_data": "a run without datasets ends at once without an error",
    }

    @pytest.fixture
    def algorithm(self) -> Algorithm:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `algorithm`")

    @pytest.fixture
    def agent(self) -> LitAgent[Any]:
        """Return the agent to train; by default it answers even numbers correctly."""

        @rollout
        def even(task: int, prompt_template: PromptTemplate) -> float:
            return float(task % 2 == 0)

        return even

    @pytest.fixture
    def train_dataset(self) -> Any:
        return list(range(8))

    @pytest.fixture
    def val_dataset(self) -> Any:
        return list(range(8, 12))

    @pytest.fixture
    def initial_resources(self) -> NamedResources:
        return {"prompt": PromptTemplate(template="Is {number} even?", engine="f-string")}

    @pytest.fixture
    def adapter(self) -> Any:
        return TracerTraceToTriplet()

    @pytest.fixture
    def algorithm_store(self) -> InMemoryLightningStore:
        return InMemoryLightningStore()

    @pytest.fixture
    def make_trainer(
        self,
        algorithm: Algorithm,
        algorithm_store: InMemoryLightningStore,
        initial_resources: NamedResources,
        adapter: Any,
    ) -> Callable[..., Trainer]:
        """Return a function that makes a trainer; its arguments replace those of the suite."""
        defaults: dict[str, Any] = {
            "algorithm": algorithm,
            "store": algorithm_store,
            "strategy": {"type": "shm"},
            "n_runners": N_RUNNERS,
            "adapter": adapter,
            "initial_resources": initial_resources,
        }
        return lambda **options: Trainer(**{**defaults, "hooks": SlowStart(), **options})

    @pytest.fixture
    def trainer(self, make_trainer: Callable[..., Trainer]) -> Trainer:
        return make_trainer()


def rollouts_of(store: LightningStore) -> list[Rollout]:
    """Return every rollout of a store."""
    return list(asyncio.run(store.query_rollouts()))


def statuses_of(store: LightningStore) -> list[str]:
    """Return the status of every rollout of a store."""
    return [rollout.status for rollout in rollouts_of(store)]
