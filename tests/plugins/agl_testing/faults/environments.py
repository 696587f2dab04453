"""Faults of environment plugins: what their function `load` does wrong."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from agl_core.agent import Environment, LitAgent
from agl_core.errors import ConfigError

WORDS = {"english": ["cat", "house", "light", "stone"]}


class Speller(LitAgent):
    def rollout(self, task, resources, rollout):
        return float(task == task.lower())


class Load:
    """A good plugin: spells words of a language."""

    SUITE, FIXTURE, FLAGS = "EnvironmentSuite", "load", ("runs",)
    MORE = """
    @pytest.fixture
    def name(self):
        return "english"
"""
    CAUGHT_BY = ""

    def __call__(self, name: str, options: Any, *, path: str = "agent") -> Environment:
        unknown = sorted(set(options) - {"tasks"})
        if unknown:
            raise ConfigError(f"unknown option {unknown[0]!r}", path=f"{path}.{unknown[0]}")
        if name not in WORDS:
            raise ConfigError(f"there is no language {name!r}", path=path)
        tasks = list(WORDS[name][: options.get("tasks", 4)])
        return Environment(agent=self.agent(), train_dataset=self.tasks(tasks))

    def agent(self) -> Any:
        return Speller()

    def tasks(self, tasks: list[str]) -> Any:
        return tasks


GOOD = (Load,)


class HasNoTasks(Load):
    """There is nothing to do."""

    CAUGHT_BY = "test_it_has_an_agent_and_tasks"

    def tasks(self, tasks):
        return []


class HasNoDataset(Load):
    """Its datasets are None."""

    CAUGHT_BY = "test_it_has_an_agent_and_tasks"

    def tasks(self, tasks):
        return None


class SharesItsTasks(Load):
    """Two environments share one list of tasks."""

    CAUGHT_BY = "test_two_loads_have_equal_tasks_of_their_own"

    shared: ClassVar[list[str]] = list(WORDS["english"])

    def tasks(self, tasks):
        return self.shared


class ShufflesItsTasks(Load):
    """Each load has another order, so runs cannot be compared or resumed."""

    CAUGHT_BY = "test_two_loads_have_equal_tasks_of_their_own"

    def tasks(self, tasks):
        random.shuffle(tasks)
        return [*tasks, str(random.random())]


class GivesAnIterator(Load):
    """Its tasks can be read once."""

    CAUGHT_BY = "test_it_has_an_agent_and_tasks"

    def tasks(self, tasks):
        return iter(tasks)


class GivesObjects(Load):
    """Its tasks are objects, which no store can keep."""

    CAUGHT_BY = "test_two_loads_have_equal_tasks_of_their_own"

    def tasks(self, tasks):
        return [object() for _ in tasks]


class TakesAnyOption(Load):
    """An option that it does not know changes nothing."""

    CAUGHT_BY = "test_an_option_that_is_unknown_is_refused_with_its_path"

    def __call__(self, name, options, *, path="agent"):
        return super().__call__(name, {}, path=path)


class TakesAnyName(Load):
    """A name that it does not know gives the first environment."""

    CAUGHT_BY = "test_a_name_that_is_unknown_is_refused_with_its_path"

    def __call__(self, name, options, *, path="agent"):
        return super().__call__("english", options, path=path)


class TurnsErrorsIntoKeyErrors(Load):
    """A name that it does not know is a KeyError."""

    CAUGHT_BY = "test_a_name_that_is_unknown_is_refused_with_its_path"

    def __call__(self, name, options, *, path="agent"):
        _ = WORDS[name]
        return super().__call__(name, options, path=path)


class ForgetsThePath(Load):
    """An error does not say which key of the configuration it is about."""

    CAUGHT_BY = "test_a_name_that_is_unknown_is_refused_with_its_path"

    def __call__(self, name, options, *, path="agent"):
        try:
            return super().__call__(name, options, path=path)
        except ConfigError:
            raise ConfigError("it cannot be loaded") from None


class ItsAgentAlwaysFails(Load):
    """Its agent raises on its own tasks."""

    CAUGHT_BY = "test_its_agent_acts_on_its_tasks"

    def agent(self):
        class Broken(Speller):
            def rollout(self, task, resources, rollout):
                raise NotImplementedError(task)

        return Broken()


class ItsAgentGivesNoReward(Load):
    """Its agent finishes every task without a reward."""

    CAUGHT_BY = "test_its_agent_acts_on_its_tasks"

    def agent(self):
        class Silent(Speller):
            def rollout(self, task, resources, rollout):
                return None

        return Silent()


class ItsAgentIsAFunction(Load):
    """Its agent is not an agent at all, but a function."""

    CAUGHT_BY = "test_it_has_an_agent_and_tasks"

    def agent(self):
        return lambda task, resources, rollout: 1.0
