"""Limits of one rollout: calls, tokens and rate."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError

from agl_core import waits
from agl_core.genai import get_protocol
from agl_core.types import AttemptedRollout
from agl_proxy_direct.call_span import CallRecord
from agl_proxy_direct.errors import CallError
from agl_proxy_direct.exchange import _tokens_taken
from agl_proxy_direct.limits import Limits, RolloutLimits, most_generated
from agl_scripted import Reply, ScriptedModels


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_without_limits_nothing_is_counted():
    limits = Limits(RolloutLimits())
    for _ in range(1000):
        assert await limits.admit("r") is None
    assert not limits._used


async def test_calls_and_tokens_are_budgets_of_each_rollout():
    limits = Limits(RolloutLimits(calls=2, tokens=100))
    for _ in range(2):
        admitted = await limits.admit("r1")
        assert admitted is not None
        admitted.settle(1)
    with pytest.raises(CallError, match="budget of 2 model calls"):
        await limits.admit("r1")
    admitted = await limits.admit("r2")
    assert admitted is not None
    admitted.settle(120)
    admitted.settle(120)  # counts once
    with pytest.raises(CallError, match="budget of 100 tokens") as caught:
        await limits.admit("r2")
    assert (b"x-should-retry", b"false") in caught.value.headers


async def test_a_rate_limit_allows_bursts_and_returns_retry_after():
    clock = Clock()
    limits = Limits(RolloutLimits(calls_per_minute=30), clock=clock)
    for _ in range(5):  # a burst of ten seconds' worth
        await limits.admit("r")
    with pytest.raises(CallError, match=r"in 2\.0 s") as caught:
        await limits.admit("r")
    assert dict(caught.value.headers)[b"retry-after"] == b"2"
    await limits.admit("another")
    clock.now += 2.0
    await limits.admit("r")
    with pytest.raises(CallError):
        await limits.admit("r")
    clock.now += 3600
    for _ in range(5):
        await limits.admit("r")


@pytest.mark.parametrize("most", [10, 40, 1000, math.inf])
async def test_a_budget_of_tokens_is_exact_whatever_runs_at_the_same_time(most):
    limits = Limits(RolloutLimits(tokens=95))
    served = at_once = highest = 0

    async def call() -> None:
        nonlocal served, at_once, highest
        reserved = await limits.admit("r", most)
        assert reserved is not None
        at_once += 1
        highest = max(highest, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        served += 1
        reserved.settle(10)

    results = await asyncio.gather(*(call() for _ in range(60)), return_exceptions=True)
    assert served == 10  # the tenth exceeds it
    assert [type(each) for each in results if each is not None] == [CallError] * 50
    assert highest == {10: 9, 40: 2}.get(most, 1)


async def test_the_log_says_that_a_call_waits_for_the_budget(monkeypatch, caplog):
    monkeypatch.setattr(waits, "SILENT_SECONDS", 0.0)
    caplog.set_level("INFO")
    limits = Limits(RolloutLimits(tokens=100))
    first = await limits.admit("ro-1", 80)
    assert first is not None
    second = asyncio.ensure_future(limits.admit("ro-1", 80))
    async with asyncio.timeout(10):
        while "Waiting for calls of rollout ro-1 that may use up its 100 tokens" not in caplog.text:
            await asyncio.sleep(0)
    first.settle(10)
    await second


async def test_a_call_that_waits_may_be_cancelled():
    limits = Limits(RolloutLimits(tokens=100))
    first = await limits.admit("r")
    waiting = asyncio.create_task(limits.admit("r"))
    await asyncio.sleep(0)
    waiting.cancel()
    third = asyncio.create_task(limits.admit("r"))
    await asyncio.sleep(0)
    assert first is not None
    first.settle(5)
    assert await third is not None


async def test_limits_are_errors_in_the_agents_protocol(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, spans: Any
):
    proxy = await serve(backend(models), max_calls_per_rollout=1)
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    messages: Any = [{"role": "user", "content": "hi"}]
    async with AsyncOpenAI(base_url=url, api_key="none") as client:  # with its default retries
        await client.chat.completions.create(model="q", messages=messages)
        with pytest.raises(RateLimitError, match="budget of 1 model calls"):
            await client.chat.completions.create(model="q", messages=messages)
    found = await spans()
    assert [s.attributes.get("error.type") for s in found] == [None, "budget_exceeded"]
    assert len(models.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_sixty_calls_at_a_time_keep_to_the_budget(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, stream: bool
):
    proxy = await serve(backend(models), max_tokens_per_rollout=50)
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    messages: Any = [{"role": "user", "content": "hi"}]
    options: Any = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    async def call() -> int:
        answer: Any = await client.chat.completions.create(model="q", messages=messages, **options)
        if not stream:
            return answer.usage.total_tokens
        return [chunk.usage.total_tokens async for chunk in answer if chunk.usage][-1]

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        results = await asyncio.gather(*(call() for _ in range(60)), return_exceptions=True)
    taken = [each for each in results if isinstance(each, int)]
    assert sum(taken[:-1]) < 50 <= sum(taken)
    assert len(models.requests) == len(taken)
    assert {type(each) for each in results} == {int, RateLimitError}


async def test_calls_that_the_agent_leaves_count(serve: Any, backend: Any, claim: AttemptedRollout):
    with ScriptedModels([Reply("word " * 50, chunk_delay=0.02)]) as slow:
        proxy = await serve(backend(slow), max_tokens_per_rollout=300)
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
        messages: Any = [{"role": "user", "content": "x" * 100}]

        async def call_and_leave() -> None:
            stream = await client.chat.completions.create(
                model="q", messages=messages, stream=True, max_tokens=50
            )
            events: Any = aiter(stream)
            await anext(events)
            # Left to the garbage collector, it may be closed while another thread runs.
            await events.aclose()

        served = 0
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            try:
                while served < 40:
                    await call_and_leave()
                    served += 1
            except RateLimitError:
                pass
        assert 1 <= served < 40, "a call that is left early counts what it took"


@pytest.mark.parametrize(
    ("request_", "most"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "n": 2}, 10),
        ({"max_tokens": 5, "n": 2, "prompt": ["a", "b", "c"]}, 30),
        ({"max_tokens": 5, "prompt": [1, 2, 3]}, 5),
        ({"max_tokens": 5, "prompt": [[1, 2], [3]]}, 10),
    ],
)
def test_the_most_that_a_call_may_generate(request_: Any, most: int):
    assert most_generated(request_, get_protocol("completions").choices_of(request_)) == most


IDS = {"prompt_token_ids": [1] * 7, "choices": [{"token_ids": [1] * 3, "message": {"content": ""}}]}
TEXT = {"choices": [{"message": {"content": "x" * 385}}]}


@pytest.mark.parametrize(
    ("response", "error", "tokens"),
    [
        ({**IDS, "usage": {"total_tokens": 12}}, None, 12),
        (IDS, "client_disconnected", 10),
        # What Anthropic says first is not what the whole answer took.
        ({**TEXT, "usage": {"total_tokens": 101}}, "client_disconnected", 200),
        (IDS, "backend_500", 0),
        (IDS, "backend_error", 10),
        ({"choices": [{"token_ids": [1] * 3}], "logprobs": "x" * 9999}, "aborted", 104),
    ],
)
def test_tokens_of_a_call_whose_end_nobody_saw(response: Any, error: str | None, tokens: int):
    call = CallRecord("chat", "POST", "/chat/completions", 0.0, response=response, tries=1)
    call.error = call.error_type = error
    assert _tokens_taken(call, 400) == tokens
