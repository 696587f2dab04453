"""The baseline keeps the order, respects the queue limit, and reports every rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_algorithm_kit import Baseline
from agl_core.adapter import Adapter
from agl_core.errors import ConfigError
from agl_core.store import LightningStore
from agl_core.types import PromptTemplate, Span
from agl_store_memory import InMemoryLightningStore


class Names(Adapter[Any, Any]):
    def adapt(self, source: Any) -> list[str]:
        return [span.name for span in source]


class Mute(InMemoryLightningStore):
    """A store without events."""

    @property
    def capabilities(self) -> Any:
        return {**super().capabilities, "events": False}


async def work(store: LightningStore, seen: list[Any], pause: float = 0.0) -> None:
    while True:
        claimed = await store.dequeue_rollout("Worker-0", wait=10)
        if claimed is None:
            continue
        seen.append((claimed.mode, claimed.input, claimed.resources_id))
        await asyncio.sleep(pause)
        await store.add_span(
            Span.from_attributes(
                name="step",
                attributes={"colour": "green"},
                rollout_id=claimed.rollout_id,
                attempt_id=claimed.attempt.attempt_id,
                sequence_id=1,
            )
        )
        await store.update_attempt(
            claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
        )


async def run(baseline: Baseline, store: LightningStore, *datasets: Any, pause: float = 0.0) -> Any:
    baseline.set_store(store)
    seen: list[Any] = []
    worker = asyncio.create_task(work(store, seen, pause))
    try:
        await asyncio.wait_for(baseline.run(*datasets), 30)
    finally:
        worker.cancel()
        await asyncio.wait((worker,))
    return seen


@pytest.mark.parametrize("store_class", [InMemoryLightningStore, Mute])
async def test_every_task_in_order_each_epoch(store_class: Any) -> None:
    store = store_class()
    baseline = Baseline(n_epochs=2, max_queue_length=1, polling_interval=0.02)
    prompt = PromptTemplate(template="Hi", engine="f-string")
    baseline.set_initial_resources({"prompt": prompt})
    seen = await run(baseline, store, [1, 2, 3], [4])
    epoch = [("train", n, "default") for n in (1, 2, 3)] + [("val", 4, "default")]
    assert seen == epoch * 2
    default = await store.get_resources_by_id("default")
    assert default is not None
    assert default.resources == {"prompt": prompt}
    assert {rollout.status for rollout in await store.query_rollouts()} == {"succeeded"}


async def test_the_queue_is_never_overfilled() -> None:
    longest = 0

    class Watched(InMemoryLightningStore):
        async def enqueue_many_rollouts(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal longest
            enqueued = await super().enqueue_many_rollouts(*args, **kwargs)
            queuing = await self.query_rollouts(status_in=["queuing", "requeuing"], limit=0)
            longest = max(longest, queuing.total)
            return enqueued

    # The interval is longer than the test's timeout, so only events can wake the baseline.
    baseline = Baseline(max_queue_length=2, polling_interval=60.0)
    seen = await run(baseline, Watched(), list(range(12)), pause=0.005)
    assert [task for _, task, _ in seen] == list(range(12))
    assert longest == 3


@pytest.mark.parametrize(
    ("verbosity", "there", "missing"),
    [
        ("keys", "['colour']", "green"),
        ("key_values", "{'colour': 'green'}", "nothing"),
        ("none", "1 spans", "colour"),
    ],
)
async def test_reports(
    verbosity: Any, there: str, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    baseline = Baseline(span_verbosity=verbosity)
    baseline.set_adapter(Names())
    with caplog.at_level("INFO", logger="agl_algorithm_kit"):
        await run(baseline, InMemoryLightningStore(), ["task"])
    assert "succeeded by Worker-0, 1 spans, reward None" in caplog.text
    assert there in caplog.text
    assert missing not in caplog.text
    assert "adapted: ['step']" in caplog.text
    assert "No initial resources" in caplog.text


async def test_without_an_adapter_it_warns(caplog: pytest.LogCaptureFixture) -> None:
    await run(Baseline(), InMemoryLightningStore(), ["task"])
    assert "no adapter" in caplog.text


async def test_a_baseline_without_data_logs_an_error(caplog: pytest.LogCaptureFixture) -> None:
    assert await run(Baseline(), InMemoryLightningStore(), [], None) == []
    assert "nothing to do" in caplog.text


async def test_a_cancelled_baseline_leaves_an_empty_queue() -> None:
    store = InMemoryLightningStore()
    baseline = Baseline(max_queue_length=2)
    baseline.set_store(store)
    task = asyncio.create_task(baseline.run(list(range(5))))  # pyright: ignore[reportArgumentType]
    while (await store.query_rollouts(limit=0)).total < 3:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {rollout.status for rollout in await store.query_rollouts()} == {"cancelled"}
    assert await store.dequeue_rollout() is None


@pytest.mark.parametrize(
    "options", [{"train_split": 0.0}, {"train_split": 1.0}, {"span_verbosity": "all"}]
)
def test_bad_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Baseline(**options)
