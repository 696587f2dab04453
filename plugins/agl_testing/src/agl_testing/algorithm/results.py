"""What an algorithm leaves: the best prompt it tried, the caller's objects, and errors."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from agl_core.agent import LitAgent, rollout
from agl_core.algorithm import Algorithm
from agl_core.errors import StoreDataError
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import (
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    Resource,
    register_resource_type,
)
from agl_store_memory import InMemoryLightningStore
from agl_testing.algorithm.base import N_RUNNERS, AlgorithmTests, rollouts_of
from agl_testing.errors import causes
from agl_testing.suite import requires

__all__ = ["ResultTests"]

MakeTrainer = Callable[..., Trainer]


class PromptJudge:
    """An agent whose reward depends on its prompt alone, in a way that no algorithm can foresee.

    Args:
        reward: The reward of a number that is drawn from the prompt, from 0 to 1.
    """

    def __init__(self, reward: Callable[[float], float]) -> None:
        self.tried: dict[str, float] = {}
        self._reward = reward
        self._lock = threading.Lock()

    def value(self, prompt: PromptTemplate) -> float:
        text = prompt.model_dump_json()
        return self._reward(zlib.crc32(text.encode()) / 2**32)

    def agent(self) -> LitAgent[Any]:
        @rollout
        def judged(task: Any, prompt_template: PromptTemplate) -> float:
            value = self.value(prompt_template)
            with self._lock:
                self.tried[prompt_template.model_dump_json()] = value
            return value

        return judged


@register_resource_type
class Note(Resource):
    """A resource that no algorithm knows."""

    resource_type: Literal["agl-testing-note"] = "agl-testing-note"
    text: str


class Unreadable(list[Any]):
    """Tasks of which the last cannot be read."""

    def __getitem__(self, index: Any) -> Any:
        if index == len(self) - 1:
            raise OSError("the disk of the tasks is gone")
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


class Refusing(InMemoryLightningStore):
    """A store that takes no work.

    Args:
        error: What it raises.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def enqueue_rollout(self, *args: Any, **options: Any) -> Any:
        raise self.error

    async def enqueue_many_rollouts(self, *args: Any, **options: Any) -> Any:
        raise self.error


