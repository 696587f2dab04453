"""A resumed evaluation measures what it began with, or says what differs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agl_algorithm_kit import Comparison, Evaluation, StoredRun
from agl_core.algorithm import RolloutOutcome
from agl_core.errors import ConfigError
from agl_core.types import LLM, NamedResources, PromptTemplate
from agl_store_memory import InMemoryLightningStore


def prompt(text: str) -> NamedResources:
    return {"prompt": PromptTemplate(template=text, engine="f-string")}


def behind(port: int) -> NamedResources:
    return {"llm": LLM(endpoint=f"http://127.0.0.1:{port}", model="m", api_key=str(port))}


async def session(
    store: InMemoryLightningStore, algorithm: Any, tasks: Sequence[Any], initial: Any = None
) -> Any:
    """Go on with the run ``score``; return its outcome."""
    algorithm.set_store(store)
    algorithm.set_initial_resources(initial)
    algorithm.set_run(await StoredRun.open(store, "score"))
    await algorithm.run(tasks)
    return algorithm.outcome


async def interrupted(
    store: InMemoryLightningStore, algorithm: Any, tasks: Sequence[Any], initial: Any = None
) -> None:
    """Begin the run ``score``; end one rollout of it, and stop."""
    going = asyncio.ensure_future(session(store, algorithm, tasks, initial))
    claimed = await store.dequeue_rollout("Worker-0", wait=10)
    assert claimed is not None
    await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    going.cancel()
    await asyncio.wait((going,))


async def going_on(
    store: InMemoryLightningStore, evaluation: Evaluation, tasks: Sequence[Any]
) -> tuple[asyncio.Future[Any], str]:
    """Begin the run ``score`` with a budget for one rollout, while a second one runs.

    Returns:
        The evaluation, whose other rollouts are cancelled, and the id of the second rollout.
    """
    going = asyncio.ensure_future(session(store, evaluation, tasks))
    first = await store.dequeue_rollout("Worker-0", wait=10)
    second = await store.dequeue_rollout("Worker-1", wait=10)
    assert first is not None
    assert second is not None
    await store.update_attempt(first.rollout_id, "latest", status="succeeded")
    while (await store.query_rollouts(status_in=["queuing"], limit=0)).total:
        await asyncio.sleep(0.01)
    return going, second.rollout_id


@asynccontextmanager
async def working(store: InMemoryLightningStore) -> AsyncIterator[None]:
    async def work() -> None:
        while True:
            claimed = await store.dequeue_rollout("Worker-0", wait=10)
            if claimed is not None:
                await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.mark.parametrize("given", [True, False])
async def test_an_edited_prompt_is_not_mixed_with_the_one_before(given: bool):
    store = InMemoryLightningStore()

    async def again(text: str, begin: bool = False) -> Any:
        made = Evaluation(resources=prompt(text) if given else None)
        initial = None if given else prompt(text)
        return await (interrupted if begin else session)(store, made, [1, 2, 3], initial)

    await again("one {q}", begin=True)
    with pytest.raises(ConfigError, match="began with the resources score/eval-resources, which "):
        await again("two {q}")
    kept = await store.get_resources_by_id("score/eval-resources")
    assert kept is not None
    assert kept.resources["prompt"] == prompt("one {q}")["prompt"]
    async with working(store):
        assert len(await again("one {q}")) == 3
    assert {one.resources_id for one in await store.query_rollouts()} == {"score/eval-resources"}


async def test_the_score_is_of_the_snapshot_that_the_rollouts_ran_with():
    store = InMemoryLightningStore()
    await store.update_resources("night/v1", prompt("one {q}"))
    await interrupted(store, Evaluation(), [1, 2])
    await store.update_resources("night/v2", prompt("two {q}"))
    with pytest.raises(ConfigError, match="began with the resources night/v1, which differ in pro"):
        await session(store, Evaluation(), [1, 2])
    async with working(store):
        outcome = await session(store, Evaluation(resources="night/v1"), [1, 2])
    assert outcome.resources_id == "night/v1"


@pytest.mark.parametrize(
    ("mode", "tasks", "message"),
    [
        ("test", [1, 9], "enqueued another task as number 1 of the batch 'eval'"),
        ("val", [1, 2], "enqueued the batch 'eval' in the mode 'test', not 'val'"),
    ],
)
async def test_other_tasks_are_not_scored_as_those_of_before(
    mode: Any, tasks: list[int], message: str
):
    store = InMemoryLightningStore()
    await interrupted(store, Evaluation(resources=prompt("{q}")), [1, 2])
    with pytest.raises(ConfigError, match=message):
        await session(store, Evaluation(resources=prompt("{q}"), mode=mode), tasks)
    assert (await store.query_rollouts()).total == 2


async def test_a_model_that_is_served_on_another_port_is_the_same():
    store = InMemoryLightningStore()
    await interrupted(store, Evaluation(resources=behind(1)), [1, 2])
    async with working(store):
        assert len(await session(store, Evaluation(resources=behind(2)), [1, 2])) == 2
    moved = await store.get_resources_by_id("score/eval-resources")
    assert moved is not None
    assert moved.resources["llm"] == behind(2)["llm"]


async def test_a_budget_that_is_spent_stays_spent():
    store = InMemoryLightningStore()
    counted: list[Any] = []

    def is_enough(found: Sequence[RolloutOutcome]) -> bool:
        counted.extend(one.rollout.input for one in found)
        return len(counted) == 1

    evaluation = Evaluation(resources=prompt("{q}"), is_enough=is_enough)
    going, running = await going_on(store, evaluation, [1, 2, 3])
    await store.update_attempt(running, "latest", status="succeeded")
    outcome = await going
    assert counted == [1, 2]
    assert outcome.statuses() == {"succeeded": 2}


async def test_what_the_end_of_a_budget_cancelled_runs_when_the_evaluation_is_resumed():
    store = InMemoryLightningStore()
    spent = Evaluation(resources=prompt("{q}"), is_enough=lambda found: True)
    going, running = await going_on(store, spent, [1, 2, 3, 4])
    going.cancel()
    await asyncio.wait((going,))
    await store.update_attempt(running, "latest", status="failed")
    async with working(store):
        outcome = await session(store, Evaluation(resources=prompt("{q}")), [1, 2, 3, 4])
    assert [one.rollout.status for one in outcome] == [
        "succeeded",
        "failed",
        "succeeded",
        "succeeded",
    ]
    assert (await store.query_rollouts()).total == 4


async def test_a_resumed_comparison_has_the_same_two_prompts():
    store = InMemoryLightningStore()
    before, after = prompt("before {q}"), prompt("after {q}")
    await interrupted(store, Comparison(before, after), [1, 2])
    with pytest.raises(ConfigError, match="score/eval-after, which differ in prompt; go on with"):
        await session(store, Comparison(before, prompt("edited {q}")), [1, 2])
    async with working(store):
        outcome = await session(store, Comparison(before, after), [1, 2])
    assert [len(outcome.before), len(outcome.after)] == [2, 2]


async def test_tasks_without_a_json_form_are_not_compared():
    class Task:
        """Differs from its copy in its address only."""

    store = InMemoryLightningStore()
    await interrupted(store, Evaluation(resources=prompt("{q}")), [Task(), Task()])
    async with working(store):
        resumed = Evaluation(resources=prompt("{q}"))
        assert len(await session(store, resumed, [Task(), Task()])) == 2
