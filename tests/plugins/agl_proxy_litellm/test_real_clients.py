"""Official clients and frameworks; only their base URL is changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from agl_core.types import AttemptedRollout, Span
from agl_scripted import Reply, ScriptedModels, ToolCall, tokenize

TEXT = "The room is booked"
CALL = ToolCall("book", {"room": 4}, "call_1")
MESSAGES: Any = [{"role": "user", "content": "book room 4"}]
PARAMETERS: Any = {
    "type": "object",
    "properties": {"room": {"type": "integer"}},
    "required": ["room"],
}


def booking(seen: Any) -> Reply:
    """Request the tool first; after its result, confirm the booking."""
    asked = json.dumps(seen.body)
    return Reply(TEXT) if "done: 4" in asked else Reply(tool_calls=[CALL])


@pytest.fixture(params=["direct", "litellm"])
async def url(
    request: pytest.FixtureRequest,
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
) -> str:
    models.script = [Reply(TEXT)]
    proxy = await serve(backend(models), kind=request.param)
    return proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint


@pytest.fixture
def anthropic_url(url: str) -> str:
    """Return the URL without the version, which Anthropic's clients add."""
    return url.removesuffix("/v1")


@pytest.fixture
def recorded(spans: Any) -> Callable[..., Any]:
    """Check that all calls were recorded with the model's token ids."""

    async def check(*said: Reply, protocol: str) -> list[Span]:
        found = await spans()
        assert [span.status.status_code for span in found] == ["OK"] * len(said)
        for span, reply in zip(found, said, strict=True):
            assert span.attributes["agl.proxy.protocol"] == protocol
            assert span.attributes["response_token_ids"] == [t.id for t in reply.tokens]
            assert span.attributes["prompt_token_ids"]
            content = json.loads(span.attributes["logprobs.content"])
            assert [e["logprob"] for e in content] == [t.logprob for t in reply.tokens]
        return found

    return check


# -- official SDKs ---------------------------------------------------------------------------------


