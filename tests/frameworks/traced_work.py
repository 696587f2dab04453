"""Calls of a client library for tests of tracers, and the spans of an attempt that makes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agl_core.tracer import Tracer
from agl_core.types import Span
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore

__all__ = [
    "HI",
    "STREAMS",
    "async_stream",
    "call_then_change_all",
    "client",
    "models",
    "spans_of",
    "stream_and_change_all",
    "sync",
]

HI: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    """A server that answers "Hello there." with token ids and log-probabilities."""
    always = {"return_token_ids": True, "logprobs": True}
    with ScriptedModels([Reply("Hello there.")], always=always) as models:
        yield models


@pytest.fixture
def client(models: ScriptedModels) -> Iterator[Any]:
    """An OpenAI client of :func:`models`."""
    import openai

    with openai.OpenAI(base_url=models.base_url, api_key="none", max_retries=0) as client:
        yield client


def sync(client: Any, models: ScriptedModels) -> None:
    client.chat.completions.create(model="m", messages=HI, temperature=0.5)


async def async_stream(client: Any, models: ScriptedModels) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=models.base_url, api_key="none") as client:
        chunks = await client.chat.completions.create(model="m", messages=HI, stream=True)
        assert [c.choices[0].delta.content async for c in chunks][1:3] == ["Hello", " there."]


def call_then_change_all(client: Any) -> None:
    """Change the request and the response after the call, as an agent may."""
    messages: list[Any] = [dict(message) for message in HI]
    answer = client.chat.completions.create(model="m", messages=messages)
    messages[0]["content"] = "Changed"
    messages.append({"role": "user", "content": "More"})
    answer.choices[0].message.content = "Changed"
    answer.choices[0].token_ids.clear()
    answer.choices[0].logprobs.content[0].logprob = 1.0


def stream_and_change_all(client: Any) -> None:
    """Change the chunks of a stream, as an agent may that hides parts of it."""
    for chunk in client.chat.completions.create(model="m", messages=HI, stream=True):
        for choice in chunk.choices:
            choice.delta.content = "Changed"
            choice.token_ids = None
            choice.logprobs = None


LOOK: Any = {"name": "look", "input_schema": {"type": "object"}}
ASKED: dict[str, Any] = {"model": "m", "messages": HI, "max_tokens": 9, "tools": [LOOK]}


def messages(models: ScriptedModels) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=models.url, api_key="none") as client:
        events = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert (events[0], events[-1]) == ("message_start", "message_stop")


def beta_messages(models: ScriptedModels) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=models.url, api_key="none") as client:
        assert list(client.beta.messages.create(**ASKED, stream=True))


def messages_helper(models: ScriptedModels) -> None:
    import anthropic

    with (
        anthropic.Anthropic(base_url=models.url, api_key="none") as client,
        client.messages.stream(**ASKED) as stream,
    ):
        (block,) = stream.get_final_message().content
    assert block.type == "tool_use" and block.name == "look"


async def async_messages_helper(models: ScriptedModels) -> None:
    import anthropic

    async with (
        anthropic.AsyncAnthropic(base_url=models.url, api_key="none") as client,
        client.messages.stream(**ASKED) as stream,
    ):
        assert [event.type async for event in stream][-1] == "message_stop"


def responses(models: ScriptedModels) -> None:
    import openai

    tool: Any = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    with openai.OpenAI(base_url=models.base_url, api_key="none") as client:
        assert list(client.responses.create(model="m", input="Hi", tools=[tool], stream=True))


STREAMS = [messages, beta_messages, messages_helper, async_messages_helper, responses]
"""Readers of a stream with a call of the tool ``look``, in other protocols than chat."""


async def spans_of(tracer: Tracer, work: Callable[[], Any]) -> list[Span]:
    """Run work as an attempt, and await its result if needed; return the spans."""
    store = InMemoryLightningStore()
    with tracer.lifespan(store):
        rollout = await store.start_rollout("task")
        attempt_id = rollout.attempt.attempt_id
        async with tracer.trace_context(
            "trial", rollout_id=rollout.rollout_id, attempt_id=attempt_id
        ):
            result = work()
            if inspect.isawaitable(result):
                await result
    return list(await store.query_spans(rollout.rollout_id))
