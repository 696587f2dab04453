"""Calls through LiteLLM to every kind of backend: requests, responses and errors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, BadRequestError

from agl_core.errors import ConfigError
from agl_core.types import AttemptedRollout
from agl_proxy_litellm import LiteLLMProxy
from agl_scripted import Reply, ScriptedModels, ToolCall, tokenize
from agl_serving import mint_token

TEXT = "Hello there my friend"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
IDS = [token.id for token in tokenize(TEXT)]


def client_of(proxy: LiteLLMProxy, claim: AttemptedRollout) -> AsyncOpenAI:
    llm = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id, "q")
    return AsyncOpenAI(base_url=llm.endpoint, api_key="none", max_retries=0)


# -- servers that speak OpenAI's protocols ---------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_vllm_server_gets_the_request_unchanged(
    serve: Any, backend: Any, models: ScriptedModels, claim: Any, stream: bool
):
    proxy = await serve(backend(models))
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}]
    said = {"temperature": 0.5, "n": 1, "tools": tools, "max_tokens": 9, "metadata": {"a": "b"}}
    own: dict[str, Any] = {
        "min_p": 0.1,
        "chat_template_kwargs": {"enable_thinking": False},
        "priority": 3,
    }
    async with client_of(proxy, claim) as client:
        made: Any = await client.chat.completions.create(
            model="q", messages=MESSAGES, stream=stream, extra_body={**said, **own}
        )
        if stream:
            assert [c.choices[0].delta.content async for c in made if c.choices][1] == "Hello"
    asked = dict(models.requests[-1].body)
    captured: dict[str, Any] = {"return_token_ids": True, "logprobs": True}
    if stream:
        captured["stream_options"] = {"include_usage": True}
    expected = {"model": "Q", "messages": MESSAGES, "stream": stream, **said, **own, **captured}
    assert asked == expected


async def test_a_server_of_openais_kind_gives_ids_if_asked_to(
    serve: Any, backend: Any, models: ScriptedModels, claim: Any, spans: Any
):
    """LiteLLM sends chat, completions and their streams with OpenAI's own client."""
    proxy = await serve(backend(models, "openai/Q", token_ids=True, logprobs=True, api_key="k"))
    async with client_of(proxy, claim) as client:
        for stream in (False, True):
            chat: Any = await client.chat.completions.create(
                model="q", messages=MESSAGES, stream=stream
            )
            text: Any = await client.completions.create(model="q", prompt="hi", stream=stream)
            if stream:
                said = [c.choices[0].delta.content async for c in chat]
                assert "".join(piece or "" for piece in said) == TEXT
                assert "".join([c.choices[0].text async for c in text]) == TEXT
    found = await spans()
    assert [span.attributes["response_token_ids"] for span in found] == [IDS] * 4
    assert all(len(json.loads(s.attributes["logprobs.content"])) == len(IDS) for s in found)
    assert {seen.headers["authorization"] for seen in models.requests} == {"Bearer k"}


async def test_an_agents_request_cannot_configure_litellm(
    serve: Any, backend: Any, models: ScriptedModels, claim: Any
):
    steering: dict[str, Any] = {
        "api_base": "http://127.0.0.1:9/v1",
        "api_key": "stolen",
        "mock_response": "mocked",
        "extra_headers": {"x-evil": "1"},
        "fallbacks": ["other"],
        "num_retries": 3,
    }
    proxy = await serve(backend(models, api_key="k"))
    async with client_of(proxy, claim) as client:
        made = await client.chat.completions.create(
            model="q", messages=MESSAGES, extra_body=steering
        )
    assert made.choices[0].message.content == TEXT
    (seen,) = models.requests
    assert seen.headers["authorization"] == "Bearer k"
    assert "x-evil" not in seen.headers
    assert {key: seen.body[key] for key in steering} == steering  # plain unknown fields there
    proxy.update_model_list([backend(models, "mistral/Q", api_key="k")])
    async with client_of(proxy, claim) as client:
        for key, value in steering.items():
            with pytest.raises(BadRequestError, match=key):
                await client.chat.completions.create(
                    model="q", messages=MESSAGES, extra_body={key: value}
                )
    assert len(models.requests) == 1