async def test_openai_chat(url: str, recorded: Any):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        made = await client.chat.completions.create(model="q", messages=MESSAGES)
        assert made.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(model="q", messages=MESSAGES, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == TEXT
    assert len([piece for piece in pieces if piece]) == len(tokenize(TEXT))

    def in_a_thread() -> None:
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            made = client.chat.completions.create(model="q", messages=MESSAGES)
            assert made.choices[0].message.content == TEXT
            stream = client.chat.completions.create(model="q", messages=MESSAGES, stream=True)
            assert "".join(c.choices[0].delta.content or "" for c in stream) == TEXT

    await asyncio.to_thread(in_a_thread)
    await recorded(*[Reply(TEXT)] * 4, protocol="chat")


async def test_openai_responses(url: str, recorded: Any):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert (await client.responses.create(model="q", input="book")).output_text == TEXT
        async with client.responses.stream(model="q", input="book") as stream:
            kinds = [event.type async for event in stream]
            assert (await stream.get_final_response()).output_text == TEXT
    assert kinds.count("response.output_text.delta") == len(tokenize(TEXT))

    def in_a_thread() -> None:
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            assert client.responses.create(model="q", input="book").output_text == TEXT
            with client.responses.stream(model="q", input="book") as stream:
                assert stream.get_final_response().output_text == TEXT

    await asyncio.to_thread(in_a_thread)
    await recorded(*[Reply(TEXT)] * 4, protocol="responses")


async def test_openai_completions(url: str, recorded: Any):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        made = await client.completions.create(model="q", prompt="once upon")
        assert made.choices[0].text == TEXT
        stream = await client.completions.create(model="q", prompt="once upon", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT
    await recorded(Reply(TEXT), Reply(TEXT), protocol="completions")


async def test_anthropic_messages(anthropic_url: str, recorded: Any):
    asked: Any = {"model": "q", "max_tokens": 99, "messages": MESSAGES}
    async with AsyncAnthropic(base_url=anthropic_url, api_key="none", max_retries=0) as client:
        made: Any = await client.messages.create(**asked)
        assert made.content[0].text == TEXT
        async with client.messages.stream(**asked) as stream:
            pieces = [piece async for piece in stream.text_stream]
    assert "".join(pieces) == TEXT
    assert len(pieces) == len(tokenize(TEXT))

    def in_a_thread() -> None:
        with Anthropic(base_url=anthropic_url, api_key="none", max_retries=0) as client:
            made: Any = client.messages.create(**asked)
            assert made.content[0].text == TEXT
            with client.messages.stream(**asked) as stream:
                assert "".join(stream.text_stream) == TEXT

    await asyncio.to_thread(in_a_thread)
    await recorded(*[Reply(TEXT)] * 4, protocol="messages")


# -- LangChain -------------------------------------------------------------------------------------


async def check_langchain(made: Any) -> None:
    from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def book(room: int) -> str:
        """Book a room."""
        return f"done: {room}"

    agent = made.bind_tools([book])
    history: list[Any] = [HumanMessage("book room 4")]
    called = await agent.ainvoke(history)
    assert [(c["name"], c["args"]) for c in called.tool_calls] == [("book", {"room": 4})]
    answer = ToolMessage(book.invoke(called.tool_calls[0]["args"]), tool_call_id="call_1")
    history += [called, answer]
    whole: AIMessageChunk | None = None
    async for piece in agent.astream(history):
        whole = piece if whole is None else whole + piece
    assert whole is not None and whole.text == TEXT
    assert (await asyncio.to_thread(agent.invoke, history)).text == TEXT
    pieces = await asyncio.to_thread(lambda: [piece.text for piece in agent.stream(history)])
    assert "".join(pieces) == TEXT


CALLS = [Reply(tool_calls=[CALL]), Reply(TEXT), Reply(TEXT), Reply(TEXT)]


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
async def test_langchain_openai(url: str, models: ScriptedModels, recorded: Any, responses: bool):
    from langchain_openai import ChatOpenAI

    models.script = booking
    made: Any = ChatOpenAI(
        model="q",
        base_url=url,
        api_key="none",  # pyright: ignore[reportArgumentType]
        max_retries=0,
        use_responses_api=responses,
    )
    await check_langchain(made)
    await recorded(*CALLS, protocol="responses" if responses else "chat")


async def test_langchain_anthropic(anthropic_url: str, models: ScriptedModels, recorded: Any):
    from langchain_anthropic import ChatAnthropic

    models.script = booking
    made: Any = ChatAnthropic(
        model_name="q",
        base_url=anthropic_url,
        api_key="none",  # pyright: ignore[reportArgumentType]
        max_retries=0,
        timeout=30,
        stop=None,
        max_tokens_to_sample=99,
    )
    await check_langchain(made)
    await recorded(*CALLS, protocol="messages")


# -- OpenAI's Agents SDK ---------------------------------------------------------------------------


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_agents_sdk(
    url: str, models: ScriptedModels, recorded: Any, responses: bool, stream: bool
):
    import agents

    @agents.function_tool
    def book(room: int) -> str:
        """Book a room."""
        return f"done: {room}"

    models.script = booking
    kind: Any = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        agent = agents.Agent(
            name="booker",
            instructions="Book rooms.",
            model=kind(model="q", openai_client=client),
            tools=[book],
        )
        config = agents.RunConfig(tracing_disabled=True)
        if stream:
            result: Any = agents.Runner.run_streamed(agent, "book room 4", run_config=config)
            kinds = [event.type async for event in result.stream_events()]
            assert "raw_response_event" in kinds
        else:
            result = await agents.Runner.run(agent, "book room 4", run_config=config)
    assert result.final_output == TEXT
    protocol = "responses" if responses else "chat"
    first, second = await recorded(*CALLS[:2], protocol=protocol)
    assert json.loads(first.attributes["gen_ai.tool.definitions"])[0]["function"]["name"] == "book"
    said = json.loads(second.attributes["gen_ai.input.messages"])
    assert [message["role"] for message in said] == ["system", "user", "assistant", "tool"]
