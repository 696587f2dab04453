"""The agent with a real OpenAI client, a real server and real spans."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import agl_core as agl
from agent import SEED_PROMPT, book_room, list_rooms, seed_resources
from endpoint import llm_proxy
from simulated_model import MODEL_NAME, run_in_background
from simulated_model.rules import RULES
from solver import grade
from tasks import generate

TASKS = generate(40, seed=21)
FULL_PROMPT = "\n".join([SEED_PROMPT, *(rule.advice[0] for rule in RULES)])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_in_background(slip=0.0) as url:
        yield url


@pytest.fixture(autouse=True)
def endpoint(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("OPENAI_MODEL", MODEL_NAME)


def make_trainer() -> agl.Trainer:
    return agl.Trainer(strategy="shm", n_runners=4, adapter="messages", llm_proxy=llm_proxy())


def prompt(text: str) -> agl.NamedResources:
    return {"prompt": agl.PromptTemplate(template=text, engine="f-string")}


def test_rewards_follow_the_prompt():
    rows = [task.model_dump(mode="json") for task in TASKS]
    good = make_trainer().evaluate(book_room, rows, resources=prompt(FULL_PROMPT))
    poor = make_trainer().evaluate(book_room, rows, resources=seed_resources())
    assert good.rewards() == [1.0] * len(rows)
    assert 0 <= poor.score().mean < 0.4
    assert set(poor.rewards()) == {0.0, 1.0}
    assert good.statuses() == {"succeeded": len(rows)}


def test_a_trace_holds_the_conversation_the_feedback_and_the_reward():
    trainer = make_trainer()
    task = TASKS[0]
    outcome = trainer.evaluate(
        book_room, [task.model_dump(mode="json")], resources=prompt(SEED_PROMPT)
    )[0]
    assert trainer.adapter is not None
    conversations = trainer.adapter.adapt(outcome.spans)
    assert len(conversations) == 2  # one model call asks for the tool, one answers
    last = conversations[-1]
    assert [message["role"] for message in last["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    system, user, call, result, answer = last["messages"]
    assert f"{task.today:%A}, {task.today}" in system["content"]
    assert user["content"] == task.request
    assert call["tool_calls"][0]["function"]["name"] == "list_rooms"
    assert json.loads(result["content"])["date"] == task.needs.day.isoformat()
    assert last["tools"][0]["function"]["name"] == "list_rooms"

    reward, feedback = grade(task, answer["content"])
    assert outcome.reward == reward
    messages = [agl.get_message_value(span) for span in outcome.spans]
    assert [message for message in messages if message is not None] == [feedback]


def test_a_prompt_without_the_placeholder_scores_lower():
    """The placeholder holds today's date; without it "tomorrow" is a guess."""
    rows = [
        task.model_dump(mode="json")
        for task in generate(200, seed=22)
        if "tomorrow" in task.request or "today" in task.request
    ]
    without = FULL_PROMPT.replace("{today}", "a fine day")
    score = make_trainer().evaluate(book_room, rows, resources=prompt(without)).score()
    assert score.mean < 0.7


@pytest.mark.parametrize("arguments", ["", "[]", '{"day": "2026-01-01"}', "{oops"])
def test_a_wrong_tool_call_returns_an_error_to_the_model(arguments: str):
    assert json.loads(list_rooms(TASKS[0], arguments)) == {
        "error": "list_rooms takes one argument, date: YYYY-MM-DD"
    }


def test_the_tool_lists_bookings_of_the_day_only():
    task = TASKS[0]
    listed = json.loads(list_rooms(task, json.dumps({"date": task.needs.day.isoformat()})))
    booked = sum(len(room["booked"]) for room in listed["rooms"])
    assert booked == sum(taken.day == task.needs.day for taken in task.bookings)
    assert 0 < booked < len(task.bookings)
