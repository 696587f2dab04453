"""Every change of what an agent asks is found, and its place named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from agl_core.agent import LitAgent
from agl_core.genai import Protocol
from agl_core.types import NamedResources, Rollout
from agl_replay import NotReplayableError, RecordedCall, Recording, read_recording, replay
from agl_replay.differences import differences
from agl_replay.session import ReplaySession
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore

from .replay_agents import WeatherAgent, weather_script

Record = Callable[..., Awaitable[Rollout]]

CHANGES: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "prompt": ({"question": "And the weather in {}?"}, 1, ["messages[0].parts[0].content"]),
    "tool result": ({"weather": {"Paris": "sunny!"}}, 2, ["messages[2].parts[0].response"]),
    "added parameter": ({"temperature": 0.5}, 1, ["parameters.temperature"]),
    "model": ({"model": "other"}, 1, ["model"]),
    "stream": ({"stream": True}, 1, ["stream"]),
    "tools": ({"tools": []}, 1, ["tools[0]"]),
    "protocol": ({"protocol": "responses"}, 1, ["protocol"]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("proxied", [True, False], ids=["proxy", "tracer"])
async def test_a_changed_call_stops_the_replay(
    record: Record, store: InMemoryLightningStore, change: str, proxied: bool
):
    rollout = await record(WeatherAgent(), weather_script, proxied=proxied)
    options, number, places = CHANGES[change]

    result = await replay(WeatherAgent(**options), rollout.rollout_id, store)

    assert result.divergence is not None
    assert result.divergence.number == number
    assert [one.place for one in result.divergence.differences] == places
    assert (result.answered, result.same) == (number - 1, False)
    assert type(result.error).__name__ == "BadRequestError"
    assert places[0] in str(result.error)


async def test_a_diff_shows_what_was_asked_then_and_now(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(WeatherAgent(question="one\nWeather in {}?\nend"), weather_script)
    agent = WeatherAgent(question="one\nRain in {}?\nend")

    result = await replay(agent, rollout.rollout_id, store)

    assert str(result.divergence).splitlines() == [
        "call 1 differs from the recorded one:",
        "messages[0].parts[0].content:",
        "  @@ -1,3 +1,3 @@",
        "   one",
        "  -Weather in Paris?",
        "  +Rain in Paris?",
        "   end",
    ]


async def test_a_swallowed_divergence_is_reported(record: Record, store: InMemoryLightningStore):
    class Careless(WeatherAgent):
        def rollout(self, task: str, resources: NamedResources, rollout: Any) -> float:
            try:
                return super().rollout(task, resources, rollout)
            except Exception:
                return 1.0

    rollout = await record(WeatherAgent(), weather_script)
    result = await replay(Careless(question="{}"), rollout.rollout_id, store)
    assert (result.error, result.reward, result.same) == (None, 1.0, False)
    assert result.divergence is not None


class Asker(LitAgent[Any]):
    """Asks some questions, one after another or all at once."""

    def __init__(self, questions: list[str], *, parallel: bool = False, reward: float = 1.0):
        super().__init__()
        self.questions = questions
        self.parallel = parallel
        self.reward = reward

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(base_url=url, api_key=llm.api_key or "none") as client:

            async def ask(question: str) -> None:
                message: Any = {"role": "user", "content": question}
                done = await client.chat.completions.create(model=llm.model, messages=[message])
                assert done.choices[0].message.content == f"<{question}>"

            if self.parallel:
                await asyncio.gather(*map(ask, self.questions))
            else:
                for question in self.questions:
                    await ask(question)
        return self.reward


def echo(seen: SeenRequest) -> Reply:
    question = seen.body["messages"][-1]["content"]
    return Reply(f"<{question}>", delay=0.05 if question != "late" else 0.1)


async def test_an_agent_that_asks_less_differs(record: Record, store: InMemoryLightningStore):
    rollout = await record(Asker(["a", "b", "c"]), echo)
    result = await replay(Asker(["a"]), rollout.rollout_id, store)
    assert [call.number for call in result.unasked] == [2, 3]
    assert (result.divergence, result.same) == (None, False)


async def test_an_agent_that_asks_more_differs(record: Record, store: InMemoryLightningStore):
    rollout = await record(Asker(["a"]), echo)
    result = await replay(Asker(["a", "b"]), rollout.rollout_id, store)
    assert str(result.divergence) == "call 2: the recording has no further call"


async def test_another_reward_differs(record: Record, store: InMemoryLightningStore):
    rollout = await record(Asker(["a"]), echo)
    result = await replay(Asker(["a"], reward=0.0), rollout.rollout_id, store)
    assert (result.divergence, result.error, result.same) == (None, None, False)
    assert [line[0] for line in result.differing_spans] == ["-", "+"]


async def test_calls_in_a_row_are_answered_in_their_order(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(Asker(["a", "b"]), echo)
    result = await replay(Asker(["b", "a"]), rollout.rollout_id, store)
    assert result.divergence is not None
    assert result.answered == 0


async def test_calls_at_once_are_answered_in_any_order(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(Asker(["late", "b", "c"], parallel=True), echo)
    for questions in (["c", "late", "b"], ["b", "c", "late"]):
        result = await replay(Asker(questions, parallel=True), rollout.rollout_id, store)
        assert (result.divergence, result.error, result.same) == (None, None, True)


def without_comparison(recording: Recording) -> ReplaySession:
    return ReplaySession(recording.calls, recording.operations, compare=False)


def ask(session: ReplaySession, question: str, protocol: Protocol = "chat") -> str:
    """Return the recorded question whose answer a question gets."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    found = session.take(protocol, body)
    assert isinstance(found, RecordedCall)
    return found.request["messages"][0]["parts"][0]["content"]