@pytest.mark.parametrize(
    ("model", "params"),
    [("openai/gpt-5-codex", {}), ("openai/Q", {"mock_response": TEXT})],
    ids=["through Responses", "from a mock"],
)
async def test_a_stream_that_litellm_makes_itself_is_relayed(
    serve: Any, backend: Any, models: ScriptedModels, claim: Any, model: str, params: Any
):
    proxy = await serve(backend(models, model, api_key="k", **params))
    async with client_of(proxy, claim) as client:
        made = await client.chat.completions.create(model="q", messages=MESSAGES, stream=True)
        said = [c.choices[0].delta.content async for c in made if c.choices]
    assert "".join(piece or "" for piece in said) == TEXT


# -- servers that LiteLLM translates for -----------------------------------------------------------


@pytest.mark.parametrize("provider", ["anthropic", "mistral", "deepseek"])
@pytest.mark.parametrize("stream", [False, True])
async def test_other_providers_are_translated(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    spans: Any,
    provider: str,
    stream: bool,
):
    models.script = [Reply(TEXT, [ToolCall("book", {"room": 4})])]
    proxy = await serve(backend(models, f"{provider}/Q", api_key="k"))
    tool: Any = {
        "type": "function",
        "function": {"name": "book", "parameters": {"type": "object", "properties": {}}},
    }
    async with client_of(proxy, claim) as client:
        made: Any = await client.chat.completions.create(
            model="q", messages=MESSAGES, tools=[tool], stream=stream
        )
        if stream:
            pieces = [c.choices[0].delta async for c in made if c.choices]
            text = "".join(piece.content or "" for piece in pieces)
            calls = [call.function for piece in pieces for call in piece.tool_calls or ()]
            arguments = "".join(call.arguments or "" for call in calls)
        else:
            text = made.choices[0].message.content
            arguments = made.choices[0].message.tool_calls[0].function.arguments
    assert text == TEXT
    assert json.loads(arguments) == {"room": 4}
    assert models.requests[-1].path.endswith(
        "/messages" if provider == "anthropic" else "/chat/completions"
    )
    (span,) = await spans()
    assert span.status.status_code == "OK"
    said = json.loads(span.attributes["gen_ai.output.messages"])[0]
    assert [part["type"] for part in said["parts"]] == ["text", "tool_call"]
    assert span.attributes["gen_ai.provider.name"] == provider
    assert span.attributes["gen_ai.usage.output_tokens"] > 4
    assert span.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]


@pytest.mark.parametrize("provider", ["anthropic", "mistral"])
@pytest.mark.parametrize("stream", [False, True])
async def test_text_completions_of_other_providers_are_translated(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    spans: Any,
    provider: str,
    stream: bool,
):
    proxy = await serve(backend(models, f"{provider}/Q", api_key="k"))
    async with client_of(proxy, claim) as client:
        made: Any = await client.completions.create(model="q", prompt="hi", stream=stream)
        chunks = [chunk async for chunk in made] if stream else [made]
    assert "".join(c.choices[0].text or "" for c in chunks if c.choices) == TEXT
    (span,) = await spans()
    assert span.status.status_code == "OK"


