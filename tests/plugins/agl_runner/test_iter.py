from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from agl_core.emitter import emit_annotation
from agl_core.errors import PermissionDeniedError, StoreUnavailableError
from agl_core.execution import ThreadingEvent
from agl_core.types import AttemptedRollout
from agl_runner.claims import Claims
from agl_store_memory import InMemoryLightningStore


class _Counting(InMemoryLightningStore):
    """Counts claims; ``broken`` makes the next ones fail."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.broken: list[Exception] = []

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        self.waits.append(wait)
        if self.broken:
            raise self.broken.pop(0)
        return await super().dequeue_rollout(worker_id, wait=wait)


@pytest.fixture
def counting(bench: Any) -> _Counting:
    bench.store = _Counting()
    return bench.store


async def test_runs_the_queue_in_order_until_idle(bench: Any) -> None:
    done: list[int] = []
    runner = await bench.runner(lambda task: done.append(task))
    for i in range(20):
        await bench.store.enqueue_rollout(i)
    await runner.iter(until_idle=True)
    assert done == list(range(20))
    assert await bench.statuses() == ["succeeded"] * 20
    for rollout in await bench.store.query_rollouts():
        assert rollout.attempt.worker_id == "Worker-0"


async def test_until_idle_on_an_empty_store_ends_at_once(bench: Any) -> None:
    runner = await bench.runner(lambda task: None)
    await asyncio.wait_for(runner.iter(until_idle=True), 2)


@pytest.mark.timing
async def test_until_idle_waits_for_the_rollouts_of_other_runners(bench: Any) -> None:
    """The rollout of another runner may fail and return to the queue."""
    other = await bench.store.start_rollout("other", config=_retried("failed"))
    done: list[str] = []
    runner = await bench.runner(lambda task: done.append(task))
    running = asyncio.create_task(runner.iter(until_idle=True))
    await bench.store.enqueue_rollout("mine")
    while not done:
        await asyncio.sleep(0)
    done_early, _ = await asyncio.wait((running,), timeout=0.1)
    assert not done_early
    started = time.monotonic()
    await bench.store.update_attempt(other.rollout_id, other.attempt.attempt_id, status="failed")
    await asyncio.wait_for(running, 2)
    assert time.monotonic() - started < 1, "it waits for the change and does not poll"
    assert done == ["mine", "other"]
    assert await bench.statuses() == ["succeeded", "succeeded"]


async def test_until_idle_ends_when_the_last_of_the_others_ends(bench: Any) -> None:
    other = await bench.store.start_rollout("other")
    runner = await bench.runner(lambda task: None)
    running = asyncio.create_task(runner.iter(until_idle=True))
    await asyncio.sleep(0.05)
    assert not running.done()
    await bench.store.update_attempt(other.rollout_id, other.attempt.attempt_id, status="succeeded")
    await asyncio.wait_for(running, 2)


def _retried(*conditions: Any) -> Any:
    from agl_core.types import RolloutConfig

    return RolloutConfig(max_attempts=3, retry_condition=list(conditions))


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_max_rollouts(bench: Any, limit: int) -> None:
    done: list[int] = []
    runner = await bench.runner(lambda task: done.append(task), max_rollouts=limit)
    for i in range(5):
        await bench.store.enqueue_rollout(i)
    await asyncio.wait_for(runner.iter(), 5)
    assert done == list(range(limit))
    assert (await bench.statuses()).count("queuing") == 5 - limit


async def test_the_event_ends_an_idle_runner_at_once(counting: _Counting, bench: Any) -> None:
    event = ThreadingEvent()
    runner = await bench.runner(lambda task: None, poll_interval=60.0)
    running = asyncio.create_task(runner.iter(event=event))
    while counting.waits != [0.0, 60.0]:
        await asyncio.sleep(0)
    threading.Timer(0.02, event.set).start()  # from another thread, as strategies do
    await asyncio.wait_for(running, 2)
    assert counting.waits == [0.0, 60.0]


async def test_the_event_lets_the_current_rollout_finish(bench: Any) -> None:
    event = ThreadingEvent()

    async def agent(task: int) -> None:
        event.set()
        await asyncio.sleep(0.05)

    runner = await bench.runner(agent)
    for i in range(3):
        await bench.store.enqueue_rollout(i)
    await asyncio.wait_for(runner.iter(event=event), 5)
    assert await bench.statuses() == ["succeeded", "queuing", "queuing"]


async def test_an_event_set_beforehand_starts_no_work(bench: Any) -> None:
    event = ThreadingEvent()
    event.set()
    runner = await bench.runner(lambda task: None)
    await bench.store.enqueue_rollout({})
    await asyncio.wait_for(runner.iter(event=event), 2)
    assert await bench.statuses() == ["queuing"]


async def test_new_work_starts_at_once(counting: _Counting, bench: Any) -> None:
    started: asyncio.Queue[float] = asyncio.Queue()

    async def agent(task: Any) -> None:
        started.put_nowait(time.perf_counter())

    event = ThreadingEvent()
    runner = await bench.runner(agent, poll_interval=60.0)
    running = asyncio.create_task(runner.iter(event=event))
    latencies: list[float] = []
    for i in range(20):
        while counting.waits[-1:] != [60.0]:
            await asyncio.sleep(0.001)
        counting.waits.clear()
        enqueued = time.perf_counter()
        await bench.store.enqueue_rollout(i)
        latencies.append(await asyncio.wait_for(started.get(), 5) - enqueued)
    event.set()
    await running
    assert sorted(latencies)[10] < 0.05


async def test_failures_do_not_stop_it(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    def agent(task: int) -> Any:
        if task == 1:
            raise ValueError("bad task")
        if task == 2:
            raise SystemExit(1)
        return {"not": "a result"} if task == 3 else 1.0

    runner = await bench.runner(agent)
    for i in range(5):
        await bench.store.enqueue_rollout(i)
    await runner.iter(until_idle=True)
    assert await bench.statuses() == ["succeeded", "failed", "failed", "failed", "succeeded"]
    assert "bad task" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_keyboard_interrupt_of_the_agent_ends_it(bench: Any, is_async: bool) -> None:
    def agent(task: Any) -> None:
        raise KeyboardInterrupt

    async def async_agent(task: Any) -> None:
        raise KeyboardInterrupt

    runner = await bench.runner(async_agent if is_async else agent)
    for i in range(2):
        await bench.store.enqueue_rollout(i)
    with pytest.raises(KeyboardInterrupt):
        await runner.iter(until_idle=True)
    assert await bench.statuses() == ["failed", "queuing"]


async def test_retries_are_claimed_again(bench: Any) -> None:
    tries: list[int] = []

    def agent(task: Any) -> float:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("flaky")
        return 1.0

    runner = await bench.runner(agent)
    await bench.store.enqueue_rollout({}, config=_retried("failed"))
    await runner.iter(until_idle=True)
    assert await bench.statuses() == ["succeeded"]
    assert (await bench.attempt()).sequence_id == 3


async def test_a_claim_is_repeated_while_the_store_is_away(
    counting: _Counting, bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runner = await bench.runner(lambda task: None, poll_interval=0.01, interval_jitter=0.0)
    counting.broken = [StoreUnavailableError("down"), StoreUnavailableError("down"), OSError("x")]
    await bench.store.enqueue_rollout({})
    await asyncio.wait_for(runner.iter(until_idle=True), 5)
    assert await bench.statuses() == ["succeeded"]
    assert caplog.text.count("no work could be claimed") == 3


async def test_the_event_ends_a_runner_whose_store_is_away(counting: _Counting, bench: Any) -> None:
    event = ThreadingEvent()
    runner = await bench.runner(lambda task: None, poll_interval=60.0)
    counting.broken = [StoreUnavailableError("down")]
    running = asyncio.create_task(runner.iter(event=event))
    while counting.broken:
        await asyncio.sleep(0)
    event.set()
    await asyncio.wait_for(running, 2)


async def test_a_store_that_refuses_ends_it(counting: _Counting, bench: Any) -> None:
    runner = await bench.runner(lambda task: None)
    counting.broken = [PermissionDeniedError("the token is for reading")]
    with pytest.raises(PermissionDeniedError):
        await asyncio.wait_for(runner.iter(), 2)


async def test_a_store_that_cannot_wait_is_polled_slowly(bench: Any) -> None:
    class Impatient(_Counting):
        async def dequeue_rollout(
            self, worker_id: str | None = None, *, wait: float = 0.0
        ) -> AttemptedRollout | None:
            return await super().dequeue_rollout(worker_id) if not self.waits.append(wait) else None

    bench.store = store = Impatient()
    event = ThreadingEvent()
    runner = await bench.runner(lambda task: None, poll_interval=0.05)
    running = asyncio.create_task(runner.iter(event=event))
    await asyncio.sleep(0.5)
    event.set()
    await running
    assert 3 < store.waits.count(0.05) < 15


async def test_several_runners_share_the_queue(bench: Any) -> None:
    done: list[tuple[int, int]] = []
    runners = [
        await bench.runner(lambda task, i=i: done.append((i, task)), worker_id=i) for i in range(4)
    ]
    for i in range(40):
        await bench.store.enqueue_rollout(i)
    await asyncio.gather(*(runner.iter(until_idle=True) for runner in runners))
    assert sorted(task for _, task in done) == list(range(40))
    assert await bench.statuses() == ["succeeded"] * 40


async def test_a_summary_is_logged_and_single_rollouts_only_in_detail(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(task: int) -> float:
        return {0: 0.5, 1: 0.25, 2: 0.75}[task]

    runner = await bench.runner(agent, max_rollouts=4)
    for i in range(4):
        await bench.store.enqueue_rollout(i)
    with caplog.at_level("INFO", logger="agl_runner"):
        await runner.iter()
    said = [r.message for r in caplog.records if r.levelname == "INFO"]
    assert said == [
        "Worker-0: 1 of 4 rollouts done, mean reward 0.5",
        "Worker-0: 4 of 4 rollouts done, 1 failed, mean reward 0.5",
    ]
    caplog.clear()
    await bench.store.enqueue_rollout(0)
    with caplog.at_level("DEBUG", logger="agl_runner"):
        await runner.iter(until_idle=True)
    assert "1 spans, reward 0.5" in caplog.text


class _Shielded(InMemoryLightningStore):
    """A client whose request cannot be cancelled: it claims a rollout when it is."""

    away = False

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        if self.away:
            raise StoreUnavailableError("the store is away")
        await super().return_claim(rollout_id, attempt_id)

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        if not wait:
            return None
        try:
            await asyncio.sleep(wait)
        except asyncio.CancelledError:
            await self.enqueue_rollout("late")
        return await super().dequeue_rollout(worker_id)


@pytest.mark.parametrize("away", [False, True])
async def test_the_rollout_of_a_cancelled_claim_is_returned(
    bench: Any, away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store = _Shielded()
    bench.store.away = away
    runner = await bench.runner(lambda task: None)
    running = asyncio.create_task(runner.iter())
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    assert await bench.statuses() == ["preparing" if away else "requeuing"]
    assert ("cannot be returned to the queue" in caplog.text) is away


async def test_a_rollout_that_is_claimed_while_an_attempt_raises_is_returned(bench: Any) -> None:
    raises = asyncio.Event()

    class Late(InMemoryLightningStore):
        """A client whose reply is on its way when its request is cancelled."""

        async def dequeue_rollout(
            self, worker_id: str | None = None, *, wait: float = 0.0
        ) -> AttemptedRollout | None:
            claimed = await super().dequeue_rollout(worker_id, wait=wait)
            if claimed is not None and claimed.input == "late":
                raises.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(30)
            return claimed

    async def agent(task: str) -> None:
        await bench.store.enqueue_rollout("late")
        await raises.wait()
        raise KeyboardInterrupt

    bench.store = Late()
    runner = await bench.runner(agent, concurrency=2)
    await bench.store.enqueue_rollout("first")
    with pytest.raises(KeyboardInterrupt):
        await runner.iter()
    assert await bench.statuses() == ["failed", "requeuing"]


async def test_a_refused_claim_lets_running_attempts_finish(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, refused = Claims.next, asyncio.Event()
    allowed = iter([True])

    async def once(claims: Claims, limit: int = 1) -> Any:
        if next(allowed, False):
            return await claim(claims, limit)
        refused.set()
        raise PermissionDeniedError("no more")

    async def agent(task: str) -> None:
        await refused.wait()
        await asyncio.sleep(0.05)

    monkeypatch.setattr(Claims, "next", once)
    runner = await bench.runner(agent, concurrency=2)
    await bench.store.enqueue_rollout("runs")
    with pytest.raises(PermissionDeniedError):
        await asyncio.wait_for(runner.iter(), 10)
    assert await bench.statuses() == ["succeeded"]


async def test_an_annotation_that_is_no_reward_ends_no_runner(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(task: int) -> None:
        emit_annotation({"reward": "good"})

    runner = await bench.runner(agent)
    for number in range(2):
        await bench.store.enqueue_rollout(number)
    with caplog.at_level("DEBUG", logger="agl_runner"):
        await runner.iter(until_idle=True)
    assert await bench.statuses() == ["succeeded"] * 2
    assert "reward None" in caplog.text
