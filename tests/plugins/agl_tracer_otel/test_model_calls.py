"""Calls of the real OpenAI and Anthropic clients, recorded by the default tracer."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_adapters import TracerTraceToTriplet, TraceToMessages
from agl_core import semconv
from agl_core.emitter import emit_message
from agl_core.tracer import set_active_tracer
from agl_core.types import Span
from agl_scripted import Reply, ScriptedModels, ToolCall
from agl_store_memory import InMemoryLightningStore
from agl_tracer_dummy import DummyTracer
from agl_tracer_otel import OtelTracer

HI: list[Any] = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, Any] = {"model": "m", "messages": HI, "max_tokens": 9}
INPUT: dict[str, Any] = {"model": "m", "input": "Hi", "max_output_tokens": 9}


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    """A server that answers "Hello there." with token ids and log-probabilities."""
    always = {"return_token_ids": True, "logprobs": True}
    with ScriptedModels([Reply("Hello there.")], always=always) as models:
        yield models


@pytest.fixture
def client(models: ScriptedModels) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=models.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(models: ScriptedModels) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=models.url, api_key="none", max_retries=0) as client:
        yield client


async def spans_of(work: Callable[[], Any], tracer: OtelTracer | None = None) -> list[Span]:
    """Run work as an attempt, and await its result if needed; return the spans."""
    store, tracer = InMemoryLightningStore(), tracer or OtelTracer()
    with tracer.lifespan(store):
        return await trace_with(tracer, store, work)


async def trace_with(
    tracer: OtelTracer, store: InMemoryLightningStore, work: Callable[[], Any]
) -> list[Span]:
    rollout = await store.start_rollout("task")
    attempt_id = rollout.attempt.attempt_id
    async with tracer.trace_context(rollout_id=rollout.rollout_id, attempt_id=attempt_id):
        result = work()
        if isinstance(result, Awaitable):
            await result
    return list(await store.query_spans(rollout.rollout_id))


# -- every way to call ---------------------------------------------------------------------------


def chat(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    answer = client.chat.completions.create(**ASKED)
    assert type(answer).__name__ == "ChatCompletion"


def chat_stream(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    stream = client.chat.completions.create(**ASKED, stream=True)
    assert type(stream) is openai.Stream
    assert [chunk.choices[0].delta.content for chunk in stream][1:3] == ["Hello", " there."]


def chat_helper(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    beta = (
        client.chat.completions
        if hasattr(client.chat.completions, "stream")
        else client.beta.chat.completions
    )
    with beta.stream(**ASKED) as stream:
        assert "content.done" in [event.type for event in stream]


def chat_raw(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASKED)
    assert raw.status_code == 200 and raw.parse().id == "scripted-0"


def chat_raw_stream(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASKED, stream=True)
    assert len(list(raw.parse())) == 4


def chat_streaming_response(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with client.chat.completions.with_streaming_response.create(**ASKED) as response:
        assert json.loads("".join(response.iter_lines()))["id"] == "scripted-0"


async def async_chat(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as later:
        assert (await later.chat.completions.create(**ASKED)).id == "scripted-0"


async def async_chat_stream(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as later:
        stream = await later.chat.completions.create(**ASKED, stream=True)
        assert [c.choices[0].delta.content async for c in stream][1:3] == ["Hello", " there."]


async def azure_chat(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    azure: Any = openai.AsyncAzureOpenAI
    async with azure(base_url=client.base_url, api_key="none", api_version="2024-10-21") as later:
        assert (await later.chat.completions.create(**ASKED)).id == "scripted-0"


def responses(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    assert client.responses.create(**INPUT).output_text == "Hello there."


def responses_stream(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    events = [event.type for event in client.responses.create(**INPUT, stream=True)]
    assert events[-1] == "response.completed"


def responses_helper(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with client.responses.stream(**INPUT) as stream:
        assert stream.get_final_response().output_text == "Hello there."


async def async_responses_helper(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    async with (
        openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as later,
        later.responses.stream(**INPUT) as stream,
    ):
        assert [event.type async for event in stream][-1] == "response.completed"


def messages(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    assert claude.messages.create(**ASKED).stop_reason == "end_turn"


def beta_messages(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    assert claude.beta.messages.create(**ASKED).stop_reason == "end_turn"


def messages_stream(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    events = [event.type for event in claude.messages.create(**ASKED, stream=True)]
    assert (events[0], events[-1]) == ("message_start", "message_stop")


def messages_helper(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == "Hello there."


async def async_messages_helper(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=claude.base_url, api_key="none") as later,
        later.messages.stream(**ASKED) as stream,
    ):
        assert (await stream.get_final_message()).stop_reason == "end_turn"


CHAT = [chat, chat_stream, chat_helper, chat_raw, chat_raw_stream, chat_streaming_response]
CHAT += [async_chat, async_chat_stream, azure_chat]
RESPONSES = [responses, responses_stream, responses_helper, async_responses_helper]
MESSAGES = [messages, beta_messages, messages_stream, messages_helper, async_messages_helper]
NAMES = {
    **dict.fromkeys(CHAT, "openai.chat.completion"),
    **dict.fromkeys(RESPONSES, "openai.responses.create"),
    **dict.fromkeys(MESSAGES, "anthropic.messages.create"),
}


@pytest.mark.parametrize("call", NAMES)
async def test_a_call_is_recorded_once_and_every_adapter_reads_it(
    models: ScriptedModels, client: openai.OpenAI, claude: anthropic.Anthropic, call: Any
):
    (span,) = await spans_of(lambda: call(client, claude))
    assert len(models.requests) == 1
    assert (span.name, span.status.status_code) == (NAMES[call], "OK")
    found = span.attributes
    assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == "m"
    assert found["gen_ai.request.max_tokens"] == 9
    assert found["gen_ai.response.id"] == "scripted-0"
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found["gen_ai.request.stream"] is bool(models.requests[0].body.get("stream"))
    if ("stream" not in call.__name__ and "helper" not in call.__name__) or call not in CHAT:
        assert found["gen_ai.usage.output_tokens"] == 2  # chat streams count only on request

    (conversation,) = TraceToMessages().adapt([span])
    answer = {"role": "assistant", "content": "Hello there."}
    assert conversation["messages"] == [*HI, answer]
    (triplet,) = TracerTraceToTriplet().adapt([span])
    assert triplet.metadata["response_id"] == "scripted-0"
    assert triplet.metadata["request"]["max_tokens"] == 9
    if call in CHAT:
        ids = [token.id for token in Reply("Hello there.").tokens]
        assert triplet.response["token_ids"] == ids
        assert [entry["token"] for entry in triplet.response["logprobs"]] == ["Hello", " there."]
        (row,) = TraceToTrajectory().adapt([span])
        assert row.token_ids[row.prompt_length :] == ids
        assert row.certificate.logprobs_present


# -- what a span says ----------------------------------------------------------------------------

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
CALLED = {"name": "weather", "arguments": '{"city":"Oslo"}'}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": CALLED}],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "rain"},
]


def converse_in_chat(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    client.chat.completions.create(model="m", messages=CONVERSATION, tools=[tool])  # type: ignore[arg-type]


def converse_in_responses(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Oslo?"}]},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Look."}]},
        {"type": "function_call", "call_id": "call_0", **CALLED},
        {"type": "function_call_output", "call_id": "call_0", "output": "rain"},
    ]
    tool: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}
    client.responses.create(model="m", instructions="Be brief.", input=items, tools=[tool])


def converse_in_messages(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    used = {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "call_0"}
    turns: list[Any] = [
        {"role": "user", "content": "Oslo?"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Look.", "signature": "s"}, used],
        },
        {
            "role": "user",
            "content": [{**result, "content": [{"type": "text", "text": "rain"}]}],
        },
    ]
    tool: Any = {"name": "weather", "input_schema": WEATHER}
    claude.messages.create(
        model="m", max_tokens=9, system="Be brief.", messages=turns, tools=[tool]
    )


@pytest.mark.parametrize(
    "converse", [converse_in_chat, converse_in_responses, converse_in_messages]
)
async def test_a_conversation_with_tools_reads_the_same_in_every_protocol(
    models: ScriptedModels, client: openai.OpenAI, claude: anthropic.Anthropic, converse: Any
):
    models.script = [Reply("Wet.", tool_calls=[ToolCall("weather", {"city": "Bergen"}, id="c1")])]
    (span,) = await spans_of(lambda: converse(client, claude))
    (found,) = TraceToMessages().adapt([span])
    *sent, answer = found["messages"]
    assert sent == CONVERSATION
    assert answer["content"] == "Wet."
    (call,) = answer["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c1", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Bergen"}
    assert span.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    (tool,) = found["tools"] or []
    assert (tool["function"]["name"], tool["function"]["parameters"]) == ("weather", WEATHER)


async def test_later_changes_of_the_agent_do_not_reach_the_span(client: openai.OpenAI):
    asked: list[Any] = [dict(HI[0])]

    def agent() -> None:
        answer = client.chat.completions.create(model="m", messages=asked)
        asked[0]["content"] = "Changed"
        asked.append({"role": "user", "content": "More"})
        answer.choices[0].message.content = "Changed"
        for chunk in client.chat.completions.create(model="m", messages=HI, stream=True):
            for choice in chunk.choices:
                choice.delta.content = "Changed"

    for conversation in TraceToMessages().adapt(await spans_of(agent)):
        answer = {"role": "assistant", "content": "Hello there."}
        assert conversation["messages"] == [*HI, answer]


async def test_parameters_that_the_client_does_not_know_are_recorded_and_no_secret_is(
    client: openai.OpenAI,
):
    def agent() -> None:
        client.chat.completions.create(
            **ASKED, extra_body={"top_k": 5}, extra_headers={"Authorization": "Bearer hidden-key"}
        )

    (span,) = await spans_of(agent)
    assert span.attributes["gen_ai.request.top_k"] == 5
    assert "hidden-key" not in span.model_dump_json()


async def test_requests_are_the_same_with_and_without_the_tracer(
    models: ScriptedModels, client: openai.OpenAI, claude: anthropic.Anthropic
):
    def agent() -> None:
        for call in (chat, chat_stream, responses_stream, messages_helper):
            call(client, claude)

    models.script = lambda seen: Reply("Hello there.")
    agent()
    bare = [(seen.path, dict(seen.body)) for seen in models.requests]
    headers = [set(seen.headers) for seen in models.requests]
    models.requests.clear()
    await spans_of(agent)
    assert [(seen.path, dict(seen.body)) for seen in models.requests] == bare
    # Anthropic's client passes on the trace context, as it does under any tracer.
    assert [set(s.headers) - {"traceparent"} for s in models.requests] == headers


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [chat, chat_stream, responses, messages, messages_helper])
async def test_a_failed_call_is_an_error_span_with_its_messages(
    models: ScriptedModels, client: openai.OpenAI, claude: anthropic.Anthropic, call: Any
):
    models.script = [Reply(error_status=429, error_message="too many")]

    def agent() -> None:
        with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)):
            call(client, claude)

    (span,) = await spans_of(agent)
    assert span.status.status_code == "ERROR"
    assert "too many" in (span.status.description or "")
    assert span.attributes["error.type"] == "RateLimitError"
    assert span.events[0].name == "exception"
    (conversation,) = TraceToMessages().adapt([span])
    assert conversation["messages"] == HI


async def test_a_call_without_a_server_is_an_error_span():
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0) as client:

        def agent() -> None:
            with pytest.raises(openai.APIConnectionError):
                client.chat.completions.create(**ASKED)

        (span,) = await spans_of(agent)
    assert span.attributes["error.type"] == "APIConnectionError"
    assert "Hi" in str(span.attributes["gen_ai.input.messages"])


async def test_a_connection_lost_in_a_stream_is_an_error_span_with_what_arrived(
    models: ScriptedModels, client: openai.OpenAI
):
    models.script = [Reply("Hello there.", drop_after=2)]

    def agent() -> None:
        stream = client.chat.completions.create(**ASKED, stream=True)
        with pytest.raises(Exception, match=r"peer closed|incomplete|onnection"):
            list(stream)

    (span,) = await spans_of(agent)
    assert span.status.status_code == "ERROR"
    assert '"Hello"' in str(span.attributes["gen_ai.output.messages"])


@pytest.mark.parametrize("call", [chat_stream, responses_stream, messages_stream])
async def test_an_error_event_in_a_stream_is_an_error_span(
    models: ScriptedModels, client: openai.OpenAI, claude: anthropic.Anthropic, call: Any
):
    error = {"type": "error", "message": "overloaded", "error": {"message": "overloaded"}}
    models.script = [Reply(garbage=f"event: error\ndata: {json.dumps(error)}\n\n".encode())]

    def agent() -> None:
        with pytest.raises((openai.APIError, anthropic.APIError, AssertionError)):
            call(client, claude)

    (span,) = await spans_of(agent)
    assert (span.status.status_code, span.status.description) == ("ERROR", "overloaded")


async def test_a_body_that_is_not_json_leaves_the_span_and_the_agents_error(
    models: ScriptedModels, client: openai.OpenAI
):
    models.script = [Reply(garbage=b"{broken")]
    seen: list[Any] = []

    def agent() -> None:
        try:
            seen.append(client.chat.completions.create(**ASKED))
        except Exception as error:
            seen.append(error)

    (span,) = await spans_of(agent)
    assert len(seen) == 1
    assert "gen_ai.input.messages" in span.attributes
    assert "gen_ai.output.messages" not in span.attributes


# -- streams that are not read to their end ------------------------------------------------------


async def test_a_stream_that_is_closed_early_ends_its_span_at_once(
    models: ScriptedModels, client: openai.OpenAI
):
    models.script = [Reply("a b c d e f", chunk_delay=0.05)]
    store, tracer = InMemoryLightningStore(), OtelTracer()
    kept: list[Any] = []

    async def agent() -> None:
        with client.chat.completions.create(**ASKED, stream=True) as stream:
            kept.append(stream)
            next(stream)
            next(stream)
        await tracer.flush()
        ended = tracer.get_last_trace()
        assert [span.name for span in ended] == ["openai.chat.completion"]

    with tracer.lifespan(store):
        (span,) = await trace_with(tracer, store, agent)
    assert span.status.status_code == "OK"
    output = json.loads(str(span.attributes["gen_ai.output.messages"]))
    assert output[0]["parts"][0]["content"].startswith("a")
    assert "iter_bytes" not in vars(kept[0].response)


async def test_a_stream_that_is_never_read_is_recorded_when_the_trace_closes(
    models: ScriptedModels, client: openai.OpenAI
):
    kept: list[Any] = []

    def agent() -> None:
        kept.append(client.chat.completions.create(**ASKED, stream=True))
        client.chat.completions.create(**ASKED)

    later, first = await spans_of(agent)
    assert later.attributes["gen_ai.response.id"] == "scripted-1"
    assert "gen_ai.response.id" not in first.attributes
    # It ends when it was last read, so that later calls are not part of it.
    assert (first.end_time or 0) <= (later.end_time or 0)
    assert len(TraceToMessages().adapt([first, later])) == 2
    kept.pop().close()


async def test_a_dropped_stream_does_not_keep_its_response_alive(client: openai.OpenAI):
    def agent() -> None:
        for _ in client.chat.completions.create(**ASKED, stream=True):
            break
        gc.collect()

    (span,) = await spans_of(agent)
    assert span.status.status_code == "OK"


# -- which calls are recorded, and when ----------------------------------------------------------


async def test_calls_outside_of_traces_and_in_untraced_agents_are_not_recorded(
    client: openai.OpenAI, claude: anthropic.Anthropic
):
    store, tracer = InMemoryLightningStore(), OtelTracer()
    with tracer.lifespan(store):
        chat(client, claude)
        assert await trace_with(tracer, store, lambda: None) == []
    assert await spans_of(lambda: chat(client, claude), OtelTracer(model_calls=False)) == []


async def test_several_initialised_tracers_record_a_call_once(
    client: openai.OpenAI, claude: anthropic.Anthropic
):
    with OtelTracer().lifespan(), DummyTracer().lifespan():
        tracer = OtelTracer()
        tracer.init_worker(1)
        assert len(await spans_of(lambda: chat(client, claude), tracer)) == 1
        tracer.teardown_worker(1)


@pytest.mark.parametrize("kind", [OtelTracer, DummyTracer])
async def test_a_tracer_that_the_agent_activates_records_alone_until_it_ends(
    client: openai.OpenAI, claude: anthropic.Anthropic, kind: Any
):
    inner = kind()
    seen: list[str] = []

    async def agent() -> None:
        chat_stream(client, claude)
        with inner.lifespan():
            async with inner.trace_context():
                emit_message("within")
                client.chat.completions.create(**ASKED)
                seen.extend(span.name for span in inner.get_last_trace())
        client.chat.completions.create(**ASKED)

    names = [span.name for span in await spans_of(agent)]
    assert names == ["openai.chat.completion"] * 2
    own = ["openai.chat.completion"] if kind is OtelTracer else []
    assert seen == [semconv.SPAN_MESSAGE, *own]


async def test_another_tracer_cannot_replace_the_active_one_within_its_trace():
    async def agent() -> None:
        with pytest.raises(ValueError, match="OtelTracer is the active tracer"):
            set_active_tracer(DummyTracer())

    assert await spans_of(agent) == []


async def test_nothing_of_the_clients_is_patched_after_the_last_tracer():
    modules = [importlib.import_module(f"{name}._base_client") for name in ("openai", "anthropic")]
    owners = [getattr(m, kind) for m in modules for kind in ("SyncAPIClient", "AsyncAPIClient")]

    def methods() -> list[Any]:
        return [vars(owner)[name] for owner in owners for name in ("request", "_process_response")]

    before = methods()
    for _ in range(2):
        with OtelTracer().lifespan():
            with OtelTracer().lifespan():
                pass
            assert all(now is not old for now, old in zip(methods(), before, strict=True))
        assert methods() == before


async def test_a_client_that_cannot_be_recorded_is_reported_and_works(
    client: openai.OpenAI,
    claude: anthropic.Anthropic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    module = importlib.import_module("anthropic._base_client")
    monkeypatch.delattr(module, "AsyncAPIClient")

    def agent() -> None:
        messages(client, claude)
        chat(client, claude)

    with caplog.at_level(logging.WARNING, "agl_tracer_otel"):
        names = [span.name for span in await spans_of(agent)]
    assert "openai.chat.completion" in names
    assert "calls of this version of 'anthropic' cannot be recorded" in caplog.text


PROGRAM = """
import asyncio, sys
import agl_core as agl
from agl_store_memory import InMemoryLightningStore

@agl.rollout
def agent(task: str, llm: agl.LLM) -> float:
    import openai
    with openai.OpenAI(base_url=llm.endpoint, api_key="none") as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])
    return 1.0

store = InMemoryLightningStore()
llm = agl.LLM(endpoint=sys.argv[1], model="m")
trainer = agl.Trainer(store=store, algorithm="baseline", initial_resources={"llm": llm})
assert "openai" not in sys.modules
trainer.dev(agent, ["Hi"])

async def names():
    (rollout,) = await store.query_rollouts()
    return [span.name for span in await store.query_spans(rollout.rollout_id)]

print(asyncio.run(names()))
"""


def test_a_client_that_the_agent_imports_is_recorded_by_the_default_trainer(
    models: ScriptedModels,
):
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, models.base_url],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert "['openai.chat.completion', 'agentlightning.annotation']" in out.stdout
