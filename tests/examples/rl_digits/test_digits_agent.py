"""The agent of the example on a scripted model: its rewards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "rl_digits"))

import agl_core as agl
from agl_scripted import Reply, ScriptedModels, ToolCall
from digits import (  # pyright: ignore[reportMissingImports]
    client,
    make_tasks,
    train_tasks,
    val_tasks,
    visit,
)

SHELVES = "7391640258"


def reward_for(*replies: Reply, shelf: int = 3) -> tuple[float, ScriptedModels]:
    with ScriptedModels(list(replies), models=["m"]) as models:
        llm = agl.LLM(endpoint=models.base_url, model="m", sampling_parameters={"max_tokens": 9})
        reward = visit({"shelf": shelf, "shelves": SHELVES}, llm)
    return reward, models


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    client().close()


def look(shelf: object, name: str = "look") -> Reply:
    return Reply(tool_calls=[ToolCall(name, {"shelf": shelf})])


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ((look("3"), Reply("1")), 1.0),
        ((look("3"), Reply("7")), 0.5),
        ((look("0"), Reply("7")), 0.0),
        ((look("0"), Reply("1")), 0.5),  # a right guess without the right shelf
        ((look("33"), Reply("1")), 0.5),
        ((look(3), Reply("1")), 0.5),
        ((look("3", name="peek"), Reply("1")), 0.5),
        ((Reply("1"),), 0.0),
    ],
)
def test_the_reward_is_half_for_each_turn(replies: tuple[Reply, ...], reward: float):
    assert reward_for(*replies)[0] == reward


def test_the_tool_returns_the_digit_on_the_shelf():
    _, models = reward_for(look("0"), Reply("7"))
    first, second = (request.body["messages"] for request in models.requests)
    assert [message["content"] for message in first] == ["Shelf 3?"]
    assert second[-1]["role"] == "tool"
    assert second[-1]["content"] == "7"
    assert models.requests[0].body["max_tokens"] == 9


def test_tasks_are_repeatable_and_cover_every_shelf():
    assert make_tasks(50, seed=4) == make_tasks(50, seed=4) != make_tasks(50, seed=5)
    assert {task["shelf"] for task in train_tasks()} == set(range(10))
    assert not [task for task in val_tasks() if task in train_tasks()]
