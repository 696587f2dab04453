"""Failing backends, and agents that disconnect.

In each case the agent gets an error of its own protocol in bounded time, and the span records the
error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from agl_core.proxy import LLMProxy
from agl_core.types import Span
from agl_scripted import Reply, ScriptedModels
from agl_testing.proxy.base import (
    ANSWER,
    ProxyTests,
    attempt_of,
    backend,
    chat,
    post,
    running,
    soon,
    spans_of,
)
from agl_testing.proxy.stores import TroubledStore
from agl_testing.relay import FaultyRelay
from agl_testing.suite import requires

__all__ = ["BackendFaultTests"]

BOUND = 30.0
"""Seconds within which every call must have ended."""


def event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


STREAM_START = event({"role": "assistant", "content": "half"}, None)
STREAM_END = event({}, "stop")


class BackendFaultTests(ProxyTests):
    """Failing backends, and agents that disconnect."""

    @pytest.mark.parametrize("status", [400, 401, 404])
    async def test_the_backends_error_is_the_agents(
        self,
        proxy: LLMProxy,
        proxy_store: TroubledStore,
        models: ScriptedModels,
        status: int,
    ):
        models.script = [Reply(error_status=status, error_message="no such luck")]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions") as reply:
                assert reply.status == status
                assert "no such luck" in (await reply.json())["error"]["message"]
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    async def test_a_truncated_stream_is_an_error(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("a b c d e f", drop_after=3)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            try:
                text = await asyncio.wait_for(chat(llm.endpoint, stream=True), 30)
            except (aiohttp.ClientError, RuntimeError):
                text = None
            assert text is None, "a truncated stream looks complete"
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    async def test_a_stream_that_breaks_off_does_not_look_complete(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("a b c d e f", drop_after=3)]
        raw = ""
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", stream=True) as reply:
                try:
                    async for line in reply.content:
                        raw += line.decode()
                except aiohttp.ClientError:
                    pass  # a connection that breaks says so as well
                else:
                    last = [line for line in raw.splitlines() if line.startswith("data: ")][-1]
                    error = json.loads(last[6:])["error"]
                    assert set(error) >= {"message", "type", "code"}
                    assert error["message"]
        assert "[DONE]" not in raw
        assert " b" in raw

    @pytest.mark.parametrize(
        "event",
        [
            b"{oops",
            b"[1]",
            b'{"choices": 5}',
        ],
    )
    async def test_an_odd_event_reaches_the_agent_and_is_named(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels, event: bytes
    ):
        raw = STREAM_START + b"data: " + event + b"\n\ndata: [DONE]\n\n"
        models.script = [Reply(garbage=raw)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", stream=True) as reply:
                body = await asyncio.wait_for(reply.read(), BOUND)
            (span,) = await spans_of(proxy_store, rollout)
        assert b"data: " + event in body
        assert body.endswith(b"data: [DONE]\n\n")
        assert span.attributes["agl.proxy.not_understood"]
        assert "half" in str(span.attributes.get("gen_ai.output.messages"))

    async def test_an_error_event_is_the_error_of_the_call(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        event = b'data: {"error": {"message": "no such luck", "code": 500}}\n\n'
        models.script = [Reply(garbage=STREAM_START + event + b"data: [DONE]\n\n")]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            with pytest.raises((aiohttp.ClientError, RuntimeError)):
                await asyncio.wait_for(chat(llm.endpoint, stream=True), BOUND)
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"
        assert span.status.description == "no such luck"
        assert "half" in str(span.attributes.get("gen_ai.output.messages"))

    async def test_a_stream_may_have_comments_and_other_line_ends(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        events = [STREAM_START, STREAM_END, b"data: [DONE]\n\n"]
        raw = b": a comment\n\n" + b"".join(events)
        models.script = [Reply(garbage=raw), Reply(garbage=raw.replace(b"\n", b"\r\n"))]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            for _ in models.script:
                assert await chat(llm.endpoint, stream=True) == "half"
            spans = await spans_of(proxy_store, rollout)
        assert [span.status.status_code for span in spans] == ["OK", "OK"]

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("choices", ["5", "[5]", '[{"index": 0, "message": 5, "delta": 5}]'])
    async def test_an_odd_answer_is_stored(
        self,
        proxy: LLMProxy,
        proxy_store: TroubledStore,
        models: ScriptedModels,
        choices: str,
        stream: bool,
    ):
        body = f'{{"id": "x", "object": "chat.completion", "model": "m", "choices": {choices}}}'
        raw = f"data: {body}\n\ndata: [DONE]\n\n" if stream else body
        models.script = [Reply(garbage=raw.encode()), ANSWER]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", stream=stream) as reply:
                assert reply.status in (200, 502)
                await reply.read()
            assert await chat(llm.endpoint) == ANSWER.text
            spans = await spans_of(proxy_store, rollout)
        assert len(spans) == 2
        assert (spans[0].status.status_code == "ERROR") == (reply.status == 502)

    async def test_the_backend_says_when_a_stream_ends(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        # Some servers give no reason for the end, and some no last line end.
        done = b"data: [DONE]"
        models.script = [
            Reply(garbage=STREAM_START + done + b"\n\n"),
            Reply(garbage=STREAM_START + STREAM_END + done + b"\n"),
            Reply(garbage=STREAM_START + STREAM_END),
        ]
        told: list[str] = []
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            for _ in models.script:
                async with post(llm.endpoint, "/chat/completions", stream=True) as reply:
                    told.append(await reply.text())
            spans = await spans_of(proxy_store, rollout)
        assert ["half" in text for text in told] == [True] * 3
        assert ["[DONE]" in text for text in told[:2]] == [True, True]
        assert [span.status.status_code for span in spans] == ["OK"] * 3

    async def test_odd_parameters_are_the_backends_to_judge(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        options = {"seed": 2**70, "stop": ["a", 1], "logit_bias": {"1": 2}, "stream_options": None}
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, **options) == ANSWER.text
            (span,) = await spans_of(proxy_store, rollout)
        assert models.requests[0].body["seed"] == 2**70
        assert json.loads(str(span.attributes["gen_ai.request.seed"])) == 2**70
        assert json.loads(str(span.attributes["gen_ai.request.stop_sequences"])) == ["a", 1]
        assert json.loads(str(span.attributes["gen_ai.request.logit_bias"])) == {"1": 2}

    async def test_an_unknown_model_is_the_agents_mistake(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", model="nobody") as reply:
                assert reply.status == 404
                told = await reply.json()
            assert await chat(llm.endpoint) == ANSWER.text
            spans = await spans_of(proxy_store, rollout)
        assert told["error"]["type"] in ("not_found_error", "invalid_request_error")
        assert [span.status.status_code for span in spans] == ["ERROR", "OK"]
        assert [request.body["model"] for request in models.requests] == ["m"]

    async def test_a_missing_backend_is_an_error(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
    ):
        async with FaultyRelay(models.port) as relay:
            gone = f"http://127.0.0.1:{relay.port}/v1"
        proxy = make_proxy(model_list=[backend(models, api_base=gone)], store=proxy_store)
        assert await failure(proxy, proxy_store) >= 500
        assert models.requests == []

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_backend_that_takes_too_long_is_an_error(
        self,
        make_proxy: Callable[..., LLMProxy],
        proxy_store: TroubledStore,
        models: ScriptedModels,
        stream: bool,
    ):
        models.script = [Reply("late", delay=60)]
        proxy = make_proxy(model_list=[backend(models, timeout=0.3)], store=proxy_store)
        assert await failure(proxy, proxy_store, stream=stream) == 504

    @pytest.mark.parametrize("garbage", [b"<html>oops</html>", b"[1, 2]", b""])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_garbage_is_an_error(
        self,
        proxy: LLMProxy,
        proxy_store: TroubledStore,
        models: ScriptedModels,
        garbage: bytes,
        stream: bool,
    ):
        models.script = [Reply(garbage=garbage)]
        assert await failure(proxy, proxy_store, stream=stream) == 502

    async def test_a_busy_backends_advice_reaches_the_agent(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        advice = {"retry-after": "7"}
        models.script = [Reply(error_status=429, error_message="slow down", headers=advice)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions") as reply:
                assert reply.status == 429
                assert reply.headers["retry-after"] == "7"
                assert "slow down" in (await reply.json())["error"]["message"]
            await proxy.flush()
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    @requires("translation")
    async def test_errors_are_in_the_agents_own_protocol(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            for reply, status in (
                (Reply(error_status=400, error_message="no such luck"), 400),
                *((Reply(garbage=garbage), 502) for garbage in (b"oops", b"[1, 2]", b"5")),
            ):
                models.script = [reply]
                async with post(llm.endpoint, "/messages", max_tokens=9) as answer:
                    body = await answer.json()
                    assert answer.status == status
                assert body["type"] == "error"
                assert set(body["error"]) == {"type", "message"}

    async def test_an_answer_after_the_end_of_its_attempt_is_stored(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=0.3)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            call = asyncio.ensure_future(chat(llm.endpoint))
            assert await soon(lambda: bool(models.requests))
            ids = (rollout.rollout_id, rollout.attempt.attempt_id)
            await proxy_store.update_attempt(*ids, status="succeeded")
            assert await call == "late"
            (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code != "ERROR"
        ended = await proxy_store.get_rollout_by_id(rollout.rollout_id)
        assert ended is not None
        assert ended.status == "succeeded"

    async def test_a_call_without_a_stream_ends_with_its_agent(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        models.script = [Reply("late", delay=60)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            call = asyncio.ensure_future(chat(llm.endpoint))
            assert await soon(lambda: bool(models.requests))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await soon(lambda: models.disconnects == 1)
            spans: list[Span] = []
            async with asyncio.timeout(BOUND):
                while not spans:
                    await proxy.flush()
                    spans = await spans_of(proxy_store, rollout)
        assert spans[0].status.status_code == "ERROR"


async def failure(proxy: LLMProxy, store: TroubledStore, **body: Any) -> int:
    """Make a call that must fail; return its HTTP status.

    The call must end in time with an error in OpenAI's form, and its span must record the error.
    """
    async with running(proxy):
        rollout, llm = await attempt_of(proxy, store)
        async with asyncio.timeout(BOUND), post(llm.endpoint, "/chat/completions", **body) as reply:
            told: Any = await reply.json()
        await proxy.flush()
        (span,) = await spans_of(store, rollout)
    assert isinstance(told["error"]["message"], str)
    assert told["error"]["message"]
    assert span.status.status_code == "ERROR"
    assert span.status.description
    return reply.status
