"""The conformance suite for environment plugins.

::

    class TestMyEnvironments(EnvironmentSuite):
        @pytest.fixture
        def load(self):
            return my_package.environment.load

        @pytest.fixture
        def name(self):
            return "english"
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from agl_core.agent import Environment, LitAgent
from agl_core.emitter import find_final_reward
from agl_core.errors import ConfigError
from agl_core.types import Dataset, NamedResources, Span
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_testing.suite import Suite, requires
from agl_tracer_otel import OtelTracer

__all__ = ["EnvironmentSuite", "Load"]

Load = Callable[..., Environment]


class EnvironmentSuite(Suite):
    """Tests what a plugin of the kind ``environment`` returns for a name.

    The author supplies the fixtures ``load``, the function that the plugin's specification names,
    and ``name``, one of its environments; further ``options`` and ``resources`` where it needs
    them.
    """

    suite_name = "environment"
    FLAGS: ClassVar[dict[str, str]] = {
        "runs": "its agent acts on its tasks in this process, with the fixture `resources`",
    }

    @pytest.fixture
    def load(self) -> Load:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `load`")

    @pytest.fixture
    def name(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `name`")

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        return {}

    @pytest.fixture
    def resources(self) -> NamedResources:
        return {}

    def test_it_has_an_agent_and_tasks(self, load: Load, name: str, options: Mapping[str, Any]):
        environment = load(name, dict(options))
        assert isinstance(environment, Environment)
        assert isinstance(environment.agent, LitAgent)
        environment.agent.check_signature()
        assert tasks_of(environment), f"{name} has no tasks, so there is nothing to test"

    def test_tasks_can_be_read_again_and_stored(
        self, load: Load, name: str, options: Mapping[str, Any]
    ):
        environment = load(name, dict(options))
        first = tasks_of(environment)
        assert first
        assert tasks_of(environment) == first
        assert json.loads(json.dumps(first)) == first, "a store keeps tasks as JSON"

    def test_two_loads_have_equal_tasks_of_their_own(
        self, load: Load, name: str, options: Mapping[str, Any]
    ):
        given = dict(options)
        one, other = load(name, given), load(name, given)
        assert given == dict(options), "it changes the options that it was given"
        expected = copy.deepcopy(tasks_of(other))
        assert tasks_of(one) == expected
        for dataset in (one.train_dataset, one.val_dataset):
            if isinstance(dataset, list):
                dataset.clear()
        assert tasks_of(other) == expected, "two environments share their tasks"

    def test_a_name_that_is_unknown_is_refused_with_its_path(
        self, load: Load, options: Mapping[str, Any]
    ):
        with pytest.raises(ConfigError) as raised:
            load("no-environment-has-this-name", dict(options), path="place.agent")
        assert "place.agent" in str(raised.value)

    def test_an_option_that_is_unknown_is_refused_with_its_path(
        self, load: Load, name: str, options: Mapping[str, Any]
    ):
        with pytest.raises(ConfigError) as raised:
            load(name, {**options, "no_option_has_this_name": 1}, path="place.agent")
        assert "place.agent" in str(raised.value)
        assert "no_option_has_this_name" in str(raised.value)

    @requires("runs")
    async def test_its_agent_acts_on_its_tasks(
        self, load: Load, name: str, options: Mapping[str, Any], resources: NamedResources
    ):
        environment = load(name, dict(options))
        store = InMemoryLightningStore()
        runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer())
        spans: list[list[Span]] = []
        with runner.run_context(agent=environment.agent, store=store):
            for task in tasks_of(environment)[:2]:
                done = await asyncio.wait_for(runner.step(task, resources=resources), 60)
                assert done.status == "succeeded"
                spans.append(list(await store.query_spans(done.rollout_id)))
        rewards = [find_final_reward(trace) for trace in spans]
        assert rewards
        assert None not in rewards, "a finished task has no reward"


def tasks_of(environment: Environment) -> list[Any]:
    """Return all tasks of an environment, read as algorithms read them: by their number."""
    tasks: list[Any] = []
    for dataset in (environment.train_dataset, environment.val_dataset):
        if dataset is not None:
            assert isinstance(dataset, Dataset), "a dataset has a length and tasks by number"
            tasks += [dataset[index] for index in range(len(dataset))]
    return tasks
