"""Measures the cost of recording one model call in the agent's thread, without a server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from agl_scripted import Reply, openai as scripted
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer

__all__ = ["SIZES", "chat_request", "chat_response", "chat_stream", "print_cost"]

SIZES = {"large": (20, 300), "small": (1, 5)}
"""Messages and tokens of a call; only the large one has a tool, token ids and log-probabilities."""
SPANS = 400


def chat_request(size: str) -> dict[str, Any]:
    """Return a request; see :data:`SIZES`."""
    roles = ("user", "assistant")
    count, _ = SIZES[size]
    messages = [{"role": roles[i % 2], "content": f"Message {i}. " * 10} for i in range(count)]
    if size == "small":
        return {"model": "m", "messages": messages}
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    return {
        "model": "m",
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "extra_body": {"return_token_ids": True},
        "logprobs": True,
    }


def chat_response(size: str) -> Any:
    """Return a response as the client library's object."""
    from openai.types.chat import ChatCompletion

    request = chat_request(size)
    asked = {**request, **request.get("extra_body", {})}
    _, tokens = SIZES[size]
    return ChatCompletion.model_validate(
        scripted.chat(asked, Reply("word " * tokens), "response-1")
    )


class _Decoder:
    """Yields prepared events; the client library's decoder makes events of bytes."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def iter_bytes(self, iterator: Any) -> Iterator[Any]:
        yield from self._events


class _Stream:
    """The client library's stream without the cost of parsing: all chunks are prepared."""

    def __init__(self, events: list[Any], chunks: list[Any]) -> None:
        self._decoder = _Decoder(events)
        self._chunks = iter(chunks)
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._decoder.iter_bytes(None)
        next(self._iterator)
        return next(self._chunks)


def chat_stream(size: str) -> Callable[[], Any]:
    """Return a function that opens a stream of a response, with one chunk per token."""
    from openai._streaming import ServerSentEvent
    from openai.types.chat import ChatCompletionChunk

    request = chat_request(size)
    asked = {**request, **request.get("extra_body", {}), "stream": True}
    _, tokens = SIZES[size]
    sent = list(scripted.chat_stream(asked, Reply("word " * tokens), "response-1"))
    events = [ServerSentEvent(data=json.dumps(chunk)) for chunk in sent]
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in sent]
    return lambda: _Stream(events, chunks)


def print_cost(
    name: str, tracer: OtelTracer, traced: Callable[[], Any], bare: Callable[[], Any]
) -> None:
    """Time calls within a trace; print percentiles of the time that tracing a call adds, in ms.

    For the agent's thread it prints the thread's processor time, which other processes do not
    affect, and the elapsed time, in which the exporter's thread may hold the interpreter's lock.
    For the whole process it prints the processor time of all threads until the store has every
    span.

    Args:
        name: Label of the output.
        tracer: A tracer that is not initialised.
        traced: Makes one recorded call; its own cost must be negligible.
        bare: Makes the same call without recording it.
    """
    store = InMemoryLightningStore()
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "traced": []}

    async def agent() -> tuple[int, float]:
        rollout = await store.start_rollout("task")
        ids: dict[str, Any] = {
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
        }
        before = time.process_time()
        async with tracer.trace_context(**ids):
            for _ in range(SPANS):
                for kind, call in (("bare", bare), ("traced", traced)):
                    processor, passed = time.thread_time(), time.perf_counter()
                    call()
                    passed = time.perf_counter() - passed
                    times[kind].append((time.thread_time() - processor, passed))
                await asyncio.sleep(0.001)
        spent = (time.process_time() - before) / SPANS
        return len(await store.query_spans(rollout.rollout_id)), spent

    with tracer.lifespan(store):
        spans, spent = asyncio.run(agent())

    def added(which: int, share: float) -> float:
        at = int(SPANS * share)
        without, with_it = (sorted(t[which] for t in times[kind])[at] for kind in times)
        return (with_it - without) * 1e3

    print(
        f"\n{name:16} cpu p50 {added(0, 0.5):.3f} p99 {added(0, 0.99):.3f} ms   "
        f"wall p50 {added(1, 0.5):.3f} p99 {added(1, 0.99):.3f} ms   "
        f"all threads {spent * 1e3:.3f} ms   ({spans} spans)"
    )
