"""Measures the memory store, beside a plain dict on the same machine.

Run ``python tests/benchmark/bench_store.py``, or ``pytest -m benchmark -s tests/benchmark``.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agl_core.store import encode_span
from agl_core.types import EnqueueRolloutRequest, Span
from agl_store_memory import InMemoryLightningStore

ATTRIBUTES = {f"gen_ai.attribute.{number:02d}": "x" * 150 for number in range(32)}
TASK = {"question": "Which room?", "options": [1, 2, 3], "meta": {"id": 7, "tags": ["a", "b"]}}


def make_spans(rollout_id: str, attempt_id: str, count: int, first: int = 1) -> list[Span]:
    return [
        Span.from_attributes(
            attributes=ATTRIBUTES,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=number,
            name="llm.call",
            start_time=1.0,
            end_time=2.0,
        )
        for number in range(first, first + count)
    ]


def dict_inserts_per_second(count: int = 500_000) -> float:
    keys = [f"ro-{number:012x}" for number in range(count)]
    table: dict[str, dict[str, Any]] = {}
    start = time.perf_counter()
    for key in keys:
        table[key] = {"id": key, "status": "queuing", "start_time": time.time()}
    return count / (time.perf_counter() - start)


class Report:
    """Prints one line per measurement: rate, percentiles, and share of the plain dict's rate."""

    def __init__(self) -> None:
        self.limit = dict_inserts_per_second()
        print(f"\n{'plain dict inserts':34}{self.limit:>12,.0f}/s")

    def rate(self, name: str, count: int, seconds: float) -> float:
        rate = count / seconds
        micros = seconds / count * 1e6
        print(f"{name:34}{rate:>12,.0f}/s {micros:>9.1f} us  1/{self.limit / rate:.0f} of a dict")
        return rate

    def latency(self, name: str, seconds: list[float]) -> None:
        ordered = sorted(seconds)
        p50, p99 = (ordered[int(len(ordered) * share)] * 1e3 for share in (0.5, 0.99))
        print(f"{name:34}{'':>14} p50 {p50:.3f} ms  p99 {p99:.3f} ms")


async def timed(calls: list[Callable[[], Coroutine[Any, Any, Any]]]) -> tuple[float, list[Any]]:
    gc.collect()
    gc.freeze()
    start = time.perf_counter()
    results = [await call() for call in calls]
    elapsed = time.perf_counter() - start
    gc.unfreeze()
    return elapsed, results


async def latencies(call: Callable[[], Coroutine[Any, Any, Any]], count: int = 200) -> list[float]:
    taken: list[float] = []
    await call()
    for _ in range(count):
        start = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - start)
    return taken


async def bench_lifecycle(report: Report, count: int) -> None:
    store = InMemoryLightningStore()
    seconds, _ = await timed([lambda: store.enqueue_rollout(TASK)] * count)
    report.rate("enqueue_rollout", count, seconds)
    seconds, claimed = await timed([lambda: store.dequeue_rollout("w")] * count)
    report.rate("dequeue_rollout", count, seconds)

    def update(item: Any, status: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
        ids = (item.rollout_id, item.attempt.attempt_id)
        return lambda: store.update_attempt(*ids, status=status)

    seconds, _ = await timed([update(item, "running") for item in claimed])
    report.rate("update_attempt(running)", count, seconds)
    seconds, _ = await timed([update(item, "succeeded") for item in claimed])
    report.rate("update_attempt(succeeded)", count, seconds)

    batch = [EnqueueRolloutRequest(input=TASK) for _ in range(1000)]
    seconds, _ = await timed([lambda: store.enqueue_many_rollouts(batch)] * (count // 1000))
    report.rate("enqueue_many_rollouts(1000)", count, seconds)

    finished = {"status_in": ["succeeded"], "sort_by": "end_time", "sort_order": "desc"}
    page = await latencies(lambda: store.query_rollouts(**finished, limit=50))
    report.latency(f"page of 50 by end_time of {2 * count:,}", page)
    everything = await latencies(lambda: store.query_rollouts(sort_by="start_time", limit=50))
    report.latency(f"page of 50 by start_time of {2 * count:,}", everything)


async def bench_spans(report: Report, count: int) -> None:
    store = InMemoryLightningStore()
    started = await store.start_rollout(TASK)
    ids = (started.rollout_id, started.attempt.attempt_id)
    spans = make_spans(*ids, count)

    def add(span: Span) -> Callable[[], Coroutine[Any, Any, Any]]:
        return lambda: store.add_span(span)

    start = time.perf_counter()
    for span in spans:
        encode_span(span)
    report.rate("(encoding a span to JSON)", count, time.perf_counter() - start)
    seconds, _ = await timed([add(span) for span in spans])
    report.rate("add_span, 32 x 150 characters", count, seconds)

    store = InMemoryLightningStore()
    started = await store.start_rollout(TASK)
    ids = (started.rollout_id, started.attempt.attempt_id)
    spans = make_spans(*ids, count)
    seconds, _ = await timed([lambda: store.add_many_spans(spans)])
    report.rate("add_many_spans, 32 x 150", count, seconds)
    report.latency(
        f"100 of {count:,} spans of one rollout",
        await latencies(lambda: store.query_spans(ids[0], limit=100, offset=count // 2)),
    )


async def bench_million(report: Report, rollouts: int) -> None:
    store = InMemoryLightningStore(eviction_memory_threshold=1 << 40)
    ids: list[tuple[str, str]] = []
    for _ in range(rollouts):
        started = await store.start_rollout(None)
        ids.append((started.rollout_id, started.attempt.attempt_id))
    payload = {"model": "m", "tokens": 128}
    for rollout_id, attempt_id in ids:
        spans = [
            Span.from_attributes(
                attributes=payload, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=number
            )
            for number in range(100)
        ]
        await store.add_many_spans(spans)
    target = ids[rollouts // 2][0]
    name = f"100 spans among {rollouts * 100:,}"
    report.latency(name, await latencies(lambda: store.query_spans(target)))
    encoded = await latencies(lambda: store.query_encoded_spans(target))
    report.latency(f"{name}, encoded", encoded)


async def bench_memory() -> None:
    store = InMemoryLightningStore()
    started = await store.start_rollout(TASK)
    ids = (started.rollout_id, started.attempt.attempt_id)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for first in range(1, 10_001, 100):
        await store.add_many_spans(make_spans(*ids, 100, first))
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    accounted = (await store.statistics()).get("total_span_bytes", 0)
    title = "memory of 10,000 spans, 32 x 150"
    print(f"{title:34}{used / 1e6:>12.1f} MB, {accounted / 1e6:.1f} told")


async def main(count: int = 20_000, rollouts: int = 10_000) -> None:
    report = Report()
    await bench_lifecycle(report, count)
    await bench_spans(report, count)
    await bench_memory()
    await bench_million(report, rollouts)


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_bench_store() -> None:
    asyncio.run(main())


if __name__ == "__main__":
    asyncio.run(main())
