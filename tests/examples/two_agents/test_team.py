"""The agent of the example on a scripted model: its calls and its rewards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "two_agents"))

import agl_core as agl
import team  # pyright: ignore[reportMissingImports]
from agl_core.emitter import get_rewards_from_span
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer
from team import (  # pyright: ignore[reportMissingImports]
    POLICIES,
    Team,
    client,
    make_tasks,
)

TASK = {"shelf": 3, "shelves": "7391640258"}


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    client().close()


async def rewards_for(
    *replies: str, rollouts: int = 1, **options: Any
) -> tuple[list[dict[str, float]], ScriptedModels]:
    """Return the rewards of each rollout of a team whose models answer with these texts."""
    store = InMemoryLightningStore()
    script = [Reply(text) for text in replies]
    with ScriptedModels(script, models=list(POLICIES)) as models:
        resources: agl.NamedResources = {
            name: agl.ProxyLLM(endpoint=models.base_url, model=name) for name in POLICIES
        }
        tracer, agents = OtelTracer(), Team(**options)
        found: list[dict[str, float]] = []
        with tracer.lifespan(store):
            for _ in range(rollouts):
                started = await store.start_rollout(input=TASK)
                attempt_id = started.attempt.attempt_id
                async with tracer.trace_context(
                    "team", rollout_id=started.rollout_id, attempt_id=attempt_id
                ):
                    agents.rollout(TASK, resources, started)
                spans = (await store.query_spans(started.rollout_id)).items
                (numbers,) = filter(None, map(get_rewards_from_span, spans))
                found.append({number.name: number.value for number in numbers})
    return found, models


@pytest.mark.parametrize(
    ("picked", "answer", "task", "picker", "reader"),
    [
        ("3", "1", 1, 1, 1),
        ("3", "7", 0, 1, 0),
        ("0", "7", 0, 0, 1),
        ("0", "1", 1, 0, 0),  # a right guess
        ("x", "?", 0, 0, 1),
    ],
)
async def test_rewards_are_shared_or_for_each_part(
    picked: str, answer: str, task: int, picker: int, reader: int
):
    (shared,), models = await rewards_for(picked, answer)
    assert shared == {"task": task, "picker": task, "reader": task}
    asked, read = (request.body for request in models.requests)
    assert (asked["model"], read["model"]) == POLICIES
    assert asked["messages"][0]["content"] == "Shelf 3?"
    found = TASK["shelves"][int(picked)] if picked.isdigit() else "?"  # type: ignore[index]
    assert read["messages"][0]["content"] == f"Found {found}."
    (own,), _ = await rewards_for(picked, answer, own=True)
    assert own == {"task": task, "picker": picker, "reader": reader}


async def test_a_shuffled_policy_gets_the_reward_of_an_earlier_rollout(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(team, "SHUFFLED_BY", 2)
    replies = ("3", "1", "3", "7", "3", "7", "3", "1")
    rewards, _ = await rewards_for(*replies, rollouts=4, shuffle="reader")
    assert [one["picker"] for one in rewards] == [1, 0, 0, 1]
    assert [one["reader"] for one in rewards] == [0, 0, 1, 0]


def test_tasks_are_repeatable_and_each_digit_lies_on_one_shelf():
    tasks = make_tasks(50, seed=4)
    assert tasks == make_tasks(50, seed=4) != make_tasks(50, seed=5)
    assert all(sorted(task["shelves"]) == list("0123456789") for task in tasks)
