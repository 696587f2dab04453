"""Measures the CPU time of single calls of the memory and SQLite stores, also beside a checkout.

``AGL_BENCH_BESIDE=/path/to/checkout python3 dev.py bench store_calls`` runs this file alternately
with this checkout's interpreter and with the other's (``.venv/bin/python`` in it), and prints what
one call costs in each. Ratios above 1 mean that this checkout is faster. The file uses only names
that both checkouts have.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest, Span
from agl_store_memory import InMemoryLightningStore

LARGE = {f"gen_ai.attribute.{number:02d}": "x" * 150 for number in range(32)}
SMALL = {"model": "m", "tokens": 128}
TASK = {"question": "Which room?", "options": [1, 2, 3], "meta": {"id": 7, "tags": ["a", "b"]}}
ROUNDS = 5
CALLS = 4000

Calls = Sequence[Callable[[], Coroutine[Any, Any, Any]]]


def span_of(claimed: Any, number: int, attributes: dict[str, Any]) -> Span:
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=claimed.rollout_id,
        attempt_id=claimed.attempt.attempt_id,
        sequence_id=number,
    )


async def measure(store: LightningStore, count: int) -> dict[str, float]:
    """Return the CPU time of one call in microseconds, by name of the call."""
    costs: dict[str, float] = {}

    async def timed(name: str, calls: Calls) -> list[Any]:
        gc.collect()
        gc.freeze()
        start = time.process_time()
        results = [await call() for call in calls]
        costs[name] = (time.process_time() - start) / len(calls) * 1e6
        return results

    await cycle(store)  # the first rollout that ends loads the installed listeners
    await timed("enqueue_rollout", [lambda: store.enqueue_rollout(TASK)] * count)
    claimed = await timed("dequeue_rollout", [lambda: store.dequeue_rollout("w")] * count)
    for name, number, attributes in (("small", 1, SMALL), ("large", 2, LARGE)):
        spans = [span_of(item, number, attributes) for item in claimed]
        await timed(f"add_span, {name}", [lambda span=span: store.add_span(span) for span in spans])
    await timed(
        "update_attempt",
        [
            lambda item=item: store.update_attempt(
                item.rollout_id, item.attempt.attempt_id, status="succeeded"
            )
            for item in claimed
        ],
    )
    await timed("update_worker", [lambda: store.update_worker("w", {"cpu": 1})] * count)

    newest: dict[str, Any] = {"sort_by": "end_time", "sort_order": "desc", "limit": 50}
    await store.query_rollouts(status_in=["succeeded"], **newest)
    page = [lambda: store.query_rollouts(status_in=["succeeded"], **newest)] * 100
    await timed("page of 50 rollouts", page)
    last = claimed[-1]
    await store.add_many_spans([span_of(last, number, LARGE) for number in range(3, 53)])
    read = [lambda: store.query_spans(last.rollout_id, limit=50)] * 100
    await timed("query_spans, 50 large", read)

    await timed("cycle", [lambda: cycle(store)] * (count // 10))
    requests = [EnqueueRolloutRequest(input=None) for _ in range(20_000 - count)]
    await store.enqueue_many_rollouts(requests)
    search = [lambda: store.query_rollouts(rollout_id_contains="abc", limit=50)] * 20
    await timed("rollout_id_contains in 20,000", search)
    return costs


async def measure_both(count: int) -> dict[str, dict[str, float]]:
    from agl_store_sqlite import SqliteLightningStore

    memory = await measure(InMemoryLightningStore(), count)
    with tempfile.TemporaryDirectory() as folder:
        sqlite = SqliteLightningStore(str(Path(folder, "store.db")))
        try:
            return {"memory": memory, "sqlite": await measure(sqlite, count // 4)}
        finally:
            await sqlite.close()


async def cycle(store: LightningStore) -> None:
    """Run one rollout with a runner's calls, with five large spans; read it with an algorithm's."""
    made = await store.enqueue_rollout(TASK)
    claimed = await store.dequeue_rollout("w")
    assert claimed is not None
    for number in range(1, 6):
        await store.get_next_span_sequence_id(claimed.rollout_id, claimed.attempt.attempt_id)
        await store.add_span(span_of(claimed, number, LARGE))
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    (done,) = await store.wait_for_rollouts(rollout_ids=[made.rollout_id])
    await store.query_spans(done.rollout_id)


def measured_in(checkout: Path, python: str) -> dict[str, dict[str, float]]:
    output = subprocess.check_output([python, str(Path(__file__).resolve())], cwd=checkout)
    return json.loads(output)


@pytest.mark.benchmark
@pytest.mark.timeout(900)
def test_bench_store_calls() -> None:
    here = Path(__file__).resolve().parents[2]
    beside = os.environ.get("AGL_BENCH_BESIDE")
    ours: list[dict[str, dict[str, float]]] = []
    theirs: list[dict[str, dict[str, float]]] = []
    for _ in range(ROUNDS):
        ours.append(measured_in(here, sys.executable))
        if beside:
            theirs.append(measured_in(Path(beside), str(Path(beside, ".venv/bin/python"))))
    for store in ours[0]:
        title = f"CPU time of one call, {store}"
        print(f"\n{title:32}{'here':>12}{'beside' if beside else '':>12}")
        for name in ours[0][store]:
            # The minimum of all rounds: other processes can only increase the time.
            cost = min(run[store][name] for run in ours)
            line = f"{name:32}{cost:>9,.1f} us"
            if theirs:
                other = min(run[store][name] for run in theirs)
                line += f"{other:>9,.1f} us{other / cost:>8.2f}"
            print(line)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure_both(CALLS))))
