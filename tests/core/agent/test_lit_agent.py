from __future__ import annotations

import copy
from typing import Any

import cloudpickle
import pytest

from agl_core.agent import LitAgent
from agl_core.errors import AgentSignatureError
from agl_core.types import Rollout

ROLLOUT = Rollout(rollout_id="ro-1", input={}, start_time=1.0)


class Sync(LitAgent[Any]):
    def rollout(self, task: Any, resources: Any, rollout: Rollout) -> Any:
        return ("rollout", task)


class SyncTwo(Sync):
    def training_rollout(self, task: Any, resources: Any, rollout: Rollout) -> Any:
        return ("training", task)


class Async(LitAgent[Any]):
    async def rollout_async(self, task: Any, resources: Any, rollout: Rollout) -> Any:
        return ("async", task)


class OnlyAsyncValidation(Sync):
    async def validation_rollout_async(self, task: Any, resources: Any, rollout: Rollout) -> Any:
        return ("validation", task)


async def test_which_method_falls_back_to_which() -> None:
    assert Sync().training_rollout(1, {}, ROLLOUT) == ("rollout", 1)
    assert Sync().validation_rollout(1, {}, ROLLOUT) == ("rollout", 1)
    assert SyncTwo().training_rollout(1, {}, ROLLOUT) == ("training", 1)
    assert SyncTwo().validation_rollout(1, {}, ROLLOUT) == ("rollout", 1)
    assert await Async().training_rollout_async(1, {}, ROLLOUT) == ("async", 1)
    assert await Async().validation_rollout_async(1, {}, ROLLOUT) == ("async", 1)


async def test_the_base_methods_name_the_missing_override() -> None:
    with pytest.raises(NotImplementedError, match="Async does not define rollout"):
        Async().rollout(1, {}, ROLLOUT)
    with pytest.raises(NotImplementedError, match="Sync does not define rollout_async"):
        await Sync().rollout_async(1, {}, ROLLOUT)


def test_any_async_method_makes_it_async() -> None:
    assert [agent().is_async() for agent in (Sync, SyncTwo, Async, OnlyAsyncValidation)] == [
        False,
        False,
        True,
        True,
    ]


def test_good_signatures() -> None:
    class Loose(LitAgent[Any]):
        def rollout(self, *args: Any, **kwargs: Any) -> Any: ...

    class More(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Any, extra: int = 1) -> Any: ...

    for agent in (Sync(), SyncTwo(), Async(), OnlyAsyncValidation(), Loose(), More()):
        agent.check_signature()


def test_bad_signatures() -> None:
    class Nothing(LitAgent[Any]): ...

    class Short(LitAgent[Any]):
        def rollout(self, task: Any) -> Any: ...  # pyright: ignore

    class OtherNames(LitAgent[Any]):
        def training_rollout(self, task: Any, res: Any, ro: Any) -> Any: ...  # pyright: ignore

    class Misnamed(LitAgent[Any]):
        async def rollout(self, task: Any, resources: Any, rollout: Any) -> Any: ...  # pyright: ignore

    class ShortAsync(LitAgent[Any]):
        async def rollout_async(self, task: Any) -> Any: ...  # pyright: ignore

    for agent, message in (
        (Nothing(), r"Nothing overrides neither rollout nor rollout_async; define one"),
        (Short(), r"Short\.rollout\(task: .*takes \(self, task, resources, rollout\)"),
        (OtherNames(), r"OtherNames\.training_rollout\(.*argument: 'res'"),
        (Misnamed(), r"Misnamed\.rollout is async; name it rollout_async"),
        (ShortAsync(), r"ShortAsync\.rollout_async\("),
    ):
        with pytest.raises(AgentSignatureError, match=message):
            agent.check_signature()


class _Part:
    def __init__(self, tracer: object = None) -> None:
        self.tracer = tracer


def test_trainer_runner_and_tracer() -> None:
    agent: Any = Sync()
    for name in ("trainer", "runner", "tracer"):
        with pytest.raises(ValueError, match="Sync has no"):
            getattr(agent, name)
    trainer, runner = _Part("trainer's"), _Part("runner's")
    agent.set_trainer(trainer)
    assert agent.trainer is trainer
    assert agent.tracer == "trainer's"
    agent.set_runner(runner)
    assert agent.runner is runner
    assert agent.tracer == "runner's"
    agent.set_runner(_Part(None))
    assert agent.tracer == "trainer's", "a runner without a tracer"


def test_references_are_strong_and_are_not_pickled() -> None:
    agent: Any = Sync()
    agent.memory = [1, 2]
    agent.set_trainer(_Part())
    agent.set_runner(_Part())
    assert isinstance(agent.get_trainer(), _Part), "the agent holds the only reference"
    for travelled in (cloudpickle.loads(cloudpickle.dumps(agent)), copy.deepcopy(agent)):
        assert travelled.memory == [1, 2]
        with pytest.raises(ValueError, match="has no trainer"):
            travelled.get_trainer()
        with pytest.raises(ValueError, match="has no runner"):
            travelled.get_runner()
    assert isinstance(agent.get_runner(), _Part)


def test_trained_agents_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="trained_agents"):
        Sync(trained_agents="writer")


def test_a_subclass_need_not_call_init() -> None:
    class Own(Sync):
        def __init__(self) -> None:
            self.x = 1

    with pytest.raises(ValueError, match="Own has no runner"):
        Own().get_runner()