class ResultTests(AlgorithmTests):
    """The best is stored, nothing of the caller's changes, and errors arrive."""

    @requires("resources")
    @pytest.mark.parametrize("better", ["higher", "lower"])
    def test_the_best_prompt_that_was_tried_is_the_latest(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        train_dataset: Any,
        val_dataset: Any,
        better: str,
    ):
        claimed = "improves" in self.flags
        if not claimed and inspect.getattr_static(self, "agent") is not AlgorithmTests.agent:
            pytest.skip("the algorithm has an agent of its own; `improves` claims better prompts")
        # What is best in one run is worst in the other: no fixed choice is right in both.
        judge = PromptJudge((lambda x: x) if better == "higher" else (lambda x: 1 - x))
        trainer.fit(judge.agent(), train_dataset, val_dataset=val_dataset)
        if not claimed and len(judge.tried) < 2:
            pytest.skip("the run tried one prompt only; `improves` claims that it tries several")
        assert len(judge.tried) > 1, "it claims `improves` and tries one prompt: nothing is tested"
        latest = asyncio.run(algorithm_store.get_latest_resources())
        assert latest is not None
        stored = [one for one in latest.resources.values() if isinstance(one, PromptTemplate)]
        values = [judge.tried.get(prompt.model_dump_json()) for prompt in stored]
        assert max(judge.tried.values()) in values, (
            f"the latest prompt has {values}, those that were tried {sorted(judge.tried.values())}"
        )

    @requires("improves", "all_tasks")
    @pytest.mark.parametrize("fragile", ["the first", "the second"])
    def test_a_prompt_that_mostly_fails_is_not_the_best(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        train_dataset: Any,
        val_dataset: Any,
        fragile: str,
    ):
        tries: dict[str, int] = {}
        lock = threading.Lock()

        def is_fragile(prompt: str) -> bool:
            """Whether a prompt is one of every second that were tried."""
            return list(tries).index(prompt) % 2 == (fragile == "the second")

        @rollout
        def agent(task: Any, prompt_template: PromptTemplate) -> float:
            text = prompt_template.model_dump_json()
            with lock:
                tries[text] = tries.get(text, 0) + 1
                broken, fails = is_fragile(text), tries[text] % 4
            if broken and fails:
                raise RuntimeError("this prompt is fragile")
            return 1.0 if broken else 0.6

        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        assert len(tries) > 1, "it claims `improves` and tries one prompt: nothing is tested"
        latest = asyncio.run(algorithm_store.get_latest_resources())
        assert latest is not None
        prompts = [one for one in latest.resources.values() if isinstance(one, PromptTemplate)]
        stored = [prompt.model_dump_json() for prompt in prompts]
        assert not [text for text in stored if text in tries and is_fragile(text)], (
            "rollouts that failed do not count against their prompt"
        )

    def test_it_leaves_what_it_was_given_alone(
        self,
        make_trainer: MakeTrainer,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
        initial_resources: NamedResources,
    ):
        given = (initial_resources, train_dataset, val_dataset)
        before = copy.deepcopy(given)
        make_trainer(initial_resources=initial_resources).fit(
            agent, train_dataset, val_dataset=val_dataset
        )
        assert initial_resources == before[0], "it changes the caller's resources"
        assert list(map(str, train_dataset)) == list(map(str, before[1])), "it changes the tasks"
        assert list(map(str, val_dataset)) == list(map(str, before[2])), "it changes the tasks"

    @requires("resources")
    def test_resources_that_it_does_not_know_are_kept(
        self,
        make_trainer: MakeTrainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
        initial_resources: NamedResources,
    ):
        note = Note(text="of the agent")
        make_trainer(initial_resources={**initial_resources, "note": note}).fit(
            agent, train_dataset, val_dataset=val_dataset
        )
        latest = asyncio.run(algorithm_store.get_latest_resources())
        assert latest is not None
        assert latest.resources.get("note") == note, "the latest resources lack what agents need"

    def test_rollouts_of_others_are_left_alone(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        """A store may have work of another run, which this one's runners do as well."""
        request = EnqueueRolloutRequest(
            input=train_dataset[0], mode="test", metadata={"of": "another run"}
        )
        # More than the runners claim before the algorithm looks.
        others = asyncio.run(algorithm_store.enqueue_many_rollouts([request] * (2 * N_RUNNERS)))
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        for other in others:
            found = asyncio.run(algorithm_store.get_rollout_by_id(other.rollout_id))
            assert found is not None
            assert found.status != "cancelled", "it cancels work that is not its own"
            kept = (found.input, found.mode, found.metadata)
            assert kept == (request.input, "test", request.metadata)

    @requires("all_tasks")
    def test_equal_tasks_are_all_run(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        twice = [[*dataset, dataset[0]] for dataset in (train_dataset, val_dataset)]
        trainer.fit(agent, twice[0], val_dataset=twice[1])
        run = [one.input for one in rollouts_of(algorithm_store)]
        for first, second, *_ in twice:
            assert run.count(first) == 2 * run.count(second), "equal tasks count as one"

    @requires("all_tasks")
    @pytest.mark.parametrize("broken", ["train", "val"])
    def test_an_error_of_the_dataset_is_the_error_of_the_run(
        self,
        make_trainer: MakeTrainer,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
        broken: str,
    ):
        train, val = train_dataset, val_dataset
        if broken == "train":
            train = Unreadable(train)
        else:
            val = Unreadable(val)
        with pytest.raises(Exception, match=r".+") as raised:
            make_trainer().fit(agent, train, val_dataset=val)
        assert any("the disk of the tasks is gone" in str(error) for error in causes(raised.value))

    @requires("all_tasks")
    def test_every_task_is_run(
        self,
        trainer: Trainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)
        run = [one.input for one in rollouts_of(algorithm_store)]
        for dataset in (train_dataset, val_dataset):
            left = [task for task in (dataset[i] for i in range(len(dataset))) if task not in run]
            assert not left

    def test_an_error_of_the_store_is_the_error_of_the_run(
        self,
        make_trainer: MakeTrainer,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        store = Refusing(StoreDataError("the disk is full"))
        with pytest.raises(Exception, match=r".+") as raised:
            make_trainer(store=store).fit(agent, train_dataset, val_dataset=val_dataset)
        assert any("the disk is full" in str(error) for error in causes(raised.value)), (
            f"{raised.value!r} hides the error of the store"
        )

    def test_system_exit_ends_the_run(
        self,
        make_trainer: MakeTrainer,
        algorithm: Algorithm,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        """A handler of SIGTERM may call ``sys.exit`` wherever the algorithm is."""
        store: LightningStore = Refusing(SystemExit(3))
        with pytest.raises(SystemExit):
            make_trainer(store=store).fit(agent, train_dataset, val_dataset=val_dataset)
