"""Measures the cost of spans and of recorded model calls, on the agent's thread and to the store.

``emit_reward`` appends to a queue. It waits for no other thread's work, holds no lock over I/O, and
calls no network; `tests/plugins/agl_tracer_otel/test_recording.py` holds it to that. Its maxima are
runs of Python's garbage collector, which any allocation may start and whose time grows with the
objects of the program, and interruptions by other programs and threads. The lines below each figure
leave the collector out, and show plain Python at the same moments.

Run ``python tests/benchmark/bench_tracer.py``, or ``pytest -m benchmark -s tests/benchmark``.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import SpanLimits, TracerProvider, sampling

from agl_core.emitter import emit_reward
from agl_core.errors import StoreUnavailableError
from agl_core.otel._convert import to_span
from agl_core.store import encode_span
from agl_core.types import Span
from agl_scripted import Reply, openai as scripted
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer, model_calls as recording_of_calls

ATTRIBUTES = {f"gen_ai.attribute.{number:02d}": "x" * 150 for number in range(32)}
TOKENS = {"prompt_token_ids": list(range(4000)), "response_token_ids": list(range(1000))}
SPANS_PER_ROLLOUT = 10


class SlowStore(InMemoryLightningStore):
    """A store with the latency of a server across the network."""

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        await asyncio.sleep(0.005)
        return await super().add_many_spans(spans)


class DownStore(InMemoryLightningStore):
    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        raise StoreUnavailableError("down")


def micros(count: int, run) -> float:
    """Return the CPU time per call in microseconds, the best of three runs."""
    best = float("inf")
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        for _ in range(count):
            run()
        best = min(best, (time.process_time() - start) / count * 1e6)
    return best


def parts() -> None:
    limits = SpanLimits(*[SpanLimits.UNSET] * 8)
    provider = TracerProvider(
        sampler=sampling.ALWAYS_ON, span_limits=limits, shutdown_on_exit=False
    )
    tracer = provider.get_tracer("bench")

    def bare(attributes=None) -> None:
        tracer.start_span("x", attributes=attributes).end()

    sdk = micros(20_000, bare)
    print(f"\n{'bare span of the SDK, start to end':46}{sdk:>9.1f} us")
    for name, attributes, count in (
        ("no attributes", {}, 20_000),
        ("32 attributes of 150 characters", ATTRIBUTES, 5_000),
        ("5,000 token ids", TOKENS, 500),
    ):
        span = tracer.start_span("x", attributes=attributes)
        span.end()
        readable = span._readable_span()  # type: ignore[attr-defined]
        ours = to_span(readable, "r", "a", 1)
        for what, cost in (
            ("the SDK's part", micros(count, lambda a=attributes: bare(a))),
            ("conversion", micros(count, lambda r=readable: to_span(r, "r", "a", 1))),
            ("encoding", micros(count, lambda o=ours: encode_span(o))),
        ):
            print(f"{name + ': ' + what:46}{cost:>9.1f} us {cost / sdk:>9.1f} bare spans")


async def rollouts(tracer: OtelTracer, store: InMemoryLightningStore, count: int) -> None:
    for index in range(count):
        rollout = await store.start_rollout(index)
        async with tracer.trace_context(
            rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
        ):
            for _ in range(SPANS_PER_ROLLOUT):
                emit_reward(0.5)
        tracer.get_last_trace()


def whole_way() -> None:
    store, tracer, count = InMemoryLightningStore(), OtelTracer(), 500
    with tracer.lifespan(store):
        asyncio.run(rollouts(tracer, store, 50))
        gc.collect()
        start, cpu = time.perf_counter(), time.process_time()
        asyncio.run(rollouts(tracer, store, count))
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    per_span = cpu / count / SPANS_PER_ROLLOUT * 1e6
    print(
        f"\n{'start_rollout, 10 rewards, get_last_trace':46}{count / wall:>9,.0f} /s"
        f"   {per_span:.1f} us of CPU per span, everything included"
    )


class Collector:
    """Sums the seconds that Python's garbage collector ran, in any thread of this process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._began


def plain_python() -> None:
    """Work of about the length of one ``emit_reward`` that shares nothing with the export."""
    total = 0
    for number in range(600):
        total += number * number


