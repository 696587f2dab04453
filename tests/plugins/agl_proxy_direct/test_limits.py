"""Limits of one rollout: calls, tokens and rate."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError

from agl_core.types import AttemptedRollout
from agl_proxy_direct.errors import CallError
from agl_proxy_direct.limits import Limits, RolloutLimits
from agl_testing.models import ScriptedModels


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_limits_nothing_is_counted():
    limits = Limits(RolloutLimits())
    for _ in range(1000):
        limits.admit("r")
        limits.add_tokens("r", 10**9)
    assert not limits._used


def test_calls_and_tokens_are_budgets_of_each_rollout():
    limits = Limits(RolloutLimits(calls=2, tokens=100))
    limits.admit("r1")
    limits.admit("r1")
    with pytest.raises(CallError, match="budget of 2 model calls"):
        limits.admit("r1")
    limits.admit("r2")
    limits.add_tokens("r2", 120)
    with pytest.raises(CallError, match="budget of 100 tokens") as caught:
        limits.admit("r2")
    assert (b"x-should-retry", b"false") in caught.value.headers


def test_a_rate_limit_allows_bursts_and_returns_retry_after():
    clock = Clock()
    limits = Limits(RolloutLimits(calls_per_minute=30), clock=clock)
    for _ in range(5):  # a burst of ten seconds' worth
        limits.admit("r")
    with pytest.raises(CallError, match=r"in 2\.0 s") as caught:
        limits.admit("r")
    assert dict(caught.value.headers)[b"retry-after"] == b"2"
    limits.admit("another")
    clock.now += 2.0
    limits.admit("r")
    with pytest.raises(CallError):
        limits.admit("r")
    clock.now += 3600
    for _ in range(5):
        limits.admit("r")


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
