"""The span of a call: its name, ids, times, place and attributes, and what a broken call leaves."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import aiohttp
import pytest

from agl_core.proxy import LLMProxy
from agl_core.types import Span
from agl_scripted import Reply, ScriptedModels, Token, prompt_tokens, tokenize
from agl_testing.proxy.answers import CALLS, TOOLS, finish_reasons
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

__all__ = ["RecordTests"]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
INVALID = [
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE[1:]}-{PARENT}-01",
    "nothing",
]
"""Values of ``traceparent`` that W3C Trace Context says to ignore."""


def said(span: Span) -> str:
    """Return the text of the model that a span has."""
    messages = json.loads(str(span.attributes["gen_ai.output.messages"]))
    parts = [part for message in messages for part in message["parts"]]
    return "".join(part["content"] for part in parts if part["type"] == "text")


def check_sampled(span: Span, tokens: list[Token], suffix: str = "") -> None:
    """Compare the ids and log-probabilities of a choice with the tokens of its text."""
    assert span.attributes["response_token_ids" + suffix] == [token.id for token in tokens]
    logprobs = json.loads(str(span.attributes["logprobs.content" + suffix]))
    found = [item["logprob"] for item in logprobs]
    assert found == pytest.approx([token.logprob for token in tokens])


class RecordTests(ProxyTests):
    """A span says exactly what was called, when, by whom, and how it ended."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_span_has_the_attributes_of_its_call(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        options = {"temperature": 0.25, "top_p": 0.5, "seed": 7, "max_tokens": 9, "stop": ["x"]}
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            await chat(llm.endpoint, stream=stream, **options)
            (span,) = await spans_of(proxy_store, rollout)
        found = span.attributes
        assert "openai.chat.completion" in span.name
        assert span.status.status_code == "OK"
        assert span.status.description is None
        expected: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.request.stream": stream,
            "gen_ai.request.temperature": 0.25,
            "gen_ai.request.top_p": 0.5,
            "gen_ai.request.seed": 7,
            "gen_ai.request.max_tokens": 9,
            "gen_ai.response.model": "m",
            "gen_ai.response.id": "scripted-0",
            "http.response.status_code": 200,
        }
        assert {key: found.get(key) for key in expected} == expected
        assert json.loads(str(found["gen_ai.request.stop_sequences"])) == ["x"]
        assert found["gen_ai.provider.name"]
        assert "error.type" not in found
        said_by_user = json.loads(str(found["gen_ai.input.messages"]))
        assert [message["role"] for message in said_by_user] == ["user"]
        assert said(span) == ANSWER.text
        assert span.resource.attributes["service.name"]

    async def test_a_span_lasts_as_long_as_its_call(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("one two three", delay=0.2, chunk_delay=0.05), Reply(delay=0.1)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            before = time.time()
            await chat(llm.endpoint, stream=True)
            after = time.time()
            await chat(llm.endpoint)
            span, whole = await spans_of(proxy_store, rollout)
        assert span.start_time is not None
        assert span.end_time is not None
        assert before <= span.start_time < before + 5  # a busy machine may begin late
        # The duration is measured with another clock, which may run a little faster.
        assert span.start_time + 0.3 < span.end_time <= after + 0.01
        first: Any = span.attributes["gen_ai.server.time_to_first_token"]
        assert 0.2 <= first < span.end_time - span.start_time
        first = whole.attributes["gen_ai.server.time_to_first_token"]
        assert 0.1 <= first <= (whole.end_time or 0) - (whole.start_time or 0)

    async def test_each_span_has_ids_of_its_own(self, proxy: LLMProxy, proxy_store: TroubledStore):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            for _ in range(2):
                await chat(llm.endpoint)
            spans = await spans_of(proxy_store, rollout)
        for span in spans:
            assert re.fullmatch("[0-9a-f]{32}", span.trace_id)
            assert re.fullmatch("[0-9a-f]{16}", span.span_id)
            assert span.parent_id is None
            assert span.parent is None
            assert span.context is not None
            assert (span.context.trace_id, span.context.span_id) == (span.trace_id, span.span_id)
            assert not span.context.is_remote
        assert len({span.span_id for span in spans}) == 2
        assert len({span.trace_id for span in spans}) == 2

    async def test_a_call_continues_the_trace_of_its_agent(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy), aiohttp.ClientSession() as session:
            rollout, llm = await attempt_of(proxy, proxy_store)
            for value in (f"00-{TRACE}-{PARENT}-01", *INVALID):
                async with session.post(
                    llm.endpoint + "/chat/completions",
                    json={"model": "m", "messages": MESSAGES},
                    headers={"traceparent": value},
                ) as reply:
                    assert reply.status == 200
            first, *others = await spans_of(proxy_store, rollout)
        assert (first.trace_id, first.parent_id) == (TRACE, PARENT)
        assert first.parent is not None
        assert (first.parent.trace_id, first.parent.span_id) == (TRACE, PARENT)
        assert first.parent.is_remote
        assert [span.parent_id for span in others] == [None] * len(INVALID)
        assert {span.trace_id for span in others}.isdisjoint({TRACE, "0" * 32})

    async def test_spans_are_numbered_in_the_order_of_the_calls(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("first", delay=0.3), Reply("second")]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            slow = asyncio.ensure_future(chat(llm.endpoint))
            assert await soon(lambda: bool(models.requests))
            assert await chat(llm.endpoint) == "second"
            assert not slow.done()
            assert await slow == "first"
            spans = await spans_of(proxy_store, rollout)
        spans.sort(key=lambda span: span.sequence_id)
        assert [said(span) for span in spans] == ["first", "second"]
        assert [span.sequence_id for span in spans] == [1, 2]

    async def test_the_span_of_a_broken_stream_has_what_arrived(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("a b c d e f", drop_after=4)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            with pytest.raises((aiohttp.ClientError, RuntimeError)):
                await chat(llm.endpoint, stream=True)
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert said(span) == "a b c"
        assert finish_reasons(span) in ([], [""])

    async def test_the_span_of_a_failed_call_names_the_error(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply(error_status=401, error_message="no such luck")]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions") as reply:
                told = (await reply.json())["error"]
            async with post(llm.endpoint, "/chat/completions", model="nobody") as unknown:
                refused = (await unknown.json())["error"]
            await proxy.flush()
            spans = await spans_of(proxy_store, rollout)
        assert [span.status.status_code for span in spans] == ["ERROR", "ERROR"]
        assert "no such luck" in str(spans[0].status.description)
        assert "nobody" in str(spans[1].status.description)
        statuses = [span.attributes["http.response.status_code"] for span in spans]
        assert statuses == [reply.status, unknown.status]
        assert all(span.attributes["error.type"] for span in spans)
        assert spans[1].attributes["gen_ai.request.model"] == "nobody"
        assert told["type"]
        assert set(refused) >= {"message", "type", "param", "code"}
        assert all(span.end_time is not None for span in spans)

    async def test_lone_surrogates_lose_no_span(self, proxy: LLMProxy, proxy_store: TroubledStore):
        messages = [{"role": "user", "content": "half a smile: \ud83d"}]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", messages=messages) as reply:
                assert reply.status < 500
                await reply.read()
            assert await chat(llm.endpoint) == ANSWER.text
            spans = await spans_of(proxy_store, rollout)
        assert len(spans) == 2
        assert all(span.model_dump_json() for span in spans)

    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_large_call_is_stored_whole(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        question = "snow " * 300_000
        models.script = [Reply("x" * 1_000_000)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            messages = [{"role": "user", "content": question}]
            text = await chat(llm.endpoint, messages=messages, stream=stream)
            (span,) = await spans_of(proxy_store, rollout)
        assert len(text) == 1_000_000
        assert len(models.requests[0].body["messages"][0]["content"]) == len(question)
        assert len(str(span.attributes["gen_ai.output.messages"])) > 1_000_000
        asked = json.loads(str(span.attributes["gen_ai.input.messages"]))
        assert len(asked[0]["parts"][0]["content"]) == len(question)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_texts_of_any_language_pass_and_are_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        text = "\u00e9 e\u0301 \u4e2d\u6587 \U0001f680 \u202e \u2028 \\u0041 \x7f"
        models.script = [Reply(f"echo {text}")]
        messages = [{"role": "user", "content": text}]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, messages=messages, stream=stream) == f"echo {text}"
            (span,) = await spans_of(proxy_store, rollout)
        assert models.requests[0].body["messages"] == messages
        assert said(span) == f"echo {text}"
        asked = json.loads(str(span.attributes["gen_ai.input.messages"]))
        assert asked[0]["parts"][0]["content"] == text

    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's
    async def test_a_request_of_twelve_megabytes_passes(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        messages = [{"role": "user", "content": "0123456789ab" * 2**20}]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, messages=messages) == ANSWER.text
            (span,) = await spans_of(proxy_store, rollout)
        (seen,) = models.requests
        assert len(seen.body["messages"][0]["content"]) == 12 * 2**20
        assert span.status.status_code == "OK"

    @requires("token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_long_answer_has_all_its_ids(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        models.script = [Reply(" ".join(f"word{index}" for index in range(1200, 0, -1)))]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            await chat(llm.endpoint, stream=stream)
            (span,) = await spans_of(proxy_store, rollout)
        check_sampled(span, models.script[0].tokens)

    @requires("token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_each_choice_has_ids_of_its_own(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        models.script = [Reply("the first one", others=["and another"])]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            await chat(llm.endpoint, stream=stream, n=2)
            (span,) = await spans_of(proxy_store, rollout)
        check_sampled(span, tokenize("the first one"))
        check_sampled(span, tokenize("and another"), ".1")

    @requires("token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_the_tokens_of_tool_calls_are_among_the_ids(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, stream: bool
    ):
        models.script = [Reply("Let me see.", tool_calls=CALLS)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            await chat(llm.endpoint, stream=stream, tools=TOOLS)
            (span,) = await spans_of(proxy_store, rollout)
        check_sampled(span, models.script[0].tokens)

    async def test_the_calls_of_a_long_attempt_are_all_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            for _ in range(6):
                await asyncio.gather(*(chat(llm.endpoint) for _ in range(25)))
            spans = await spans_of(proxy_store, rollout)
        assert len(spans) == 150
        assert {said(span) for span in spans} == {ANSWER.text}

    @requires("routes")
    async def test_embeddings_are_recorded_as_such(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/embeddings", input=["a b", "c"]) as reply:
                assert reply.status == 200
            (span,) = await spans_of(proxy_store, rollout)
        assert span.attributes["gen_ai.operation.name"] == "embeddings"
        assert span.attributes["gen_ai.usage.input_tokens"] == 2
        assert "openai.chat.completion" not in span.name
        assert "m" in span.name
        assert "gen_ai.output.messages" not in span.attributes

    @requires("routes", "token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_completions_have_token_ids(
        self, proxy: LLMProxy, proxy_store: TroubledStore, stream: bool
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/completions", prompt="Say", stream=stream) as reply:
                raw = await reply.text()
            (span,) = await spans_of(proxy_store, rollout)
        found = span.attributes
        assert found["gen_ai.operation.name"] == "text_completion"
        check_sampled(span, ANSWER.tokens)
        prompt = prompt_tokens({"messages": MESSAGES, "prompt": "Say"})
        assert found["prompt_token_ids"] == [token.id for token in prompt]
        assert "token_ids" not in raw
        assert "token_logprobs" not in raw

    @requires("token_ids")
    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_agent_gets_the_ids_and_logprobs_that_it_asked_for(
        self, proxy: LLMProxy, proxy_store: TroubledStore, stream: bool
    ):
        options = {"return_token_ids": True, "logprobs": True, "stream": stream}
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", **options) as reply:
                raw = await reply.text()
            (span,) = await spans_of(proxy_store, rollout)
        lines = [line[6:] for line in raw.splitlines() if line.startswith("data: {")]
        bodies = [json.loads(line) for line in lines] if stream else [json.loads(raw)]
        choices = [choice for body in bodies for choice in body["choices"]]
        ids = [number for choice in choices for number in choice.get("token_ids") or []]
        assert ids == [token.id for token in ANSWER.tokens]
        assert any(body.get("prompt_token_ids") for body in bodies)
        assert any(choice.get("logprobs") for choice in choices)
        assert span.attributes["response_token_ids"] == ids

    @pytest.mark.parametrize("asked", [False, True])
    async def test_a_stream_has_the_usage_that_was_asked_for(
        self, proxy: LLMProxy, proxy_store: TroubledStore, asked: bool
    ):
        options = {"stream_options": {"include_usage": True}} if asked else {}
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", stream=True, **options) as reply:
                raw = await reply.text()
        chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
        assert len([chunk for chunk in chunks if chunk.get("usage")]) == asked
        assert len([chunk for chunk in chunks if not chunk["choices"]]) == asked
        for chunk in chunks:
            assert "prompt_token_ids" not in chunk
            assert all("token_ids" not in choice for choice in chunk["choices"])
            assert all(choice.get("logprobs") is None for choice in chunk["choices"])
