"""Failing backends, agents that disconnect, and stores that are slow or down.

In each case the agent gets an error of its own protocol in bounded time, and the span records the
error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from agl_core.proxy import LLMProxy
from agl_core.types import Span
from agl_testing.models import Reply, ScriptedModels
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

__all__ = ["BackendFaultTests", "StoreFaultTests"]

BOUND = 30.0
"""Seconds within which every call must have ended."""


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

    async def test_an_unknown_model_is_the_agents_mistake(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            _, llm = await attempt_of(proxy, proxy_store)
            async with post(llm.endpoint, "/chat/completions", model="nobody") as reply:
                assert 400 <= reply.status < 500

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
        assert await failure(proxy, proxy_store, stream=stream) >= 500

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
        assert await failure(proxy, proxy_store, stream=stream) >= 500

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
                (Reply(garbage=b"oops"), 502),
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


class StoreFaultTests(ProxyTests):
    """Stores that are slow, or down for a while."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_slow_store_has_the_span_before_the_agent_its_answer(
        self, proxy: LLMProxy, proxy_store: TroubledStore, stream: bool
    ):
        proxy_store.delay = 0.3
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, stream=stream) == ANSWER.text
            assert len(await spans_of(proxy_store, rollout)) == 1

    async def test_spans_outlast_a_store_that_is_gone_for_a_while(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            proxy_store.gone = True
            call = asyncio.ensure_future(chat(llm.endpoint))
            assert await soon(lambda: bool(models.requests))
            await asyncio.wait({call}, timeout=0.5)  # a proxy may or may not wait for the span
            proxy_store.gone = False
            assert await asyncio.wait_for(call, BOUND) == ANSWER.text
            await proxy.flush()
            assert len(await spans_of(proxy_store, rollout)) == 1


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