@pytest.mark.parametrize("provider", ["anthropic", "mistral"])
async def test_streams_of_other_providers_are_relayed_without_delay(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, provider: str
):
    proxy = await serve(backend(models, f"{provider}/Q", api_key="k"))
    async with client_of(proxy, claim) as client:
        # The first call imports the modules that LiteLLM loads lazily.
        await client.chat.completions.create(model="q", messages=MESSAGES)
        models.script = [Reply("one two three four five six", chunk_delay=0.2)]
        loop = asyncio.get_running_loop()
        began, arrived = loop.time(), list[float]()
        stream = await client.chat.completions.create(model="q", messages=MESSAGES, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                arrived.append(loop.time() - began)
    assert len(arrived) == 6
    assert arrived[0] < arrived[-1] / 2


@pytest.mark.parametrize("path", ["chat", "messages"])
@pytest.mark.parametrize(("status", "stream"), [(429, False), (400, True), (401, False)])
async def test_errors_of_other_providers_keep_status_and_advice(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    spans: Any,
    path: str,
    status: int,
    stream: bool,
):
    headers = {"retry-after": "7"}
    models.script = [Reply(error_status=status, error_message="slow down", headers=headers)]
    proxy = await serve(backend(models, "mistral/Q", api_key="k"))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    where = url + ("/messages" if path == "messages" else "/chat/completions")
    body = {"model": "q", "messages": MESSAGES, "max_tokens": 9, "stream": stream}
    async with aiohttp.ClientSession() as session, session.post(where, json=body) as reply:
        told = await reply.json()
        assert reply.status == status
        assert ("type" in told) == (path == "messages")
        assert "slow down" in told["error"]["message"]
        assert "agl-" not in told["error"]["message"]  # the router's name of the group
        if status == 429:
            assert reply.headers["retry-after"] == "7"
    (span,) = await spans()
    assert span.attributes["error.type"] == f"backend_{status}"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply("one two three four", drop_after=3), {500, 502}),
        (Reply(garbage=b"<html>oops</html>"), {502}),
        (Reply("late", delay=30), {504}),
    ],
    ids=["cut", "garbage", "late"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_other_providers_fail_in_bounded_time(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    spans: Any,
    reply: Reply,
    code: set[int],
    stream: bool,
):
    if reply.drop_after is not None and not stream:
        reply = Reply(drop_after=0)
    models.script = [reply]
    limit = 0.5 if reply.delay else 20.0
    proxy = await serve(backend(models, "mistral/Q", api_key="k", timeout=limit))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    body = {"model": "q", "messages": MESSAGES, "stream": stream}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session,
        session.post(url + "/chat/completions", json=body) as answer,
    ):
        text = await answer.text()
        assert answer.status in code or (stream and answer.status == 200)
    assert "error" in text
    assert not text.endswith("[DONE]\n\n")
    (span,) = await spans()
    assert span.status.status_code == "ERROR"


async def test_messages_to_anthropic_go_straight(
    serve: Any, backend: Any, models: ScriptedModels, claim: Any, spans: Any
):
    proxy = await serve(backend(models, "anthropic/Q", api_key="k"))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    async with AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="none") as client:
        made = await client.messages.create(
            model="q", max_tokens=2000, messages=MESSAGES, thinking=thinking
        )
        assert made.content[0].text == TEXT  # pyright: ignore[reportAttributeAccessIssue]
    asked = models.requests[-1]
    assert asked.body["thinking"] == thinking
    assert asked.headers["x-api-key"] == "k"
    assert (await spans())[0].attributes["agl.proxy.backend_protocol"] == "messages"


async def test_unknown_calls_are_relayed_to_providers_with_a_server(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout
):
    proxy = await serve(backend(models))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    async with aiohttp.ClientSession() as session:
        async with session.post(url + "/tokenize", json={"model": "q", "prompt": "x"}) as reply:
            assert reply.status == 200
        assert models.requests[-1].path == "/v1/tokenize"
        proxy.update_model_list(
            [{"model_name": "q", "litellm_params": {"model": "bedrock/amazon.nova-pro-v1:0"}}]
        )
        async with session.post(url + "/tokenize", json={"model": "q", "prompt": "x"}) as reply:
            assert reply.status == 404
            assert "bedrock" in (await reply.json())["error"]["message"]


