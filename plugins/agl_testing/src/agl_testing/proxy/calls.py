"""Successful calls and streams, and their spans."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from agl_adapters import TraceToMessages
from agl_core.proxy import LLMProxy
from agl_scripted import Reply, ScriptedModels, prompt_tokens
from agl_testing.proxy.base import (
    ANSWER,
    MESSAGES,
    ProxyTests,
    attempt_of,
    chat,
    post,
    running,
    soon,
    spans_of,
)
from agl_testing.proxy.stores import TroubledStore
from agl_testing.suite import requires

__all__ = ["CallTests", "StreamTests"]


class CallTests(ProxyTests):
    """A call passes unchanged and is recorded exactly."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_call_passes_whole_and_is_stored(
        self,
        proxy: LLMProxy,
        proxy_store: TroubledStore,
        models: ScriptedModels,
        stream: bool,
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, stream=stream, temperature=0.5) == ANSWER.text
            # There is no flush, because an agent may end its attempt as soon as it has the answer.
            (span,) = await spans_of(proxy_store, rollout)
        assert models.requests[0].body["messages"] == MESSAGES
        assert models.requests[0].body["temperature"] == 0.5
        assert span.attributes["gen_ai.request.model"] == "m"
        assert span.status.status_code != "ERROR"
        assert span.end_time is not None
        assert span.end_time >= (span.start_time or 0)
        (conversation,) = TraceToMessages().adapt([span])
        assert [(m["role"], m["content"]) for m in conversation["messages"]] == [
            ("user", "How are you?"),
            ("assistant", ANSWER.text),
        ]

    async def test_a_call_outside_a_rollout_passes_and_is_not_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            assert await chat(proxy.base_url) == ANSWER.text
            await proxy.flush()
        assert (await proxy_store.statistics()).get("total_spans") == 0

    async def test_calls_of_many_attempts_do_not_mix(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = lambda seen: Reply("echo " + seen.body["messages"][0]["content"])

        async def one(index: int) -> None:
            rollout, llm = await attempt_of(proxy, proxy_store)
            for turn in range(3):
                text = f"{index}-{turn}"
                messages = [{"role": "user", "content": text}]
                assert await chat(llm.endpoint, messages=messages) == f"echo {text}"
            spans = await spans_of(proxy_store, rollout)
            said = [c["messages"][0].get("content") for c in TraceToMessages().adapt(spans)]
            assert said == [f"{index}-{turn}" for turn in range(3)]

        async with running(proxy):
            await asyncio.gather(*(one(index) for index in range(12)))

    @requires("token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_span_has_exact_ids_and_logprobs(
        self, proxy: LLMProxy, proxy_store: TroubledStore, stream: bool
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            await chat(llm.endpoint, stream=stream)
            (span,) = await spans_of(proxy_store, rollout)
        prompt = prompt_tokens({"messages": MESSAGES})
        assert span.attributes["prompt_token_ids"] == [token.id for token in prompt]
        assert span.attributes["response_token_ids"] == [token.id for token in ANSWER.tokens]
        content = json.loads(str(span.attributes["logprobs.content"]))
        logprobs = [item["logprob"] for item in content]
        assert logprobs == pytest.approx([token.logprob for token in ANSWER.tokens])

    @requires("token_ids")
    async def test_the_agent_sees_only_what_it_asked_for(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions") as reply:
                body = await reply.json()
        assert "prompt_token_ids" not in body
        assert "token_ids" not in body["choices"][0]
        assert body["choices"][0].get("logprobs") is None

    @requires("translation")
    async def test_an_agent_may_speak_anthropics_protocol(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/messages", max_tokens=50) as reply:
                body = await reply.json()
            assert await spans_of(proxy_store, rollout)
        assert body["content"] == [{"type": "text", "text": ANSWER.text}]
        assert models.requests[0].path.endswith("/chat/completions")


class StreamTests(ProxyTests):
    """A stream is passed on as a stream."""

    @requires("streaming")
    async def test_a_stream_reaches_the_agent_without_delay(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("one two three four", chunk_delay=0.2)]
        loop = asyncio.get_running_loop()
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            start = loop.time()
            first = math.inf
            async with post(llm.endpoint, "/chat/completions", stream=True) as reply:
                async for line in reply.content:
                    if b'"one"' in line:
                        first = loop.time() - start
        whole = loop.time() - start
        assert first < whole / 2, "the first text came late"

    @requires("streaming")
    async def test_a_client_that_goes_away_ends_the_call(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("word " * 200, chunk_delay=0.05)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", stream=True) as reply:
                await reply.content.readline()
                reply.close()
            assert await soon(lambda: models.disconnects == 1)
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"
