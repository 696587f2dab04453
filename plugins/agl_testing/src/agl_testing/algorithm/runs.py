"""Runs of an algorithm: their end, a second one, and what they do with the datasets."""

from __future__ import annotations

import asyncio
from typing import Any

from agl_core.agent import LitAgent, rollout
from agl_core.algorithm import Algorithm
from agl_core.trainer import Trainer
from agl_core.types import FINISHED_STATUSES, NamedResources, PromptTemplate
from agl_store_memory import InMemoryLightningStore
from agl_testing.algorithm.base import AlgorithmTests, rollouts_of, statuses_of
from agl_testing.suite import requires

__all__ = ["RunTests"]


class RunTests(AlgorithmTests):
    """An algorithm runs to its end."""

    def test_it_is_an_algorithm(self, algorithm: Algorithm):
        assert isinstance(algorithm, Algorithm)
        assert isinstance(algorithm.is_async(), bool)

    def test_a_run_ends_and_leaves_no_rollout_open(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        statuses = statuses_of(algorithm_store)
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
        assert set(statuses_of(algorithm_store)) <= FINISHED_STATUSES

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

    def test_a_second_run_does_its_work_again(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        first = len(statuses_of(algorithm_store))
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        statuses = statuses_of(algorithm_store)
        assert len(statuses) > first
        assert set(statuses) <= FINISHED_STATUSES

    def test_validation_tasks_are_not_trained_on(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        tasks = [val_dataset[index] for index in range(len(val_dataset))]
        trained = [task.input for task in rollouts_of(algorithm_store) if task.mode == "train"]
        modes = {task.mode for task in rollouts_of(algorithm_store)}
        assert None not in modes, "a rollout does not say what it is for"
        assert not [task for task in trained if task in tasks]