# -- model lists -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"model": "nobody-knows/x"}, "model_list.0.litellm_params.model: LiteLLM has no"),
        ({"model": "hosted_vllm/x"}, "needs the URL of its server"),
        ({"model": "hosted_vllm/x", "api_base": "x"}, "is not an HTTP URL"),
        ({"model": "openai/x", "api_key": "os.environ/NO_SUCH"}, "NO_SUCH is not set"),
        ({"model": "bedrock/x", "aws_region_name": "os.environ/NO_SUCH"}, "NO_SUCH is not set"),
    ],
)
def test_wrong_entries_are_named(params: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        LiteLLMProxy(model_list=[{"model_name": "q", "litellm_params": params}])


async def test_a_server_without_a_provider_is_one_of_openais_kind(
    serve: Any, backend: Any, models: ScriptedModels, claim: Any
):
    proxy = await serve(backend(models, "Qwen/Qwen3-8B"))
    async with client_of(proxy, claim) as client:
        await client.chat.completions.create(model="q", messages=MESSAGES)
    assert models.requests[-1].body["model"] == "Qwen/Qwen3-8B"


def test_nothing_is_fetched_at_start():
    """Runs in a process of its own, where every connection is an error."""
    code = """
import asyncio, sys

def guard(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        if "127.0.0.1" not in str(args):
            raise AssertionError(f"the network was used: {event} {args}")

sys.addaudithook(guard)

from agl_store_memory import InMemoryLightningStore
from agl_core.plugins import build_component

entries = [
    {"model_name": "a", "litellm_params": {"model": "bedrock/amazon.nova-pro-v1:0"}},
    {"model_name": "b", "litellm_params": {"model": "anthropic/claude-sonnet-4-5", "api_key": "k"}},
]

async def main():
    spec = {"type": "litellm", "launch_mode": "asyncio", "model_list": entries}
    proxy = build_component("proxy", spec, inject={"store": InMemoryLightningStore()})
    await proxy.start()
    assert proxy.is_running()
    await proxy.stop()
    print("quiet")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout.strip() == "quiet", done.stdout + done.stderr
    assert done.stderr == ""


SECRET = "the-secret-of-the-operator"


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"model": "openai/x", "api_key": "os.environ/AGL_AUTH_TOKEN"}, "api_key"),
        ({"model": "bedrock/x", "aws_web_identity_token": "oidc/env/AGL_AUTH_TOKEN"}, "aws_web"),
        # LiteLLM would take the key or the credentials from the environment.
        ({"model": "openai/x", "api_base": "http://127.0.0.1:9/v1"}, "needs a key"),
        ({"model": "hosted_vllm/x", "base_url": "http://127.0.0.1:9/v1"}, "needs a key"),
        ({"model": "groq/x", "api_base": "http://127.0.0.1:9/v1", "api_key": "k"}, "URL of groq"),
        ({"model": "huggingface/http://127.0.0.1:9/v1"}, "URL of huggingface"),
        ({"model": "bedrock/x", "aws_sts_endpoint": "http://127.0.0.1:9"}, "aws_sts_endpoint"),
        ({"model": "vertex_ai/x", "vertex_credentials": "/etc/passwd"}, "vertex_credentials"),
    ],
)
async def test_a_model_list_from_http_does_not_read_the_environment(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    monkeypatch: pytest.MonkeyPatch,
    params: dict[str, Any],
    why: str,
):
    for name in ("AGL_AUTH_TOKEN", "OPENAI_API_KEY", "HOSTED_VLLM_API_KEY", "GROQ_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    proxy = await serve(backend(models), auth_token=SECRET)
    headers = {"authorization": f"Bearer {mint_token(SECRET, 'algorithm', lifetime=60)}"}
    url = proxy.base_url.removesuffix("/v1") + "/control/models"
    async with aiohttp.ClientSession(headers=headers) as session:
        for given, status in ((params, 422), ({"model": "openai/x", "api_key": "k"}, 200)):
            sent = {"model_list": [{"model_name": "q", "litellm_params": given}]}
            async with session.post(url, json=sent) as reply:
                text = await reply.text()
                assert reply.status == status, text
                assert status == 200 or why in text
                assert SECRET not in text


@pytest.mark.parametrize("provider", ["hosted_vllm/Q", "openai/Q", "mistral/Q"])
@pytest.mark.parametrize(
    "bad",
    [
        Reply(drop_after=0),
        Reply(garbage=b'{"choices":null}'),
        Reply(garbage=b'{"choices":[{"message":{"tool_calls":[5]},"logprobs":5}]}'),
        Reply(error_status=401, error_message=f"Incorrect API key provided: {SECRET}"),
        Reply(error_status=599),
    ],
    ids=["cut", "no choices", "odd types", "a key", "599"],
)
async def test_bad_answers_are_not_errors_of_the_proxy(
    serve: Any,
    backend: Any,
    models: ScriptedModels,
    claim: AttemptedRollout,
    spans: Any,
    provider: str,
    bad: Reply,
):
    models.script = [bad]
    proxy = await serve(backend(models, provider, api_key=SECRET), num_retries=0)
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    sent: dict[str, Any] = {"model": "q", "messages": MESSAGES, "user": "\ud800"}
    async with aiohttp.ClientSession() as session:
        async with session.post(url + "/chat/completions", json=sent) as reply:
            text = await reply.text()
            assert reply.status in (200, 400, 401, 502, 599), text
        async with session.post(url + "/chat/completions", json={**sent, "user": "u"}) as reply:
            text += await reply.text()
            assert reply.status in (200, 401, 502, 599), text
    assert "Traceback" not in text and "site-packages" not in text
    found = await spans()
    assert len(found) == 2
    assert SECRET not in text + "".join(span.model_dump_json() for span in found)
