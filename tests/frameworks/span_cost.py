"""What recording one model call costs the agent's thread; no network, no server in the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from agl_core.store import InMemoryLightningStore
from agl_core.tracer import OtelTracer
from agl_testing import Reply
from agl_testing.models import openai as scripted

__all__ = ["chat_request", "chat_response", "print_cost"]

TOKENS = 300


def chat_request() -> dict[str, Any]:
    """Return a request of 20 messages and a tool, with token ids asked for."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": f"Message {i}. " * 10} for i in range(20)]
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    return {
        "model": "m",
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "extra_body": {"return_token_ids": True},
        "logprobs": True,
    }


def chat_response() -> Any:
    """Return the client library's object of an answer of some hundred tokens."""
    from openai.types.chat import ChatCompletion

    asked = {**chat_request(), "return_token_ids": True}
    return ChatCompletion.model_validate(
        scripted.chat(asked, Reply("word " * TOKENS), "response-1")
    )


def print_cost(name: str, tracer: OtelTracer, call: Callable[[], Any]) -> float:
    """Time ``call`` within a trace; print percentiles in ms per span and return the median.

    Args:
        name: What to print.
        tracer: Not initialised.
        call: Makes one recorded call when called, and costs nothing by itself.
    """
    times: list[float] = []
    store = InMemoryLightningStore()

    async def agent() -> int:
        rollout = await store.start_rollout("task")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }
        async with tracer.trace_context(**ids):
            for _ in range(200):
                start = time.thread_time()  # other processes may have the processor
                call()
                times.append((time.thread_time() - start) * 1e3)
                await asyncio.sleep(0.001)
        return len(await store.query_spans(rollout.rollout_id))

    with tracer.lifespan(store):
        spans = asyncio.run(agent())
    times.sort()
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    print(f"\n{name:46} p50 {p50:.3f} ms   p99 {p99:.3f} ms   ({spans} spans)")
    return p50