def on_the_agents_thread(name: str, store: InMemoryLightningStore, pause: float) -> None:
    """Measure the time of each emit_reward on the agent's thread, and of plain Python beside it.

    Both meet the same interruptions: another program on the core, or a thread of this process that
    holds the interpreter's lock. Plain Python allocates nothing, so it starts no collection.
    """
    tracer = OtelTracer(flush_timeout=0.1)
    collector = Collector()
    times: list[float] = []
    alone: list[float] = []
    plain: list[float] = []

    async def agent() -> None:
        rollout = await store.start_rollout("task")
        async with tracer.trace_context(
            rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
        ):
            for _ in range(2000):
                collected, start = collector.seconds, time.perf_counter()
                emit_reward(0.5)
                middle = time.perf_counter()
                collected = collector.seconds - collected
                plain_python()
                plain.append((time.perf_counter() - middle) * 1e6)
                times.append((middle - start) * 1e6)
                alone.append((middle - start - collected) * 1e6)
                if pause:
                    await asyncio.sleep(pause)

    gc.callbacks.append(collector)
    try:
        with tracer.lifespan(store):
            try:
                asyncio.run(agent())
            except StoreUnavailableError:
                name += " (trace failed, as it must)"
    finally:
        gc.callbacks.remove(collector)
    parts = {name: times, "  without the collector": alone, "  plain Python beside it": plain}
    for label, found in parts.items():
        found.sort()
        p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
        print(f"{label:60} p50 {p50:>7.1f} us   p99 {p99:>7.1f} us   max {found[-1]:>9.1f} us")


CALLS = 500
MESSAGES = [
    {"role": ("user", "assistant")[i % 2], "content": f"Message {i}. " * 10} for i in range(20)
]
LARGE: dict[str, Any] = {
    "model": "m",
    "messages": MESSAGES,
    "logprobs": True,
    "extra_body": {"return_token_ids": True},
}


class Client:
    """A client of which only the two patched methods are left; their own cost is negligible."""

    base_url = openai.OpenAI(api_key="none").base_url

    def request(self, cast_to: Any, options: Any) -> Any:
        return self._process_response(response=options.response)

    def _process_response(self, *, response: Any) -> Any:
        return response


class Recorded(Client):
    request = recording_of_calls._request(Client.request, "openai")
    _process_response = recording_of_calls._process_response(Client._process_response, "openai")


def model_calls() -> None:
    """Measure what recording a model call adds to the time of the agent's thread."""
    asked = {**LARGE, "return_token_ids": True}
    reply = Reply("word " * 300)
    whole = [json.dumps(scripted.chat(asked, reply, "response-1")).encode()]
    events = scripted.chat_stream({**asked, "stream": True}, reply, "response-1")
    chunks = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    print("\na recorded call as the agent's thread sees it, without the client's own work")
    for name, body in (
        ("20 messages, 300 tokens", whole),
        (f"the same as a stream of {len(chunks)} chunks", chunks),
    ):
        bare, traced = asyncio.run(both(body))
        added = [(traced[at] - bare[at]) * 1e3 for at in (CALLS // 2, CALLS * 99 // 100)]
        print(f"{name:46} p50 {added[0]:>6.3f} ms   p99 {added[1]:>6.3f} ms")


async def both(body: list[bytes]) -> tuple[list[float], list[float]]:
    """Return sorted times of a call, in seconds: not recorded, and recorded."""
    store, tracer = InMemoryLightningStore(), OtelTracer()
    times: dict[type[Client], list[float]] = {Client: [], Recorded: []}
    with tracer.lifespan(store):
        rollout = await store.start_rollout("task")
        async with tracer.trace_context(
            rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id
        ):
            for _ in range(CALLS):
                for client, spent in times.items():
                    options = options_of(body)
                    start = time.thread_time()
                    response = client().request(None, options)
                    for _ in response.iter_bytes() if len(body) > 1 else ():
                        pass
                    spent.append(time.thread_time() - start)
                    await asyncio.sleep(0.001)
        spans = await store.query_spans(rollout.rollout_id)
    ids: list[Any] = [span.attributes["response_token_ids"] for span in spans]
    assert len(ids) == CALLS
    assert min(map(len, ids)) >= 300
    return sorted(times[Client]), sorted(times[Recorded])


def options_of(body: list[bytes]) -> Any:
    """Return the options of a call, with the response that it gets."""
    httpx = importlib.import_module(type(Client.base_url).__module__.partition(".")[0])

    class Chunks(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from body

    request = httpx.Request("POST", f"{Client.base_url}chat/completions", json=LARGE)
    response = httpx.Response(200, stream=Chunks(), request=request)
    if len(body) == 1:
        response.read()
    return SimpleNamespace(
        url="/chat/completions", method="post", headers={}, json_data=LARGE, response=response
    )


@pytest.mark.benchmark
def test_tracer_benchmark() -> None:
    logging.getLogger("agl_core").setLevel(logging.ERROR)
    parts()
    whole_way()
    model_calls()
    print("\nemit_reward as the agent's thread sees it")
    on_the_agents_thread("memory store, in a row", InMemoryLightningStore(), 0.0)
    on_the_agents_thread("memory store, every millisecond", InMemoryLightningStore(), 0.001)
    on_the_agents_thread("store 5 ms away, every millisecond", SlowStore(), 0.001)
    on_the_agents_thread("store down, every millisecond", DownStore(), 0.001)


if __name__ == "__main__":
    test_tracer_benchmark()
