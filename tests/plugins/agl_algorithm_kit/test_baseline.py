"""The baseline keeps the order, respects the queue limit, and reports every rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_algorithm_kit import Baseline
from agl_core.adapter import Adapter
from agl_core.errors import (
    ConfigError,
    InvalidArgumentError,
    RunFailedError,
    SpansEvictedError,
)
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


async def test_a_baseline_without_data_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """As in version 0.3."""
    await run(Baseline(), InMemoryLightningStore(), [], None)
    assert "give it a dataset" in caplog.text


async def answer(store: LightningStore, endings: dict[Any, dict[str, Any]]) -> None:
    """End each attempt as its task says; those that succeed have the reward 1."""
    while True:
        claimed = await store.dequeue_rollout("Worker-0", wait=10)
        if claimed is None:
            continue
        ending = endings[claimed.input]
        if ending["status"] == "succeeded":
            await store.add_span(
                Span.from_attributes(
                    name="agentlightning.annotation",
                    attributes={
                        "agentlightning.reward.0.name": "primary",
                        "agentlightning.reward.0.value": 1.0,
                    },
                    rollout_id=claimed.rollout_id,
                    attempt_id=claimed.attempt.attempt_id,
                    sequence_id=1,
                )
            )
        await store.update_attempt(claimed.rollout_id, "latest", **ending)


LOST: dict[str, Any] = {
    "status": "failed",
    "metadata": {"infrastructure": "proxy", "repeatable": False},
}


async def steps_of(baseline: Baseline, store: LightningStore, endings: dict[Any, Any]) -> Any:
    told: list[Any] = []
    baseline.report_step = lambda step, metrics: told.append(metrics)
    baseline.set_store(store)
    worker = asyncio.create_task(answer(store, endings))
    try:
        await asyncio.wait_for(baseline.run(list(endings)), 30)  # pyright: ignore
    finally:
        worker.cancel()
        await asyncio.wait((worker,))
    return told


async def test_what_the_infrastructure_failed_is_not_in_the_mean(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endings = {"good": {"status": "succeeded"}, "lost": LOST}
    (metrics,) = await steps_of(Baseline(), InMemoryLightningStore(), endings)
    assert metrics == {"rollouts": 2.0, "reward": 1.0}
    assert "baseline: 1 of 2 failed by the proxy and are not scored" in caplog.text
    with pytest.raises(RunFailedError, match="all 1 rollouts failed by the proxy"):
        await steps_of(Baseline(), InMemoryLightningStore(), {"lost": LOST})


@pytest.mark.parametrize("evicted", [False, True])
async def test_spans_that_cannot_be_shown_do_not_end_the_pass(
    evicted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Picky(Names):
        def adapt(self, source: Any) -> list[str]:
            raise InvalidArgumentError("two roots")

    class Small(InMemoryLightningStore):
        async def query_spans(self, rollout_id: str, *of: Any, **options: Any) -> Any:
            found = await super().query_spans(rollout_id, *of, **options)
            if evicted and (await self.query_rollouts())[0].rollout_id == rollout_id:
                raise SpansEvictedError(f"the spans of {rollout_id} were evicted")
            return found

    baseline = Baseline()
    baseline.set_adapter(Picky())
    endings = {n: {"status": "succeeded"} for n in range(3)}
    (metrics,) = await steps_of(baseline, Small(), endings)
    assert metrics == {"rollouts": 3.0, "reward": 1.0}
    assert "| not adapted: two roots" in caplog.text
    assert ("were evicted" in caplog.text) == evicted


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
