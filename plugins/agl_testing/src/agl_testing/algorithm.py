"""The conformance suite for algorithms.

::

    class TestMyAlgorithm(AlgorithmSuite):
        flags = frozenset({"resources"})

        @pytest.fixture
        def algorithm(self):
            return MyAlgorithm(rounds=1)
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, ClassVar

import pytest

from agl_core.adapter import TracerTraceToTriplet
from agl_core.agent import LitAgent, rollout
from agl_core.algorithm import Algorithm
from agl_core.runner import Hook
from agl_core.store import InMemoryLightningStore
from agl_core.trainer import Trainer
from agl_core.types import FINISHED_STATUSES, NamedResources, PromptTemplate
from agl_testing.suite import Suite, requires

__all__ = ["AlgorithmSuite"]

N_RUNNERS = 2


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


class AlgorithmSuite(Suite):
    """Tests the contract of algorithms.

    The author supplies a fixture ``algorithm`` whose run ends by itself within seconds on the
    datasets below, and may override the other fixtures.
    """

    suite_name = "algorithm"
    FLAGS: ClassVar[dict[str, str]] = {
        "resources": "the algorithm writes resources to the store",
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
    def trainer(
        self,
        algorithm: Algorithm,
        algorithm_store: InMemoryLightningStore,
        initial_resources: NamedResources,
        adapter: Any,
    ) -> Trainer:
        return Trainer(
            algorithm=algorithm,
            store=algorithm_store,
            strategy={"type": "shm"},
            n_runners=N_RUNNERS,
            adapter=adapter,
            hooks=SlowStart(),
            initial_resources=initial_resources,
        )

    def test_it_is_an_algorithm(self, algorithm: Algorithm):
        assert isinstance(algorithm, Algorithm)
        assert isinstance(algorithm.is_async(), bool)

    async def _statuses(self, store: InMemoryLightningStore) -> list[str]:
        return [item.status for item in await store.query_rollouts()]

    def test_a_run_ends_and_leaves_no_rollout_open(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        statuses = asyncio.run(self._statuses(algorithm_store))
        assert statuses, "the algorithm enqueued no task"
        assert set(statuses) <= FINISHED_STATUSES

    def test_it_can_run_twice(
        self, trainer: Trainer, agent: LitAgent[Any], train_dataset: Any, val_dataset: Any
    ):
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)

    def test_an_agent_that_always_fails_does_not_hang_it(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        train_dataset: Any,
        val_dataset: Any,
    ):
        @rollout
        def broken(task: Any, prompt_template: PromptTemplate) -> float:
            raise RuntimeError("always")

        try:
            trainer.fit(broken, train_dataset, val_dataset=val_dataset)
        except Exception as error:
            assert str(error), "an algorithm that gives up must say why"  # noqa: PT017
        assert set(asyncio.run(self._statuses(algorithm_store))) <= FINISHED_STATUSES

    @requires("no_data")
    def test_missing_datasets_are_accepted(self, trainer: Trainer, agent: LitAgent[Any]):
        trainer.fit(agent)

    @requires("resources")
    def test_it_writes_resources(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
        initial_resources: NamedResources,
    ):
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        latest = asyncio.run(algorithm_store.get_latest_resources())
        assert latest is not None
        # An algorithm may add other resources that agents need, such as the model that it trains.
        assert set(initial_resources) <= set(latest.resources)
