"""The agent's response, the backend's request, and the span of a call."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI

from agl_adapters import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from agl_core import semconv
from agl_core.types import AttemptedRollout, Span
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels, ToolCall, prompt_tokens, tokenize
from agl_store_memory import InMemoryLightningStore

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [
    {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}},
]


@pytest.fixture
def span(store: InMemoryLightningStore, claim: AttemptedRollout) -> Any:
    async def last() -> Span:
        return list((await store.query_spans(claim.rollout_id)).items)[-1]

    return last


@pytest.fixture
async def proxy(serve: Any, models: ScriptedModels, backend: Any) -> DirectProxy:
    return await serve(backend(models))


@pytest.fixture
async def client(proxy: DirectProxy, claim: AttemptedRollout) -> Any:
    llm = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id)
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as made:
        yield made


def ids(text: str) -> list[int]:
    return [token.id for token in tokenize(text)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_call_is_recorded_exactly_and_shown_as_asked(
    client: AsyncOpenAI, models: ScriptedModels, span: Any, stream: bool
):
    made: Any = await client.chat.completions.create(model="q", messages=MESSAGES, stream=stream)
    text = ""
    if stream:
        async for chunk in made:
            assert chunk.usage is None
            text += chunk.choices[0].delta.content or ""
            assert chunk.choices[0].logprobs is None
            assert not chunk.choices[0].model_extra and not chunk.model_extra
    else:
        text = made.choices[0].message.content
        assert made.choices[0].logprobs is None
        assert "prompt_token_ids" not in made.model_extra
        assert "token_ids" not in made.choices[0].model_extra
    assert text == "Hello there my friend"

    asked = models.requests[-1].body
    assert asked["model"] == "Q"
    assert (asked["return_token_ids"], asked["logprobs"]) == (True, True)
    found = await span()
    attributes = found.attributes
    assert found.name == semconv.SPAN_MODEL_CALL
    assert found.sequence_id == 1
    assert found.status.status_code == "OK"
    assert attributes["prompt_token_ids"] == [t.id for t in prompt_tokens({"messages": MESSAGES})]
    assert attributes["response_token_ids"] == ids("Hello there my friend")
    content = json.loads(attributes["logprobs.content"])
    expected = [(t.text, t.logprob) for t in tokenize("Hello there my friend")]
    assert [(e["token"], e["logprob"]) for e in content] == expected
    assert attributes["gen_ai.response.id"] == "scripted-0"
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.usage.output_tokens"] == 4
    assert attributes["gen_ai.request.stream"] is stream
    assert 0 < attributes["gen_ai.server.time_to_first_token"] < 5
    assert found.start_time < found.end_time


async def test_adapters_read_the_spans(
    client: AsyncOpenAI, models: ScriptedModels, store: InMemoryLightningStore, claim: Any
):
    models.script = [Reply(tool_calls=[ToolCall("book", {"room": 4})]), Reply("done")]
    await client.chat.completions.create(model="q", messages=MESSAGES, tools=TOOLS)
    history = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "book", "arguments": '{"room": 4}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "booked"},
    ]
    await client.chat.completions.create(model="q", messages=history, tools=TOOLS)
    spans = (await store.query_spans(claim.rollout_id)).items

    triplets = LlmProxyTraceToTriplet().adapt(spans)
    assert [t.metadata["response_id"] for t in triplets] == ["scripted-0", "scripted-1"]
    assert triplets[1].response["token_ids"] == ids("done")
    traced = TracerTraceToTriplet().adapt(spans)
    assert [t.prompt["token_ids"] for t in traced] == [t.prompt["token_ids"] for t in triplets]
    conversations = TraceToMessages().adapt(spans)
    assert conversations[1]["messages"] == [*history, {"role": "assistant", "content": "done"}]
    assert conversations[0]["tools"] == TOOLS


@pytest.mark.parametrize("stream", [False, True])
async def test_the_agent_gets_the_fields_that_it_requests(
    client: AsyncOpenAI, models: ScriptedModels, stream: bool
):
    options: Any = {"logprobs": True, "extra_body": {"return_token_ids": True}}
    if stream:
        options["stream_options"] = {"include_usage": True}
    made: Any = await client.chat.completions.create(
        model="q", messages=MESSAGES, stream=stream, **options
    )
    if not stream:
        assert made.choices[0].token_ids == ids("Hello there my friend")
        assert len(made.choices[0].logprobs.content) == 4
        return
    chunks = [chunk async for chunk in made]
    assert chunks[-1].usage.completion_tokens == 4
    assert [i for c in chunks for x in c.choices for i in getattr(x, "token_ids", ())] == ids(
        "Hello there my friend"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_are_recorded_too(client: AsyncOpenAI, span: Any, stream: bool):
    made: Any = await client.completions.create(model="q", prompt="once upon", stream=stream)
    if stream:
        chunks = [chunk async for chunk in made]
        assert "".join(c.choices[0].text for c in chunks) == "Hello there my friend"
        assert all(c.choices[0].logprobs is None for c in chunks)
    attributes = (await span()).attributes
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["response_token_ids"] == ids("Hello there my friend")
    assert attributes["prompt_token_ids"] == ids('"once upon"')
    assert len(json.loads(attributes["logprobs.content"])) == 4


async def test_embeddings_and_models(client: AsyncOpenAI, span: Any):
    made = await client.embeddings.create(model="q", input=["a b", "c"])
    assert [item.embedding[0] for item in made.data] == [2.0, 1.0]
    found = await span()
    assert found.name == "embeddings q"
    assert found.attributes["gen_ai.usage.input_tokens"] == 2
    assert [model.id async for model in client.models.list()] == ["q"]
    assert (await client.models.retrieve("q")).id == "q"


async def test_calls_without_a_rollout_pass_and_leave_no_span(
    proxy: DirectProxy, store: InMemoryLightningStore, models: ScriptedModels
):
    async with AsyncOpenAI(base_url=proxy.base_url, api_key="none") as client:
        made = await client.chat.completions.create(model="q", messages=MESSAGES)
    assert made.choices[0].message.content == "Hello there my friend"
    assert "return_token_ids" not in models.requests[-1].body
    assert (await store.statistics()).get("total_spans") == 0


@pytest.mark.parametrize(
    "path",
    [
        "/rollout/{r}/attempt/{a}/v1/chat/completions",
        "/rollout/{r}/attempt/{a}/chat/completions",
        "/v1/rollout/{r}/attempt/{a}/chat/completions",
    ],
)
async def test_every_spelling_of_the_path(
    proxy: DirectProxy, claim: AttemptedRollout, span: Any, path: str
):
    where = path.format(r=claim.rollout_id, a=claim.attempt.attempt_id)
    root = proxy.base_url.removesuffix("/v1")
    body = {"model": "q", "messages": MESSAGES}
    async with aiohttp.ClientSession() as client, client.post(root + where, json=body) as reply:
        made = await reply.json()
    assert made["choices"][0]["message"]["content"] == "Hello there my friend"
    assert (await span()).attempt_id == claim.attempt.attempt_id


async def test_the_agents_trace_is_the_calls_parent(client: AsyncOpenAI, span: Any):
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    await client.chat.completions.create(
        model="q", messages=MESSAGES, extra_headers={"traceparent": f"00-{trace}-{parent}-01"}
    )
    found = await span()
    assert (found.trace_id, found.parent_id) == (trace, parent)


async def test_the_tries_that_a_client_counts_are_recorded(
    proxy: DirectProxy, claim: AttemptedRollout, span: Any
):
    llm = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id)
    for sent, recorded in (("2", 2), ("0", None), ("many", None), ("9999999", None)):
        headers = {"x-stainless-retry-count": sent}
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="-", max_retries=0) as client:
            await client.chat.completions.create(
                model="q", messages=MESSAGES, extra_headers=headers
            )
        assert (await span()).attributes.get("http.request.resend_count") == recorded


@pytest.mark.parametrize("secret", [None, "a-secret-of-good-length"])
async def test_calls_of_azures_client_are_recorded(
    serve: Any,
    backend: Any,
    claim: AttemptedRollout,
    models: ScriptedModels,
    span: Any,
    secret: str | None,
):
    proxy = await serve(backend(models), auth_token=secret)
    llm = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id)
    for base in (llm.endpoint, llm.endpoint.removesuffix("/v1")):
        async with AsyncAzureOpenAI(
            azure_endpoint=base, api_key=llm.api_key or "-", api_version="2024-10-21", max_retries=0
        ) as client:
            made = await client.chat.completions.create(model="q", messages=MESSAGES)
        assert made.choices[0].message.content == "Hello there my friend"
        found = await span()
        assert found.attributes["gen_ai.request.model"] == "q"
        assert found.attributes["response_token_ids"] == ids("Hello there my friend")
        asked = models.requests[-1]
        assert (asked.path, asked.body["model"]) == ("/v1/chat/completions", "Q")
        assert "api-key" not in asked.headers  # the proxy's token is not for the backend
    # The deployment in the path is the model, as it is for Azure.
    async with aiohttp.ClientSession(headers={"api-key": llm.api_key or "-"}) as session:
        url = f"{llm.endpoint}/openai/deployments/q/chat/completions?api-version=2024-10-21"
        async with session.post(url, json={"messages": MESSAGES}) as reply:
            assert reply.status == 200
        async with session.post(url.replace("/q/", "/unknown/"), json={"messages": MESSAGES}) as no:
            assert no.status == 404