async def test_calls_at_once_get_their_own_answers_without_a_comparison(
    record: Record, store: InMemoryLightningStore
):
    questions = ["Rain in late", "Rain in Rome", "Rain in Oslo"]
    rollout = await record(Asker(questions, parallel=True), echo)
    recording = await read_recording(store, rollout.rollout_id)
    assert all(recording.calls[0].overlaps(one) for one in recording.calls[1:])

    session = without_comparison(recording)
    assert [ask(session, one) for one in reversed(questions)] == questions[::-1]

    session = without_comparison(recording)
    changed = [f"Say whether it snows in {city}" for city in ("Oslo", "late", "Rome")]
    assert [ask(session, one) for one in changed] == [questions[2], questions[0], questions[1]]

    session = without_comparison(recording)
    assert [ask(session, "?") for _ in questions] == [
        one.request["messages"][0]["parts"][0]["content"] for one in recording.calls
    ]
    assert session.take("responses", {"model": "m", "input": "?"}) == "stop"


async def test_calls_in_a_row_are_answered_by_place_without_a_comparison(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(Asker(["a", "b"]), echo)
    session = without_comparison(await read_recording(store, rollout.rollout_id))
    assert [ask(session, one) for one in ("b", "a")] == ["a", "b"]


async def test_a_replay_stops_after_the_wanted_calls(record: Record, store: InMemoryLightningStore):
    rollout = await record(Asker(["a", "b", "c"]), echo)
    result = await replay(Asker(["a", "b", "x"]), rollout.rollout_id, store, until=2)
    assert (result.answered, result.stopped, result.divergence) == (2, True, None)
    assert "the replay stops here, after call 2" in str(result.error)


async def test_a_replay_goes_live_where_it_differs(record: Record, store: InMemoryLightningStore):
    rollout = await record(Asker(["a", "b", "c"]), echo)
    with ScriptedModels(echo) as models:
        entry = {"model": "hosted_vllm/m", "api_base": models.base_url}
        result = await replay(
            Asker(["a", "x", "c"]),
            rollout.rollout_id,
            store,
            on_divergence="live",
            model_list=[{"model_name": "m", "litellm_params": entry}],
        )
        asked = [seen.body["messages"][-1]["content"] for seen in models.requests]
    assert asked == ["x", "c"]
    assert (result.error, result.answered, result.live) == (None, 1, 2)
    assert result.divergence is not None
    assert result.divergence.number == 2


async def test_live_calls_go_to_the_recorded_models_by_default(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(Asker(["a"]), echo, proxied=False)
    result = await replay(Asker(["b"]), rollout.rollout_id, store, on_divergence="live")
    assert (result.live > 0, type(result.error).__name__) == (True, "InternalServerError")
    assert "refuses connections" in str(result.error)  # the recorded server is gone


async def test_a_rollout_without_calls_cannot_be_replayed(
    record: Record, store: InMemoryLightningStore
):
    rollout = await record(Asker([]), echo)
    with pytest.raises(NotReplayableError, match="it made no model call"):
        await replay(Asker([]), rollout.rollout_id, store)


class Stubborn(LitAgent[Any]):
    """Calls a server that fails first; the client tries again."""

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        with OpenAI(base_url=url, api_key=llm.api_key or "none") as client:
            done = client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": "Hi"}]
            )
        return float(done.choices[0].message.content == "fine")


@pytest.mark.parametrize("proxied", [True, False], ids=["proxy", "tracer"])
async def test_errors_are_replayed(record: Record, store: InMemoryLightningStore, proxied: bool):
    failing = Reply(error_status=429, error_message="slow down", headers={"retry-after-ms": "1"})
    rollout = await record(Stubborn(), [failing, Reply("fine")], proxied=proxied)
    assert rollout.status == "succeeded"
    result = await replay(Stubborn(), rollout.rollout_id, store)
    assert (result.error, result.divergence, result.reward) == (None, None, 1.0)
    assert list(result.differing_spans) == []


async def test_a_failed_agent_fails_again(record: Record, store: InMemoryLightningStore):
    failing = Reply(error_status=400, error_message="the context is too long")
    with pytest.raises(Exception, match="too long"):
        await record(Stubborn(), [failing])
    (rollout,) = await store.query_rollouts()
    result = await replay(Stubborn(), rollout.rollout_id, store)
    assert "the context is too long" in str(result.error)
    assert result.same


def test_numbers_of_equal_value_are_equal():
    assert list(differences({"a": 1, "b": [1.0]}, {"a": 1.0, "b": [1]})) == []


def test_a_difference_of_long_text_shows_its_place():
    (found,) = differences({"a": "x" * 500 + "1"}, {"a": "x" * 500 + "2"})
    _, then, now = found.lines()
    assert then.startswith("  - …")
    assert (then[-2:], now[-2:]) == ('1"', '2"')
    assert len(then) < 200
