"""Stores that are slow, down for a while, or refuse the spans of one rollout."""

from __future__ import annotations

import asyncio

import pytest

from agl_core.proxy import LLMProxy
from agl_scripted import Reply, ScriptedModels
from agl_testing.proxy.base import (
    ANSWER,
    ProxyTests,
    attempt_of,
    chat,
    post,
    running,
    soon,
    spans_of,
)
from agl_testing.proxy.stores import TroubledStore

__all__ = ["StoreFaultTests"]

BOUND = 30.0
"""Seconds within which every call must have ended."""


class StoreFaultTests(ProxyTests):
    """Stores that are slow, down for a while, or refuse the spans of one rollout."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_slow_store_has_the_span_before_the_agent_its_answer(
        self, proxy: LLMProxy, proxy_store: TroubledStore, stream: bool
    ):
        proxy_store.delay = 0.3
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await chat(llm.endpoint, stream=stream) == ANSWER.text
            assert len(await spans_of(proxy_store, rollout)) == 1

    @pytest.mark.parametrize(("silent", "seconds"), [(False, 0.7), (True, 4.5)])
    async def test_spans_outlast_a_store_that_is_gone_for_a_while(
        self,
        proxy: LLMProxy,
        proxy_store: TroubledStore,
        models: ScriptedModels,
        silent: bool,
        seconds: float,
    ):
        loop = asyncio.get_running_loop()
        models.script = [Reply(ANSWER.text, delay=0.05)]
        async with running(proxy):
            attempts = [await attempt_of(proxy, proxy_store) for _ in range(5)]
            back = loop.time() + seconds
            proxy_store.gone = True
            proxy_store.silent = silent
            calls = [asyncio.ensure_future(chat(llm.endpoint)) for _, llm in attempts]
            assert await soon(lambda: len(models.requests) == len(calls))
            await asyncio.wait(calls, timeout=0.6)  # a proxy may or may not wait for the span
            flush = asyncio.ensure_future(proxy.flush())
            await asyncio.wait({flush}, timeout=max(0.1, back - loop.time()))
            assert not flush.done(), "flush() returned before the spans were stored"
            proxy_store.gone = False
            texts = await asyncio.wait_for(asyncio.gather(*calls), BOUND)
            assert texts == [ANSWER.text] * len(calls)
            await asyncio.wait_for(flush, BOUND)
            await proxy.flush()
            for rollout, _ in attempts:
                assert len(await spans_of(proxy_store, rollout)) == 1
            # Afterwards nothing is held up.
            rollout, llm = await attempt_of(proxy, proxy_store)
            assert await asyncio.wait_for(chat(llm.endpoint), 2) == ANSWER.text
            assert len(await spans_of(proxy_store, rollout)) == 1

    async def test_one_rollout_whose_spans_fail_holds_up_no_other(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        loop = asyncio.get_running_loop()
        async with running(proxy):
            bad, bad_llm = await attempt_of(proxy, proxy_store)
            proxy_store.failing = {bad.rollout_id}
            stuck = [asyncio.ensure_future(chat(bad_llm.endpoint)) for _ in range(3)]
            await asyncio.wait(stuck, timeout=0.3)
            start = loop.time()
            for _ in range(3):
                rollout, llm = await attempt_of(proxy, proxy_store)
                assert await chat(llm.endpoint) == ANSWER.text
                assert len(await spans_of(proxy_store, rollout)) == 1
                await proxy.flush(rollout.rollout_id, rollout.attempt.attempt_id)
            assert loop.time() - start < 3
            proxy_store.failing = set()
            texts = await asyncio.wait_for(asyncio.gather(*stuck), BOUND)
            assert texts == [ANSWER.text] * 3
            await proxy.flush(bad.rollout_id, bad.attempt.attempt_id)
            assert await asyncio.wait_for(chat(bad_llm.endpoint), 2) == ANSWER.text
            spans = await spans_of(proxy_store, bad)
        assert [span.sequence_id for span in spans] == [1, 2, 3, 4]

    async def test_spans_of_an_unknown_attempt_hold_up_no_other(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            llm = proxy.as_resource("ro-unknown", "at-unknown")
            good, good_llm = await attempt_of(proxy, proxy_store)

            async def unknown() -> int:
                async with post(llm.endpoint, "/chat/completions") as reply:
                    await reply.read()
                    return reply.status

            calls = [unknown() if index % 2 else chat(good_llm.endpoint) for index in range(6)]
            answers = await asyncio.wait_for(asyncio.gather(*calls), 5)
            await asyncio.wait_for(proxy.flush(), 5)
            assert answers[0::2] == [ANSWER.text] * 3
            assert len(await spans_of(proxy_store, good)) == 3

    async def test_a_stop_stores_the_spans_that_wait(
        self, proxy: LLMProxy, proxy_store: TroubledStore, models: ScriptedModels
    ):
        proxy_store.delay = 0.5
        models.script = [Reply(error_status=400)]
        async with running(proxy):
            rollout, llm = await attempt_of(proxy, proxy_store)
            # The error may reach the agent before the span is stored.
            async with post(llm.endpoint, "/chat/completions") as reply:
                await reply.read()
        (span,) = await spans_of(proxy_store, rollout)
        assert span.status.status_code == "ERROR"

    async def test_a_stop_ends_when_the_store_refuses(
        self, proxy: LLMProxy, proxy_store: TroubledStore
    ):
        async with running(proxy):
            llm = proxy.as_resource("ro-unknown", "at-unknown")
            async with post(llm.endpoint, "/chat/completions") as reply:
                await reply.read()
            await asyncio.wait_for(proxy.stop(), 5)
            assert not proxy.is_running()
            await proxy.start()
            rollout, good = await attempt_of(proxy, proxy_store)
            assert await chat(good.endpoint) == ANSWER.text
            assert len(await spans_of(proxy_store, rollout)) == 1
