from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from agl_core.store import LightningStoreCapabilities
from agl_core.types import Worker
from agl_runner import heartbeat as heartbeat_module
from agl_runner.heartbeat import Heartbeat, jittered
from agl_store_memory import InMemoryLightningStore

MODES = ["thread", "asyncio"]


class Pulse(InMemoryLightningStore):
    """A store that records the time, thread and arguments of its updates."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[float, threading.Thread, Any]] = []
        self.errors: list[Exception] = []
        self.hang = False

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = None) -> Worker:
        self.beats.append((time.monotonic(), threading.current_thread(), heartbeat_stats))
        if self.errors:
            raise self.errors.pop(0)
        if self.hang:
            await asyncio.sleep(60)
        return await super().update_worker(worker_id, heartbeat_stats)


def _heartbeat(
    store: Any, mode: Any, replies: list[Any] | None = None, **options: Any
) -> Heartbeat:
    here = threading.current_thread()

    def reply(worker: Worker) -> None:
        assert threading.current_thread() is here
        if replies is not None:
            replies.append(worker)

    settings: dict[str, Any] = {"interval": 0.02, "jitter": 0.0, "include_gpu": False, **options}
    return Heartbeat(store, "Worker-1", reply, mode=mode, **settings)


async def _beats(store: Pulse, count: int) -> None:
    async with asyncio.timeout(10):
        while len(store.beats) < count:
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("mode", MODES)
async def test_it_beats_with_snapshots_and_passes_the_replies_on(mode: str) -> None:
    store, replies = Pulse(), []
    heartbeat = _heartbeat(store, mode, replies)
    heartbeat.hold()
    await _beats(store, 3)
    await heartbeat.release()
    heartbeat.close()
    worker = await store.get_worker_by_id("Worker-1")
    assert worker is not None
    assert worker.heartbeat_stats is not None
    assert worker.heartbeat_stats["cpu_threads"] >= 1
    assert worker.last_heartbeat_time is not None
    assert replies
    assert replies[-1].worker_id == "Worker-1"
    assert (store.beats[0][1] is threading.current_thread()) == (mode == "asyncio")
    stopped = len(store.beats)
    await asyncio.sleep(0.1)
    assert len(store.beats) == stopped


@pytest.mark.parametrize("mode", MODES)
async def test_it_beats_until_the_last_release(mode: str) -> None:
    store = Pulse()
    heartbeat = _heartbeat(store, mode)
    heartbeat.hold()
    heartbeat.hold()
    await heartbeat.release()
    await _beats(store, 3)
    await heartbeat.release()
    heartbeat.hold()
    count = len(store.beats)
    await _beats(store, count + 2)
    await heartbeat.release()
    heartbeat.close()


async def test_a_short_hold_costs_no_beat() -> None:
    store = Pulse()
    before = set(threading.enumerate())
    heartbeat = _heartbeat(store, "thread")
    heartbeat.hold(after=0.05)
    await heartbeat.release()
    await asyncio.sleep(0.1)
    assert store.beats == []
    assert set(threading.enumerate()) <= before


async def test_an_interval_of_zero_means_none() -> None:
    store = Pulse()
    heartbeat = _heartbeat(store, "thread", interval=0.0)
    heartbeat.hold()
    await asyncio.sleep(0.05)
    await heartbeat.release()
    assert store.beats == []


async def test_a_thread_beats_while_the_loop_is_blocked() -> None:
    store = Pulse()
    heartbeat = _heartbeat(store, "thread")
    heartbeat.hold()
    await _beats(store, 1)
    before = len(store.beats)
    time.sleep(0.3)
    assert len(store.beats) >= before + 3
    await heartbeat.release()
    heartbeat.close()


async def test_a_store_that_is_not_thread_safe_is_updated_from_the_loop() -> None:
    class Single(Pulse):
        @property
        def capabilities(self) -> LightningStoreCapabilities:
            return LightningStoreCapabilities(async_safe=True)

    store = Single()
    heartbeat = _heartbeat(store, "thread")
    heartbeat.hold()
    await _beats(store, 2)
    await heartbeat.release()
    heartbeat.close()
    assert {thread for _, thread, _ in store.beats} == {threading.current_thread()}


@pytest.mark.parametrize("mode", MODES)
async def test_errors_are_logged_and_survived(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    store, replies = Pulse(), []
    store.errors = [OSError("store away"), OSError("store away")]
    heartbeat = _heartbeat(store, mode, replies)
    heartbeat.hold()
    await _beats(store, 4)
    async with asyncio.timeout(5):
        while not replies:
            await asyncio.sleep(0.002)
    await heartbeat.release()
    heartbeat.close()
    assert caplog.text.count("store away") == 2


@pytest.mark.timing
@pytest.mark.parametrize("mode", MODES)
async def test_a_store_that_hangs_costs_one_interval_per_beat(mode: str) -> None:
    store = Pulse()
    store.hang = True
    heartbeat = _heartbeat(store, mode)
    heartbeat.hold()
    await _beats(store, 3)
    started = time.monotonic()
    await heartbeat.release()
    assert time.monotonic() - started < 1
    heartbeat.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_snapshot_that_hangs_costs_its_figures_only(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    calls: list[int] = []

    def hanging(**_: Any) -> dict[str, Any]:
        calls.append(1)
        release.wait(20)
        return {"late": True}

    monkeypatch.setattr(heartbeat_module, "system_snapshot", hanging)
    store = Pulse()
    heartbeat = _heartbeat(store, mode)
    heartbeat.hold()
    await _beats(store, 3)
    assert len(calls) == 1, "one hung thread, not one per beat"
    worker = await store.get_worker_by_id("Worker-1")
    assert worker is not None
    assert worker.last_heartbeat_time is not None
    assert worker.heartbeat_stats is None
    assert "takes too long" in caplog.text
    release.set()
    async with asyncio.timeout(5):
        while not worker.heartbeat_stats:
            await asyncio.sleep(0.005)
            worker = await store.get_worker_by_id("Worker-1")
            assert worker is not None
    await heartbeat.release()
    heartbeat.close()


async def test_a_snapshot_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(**_: Any) -> dict[str, Any]:
        raise PermissionError("/proc is closed")

    monkeypatch.setattr(heartbeat_module, "system_snapshot", failing)
    store = Pulse()
    heartbeat = _heartbeat(store, "asyncio")
    heartbeat.hold()
    await _beats(store, 2)
    await heartbeat.release()
    heartbeat.close()
    assert "/proc is closed" in caplog.text


def test_jitter() -> None:
    periods = [jittered(10.0, 0.5) for _ in range(1000)]
    assert 9.5 <= min(periods) < 9.7
    assert 10.3 < max(periods) <= 10.5
    assert jittered(0.0, 0.0) == 0.01
    assert jittered(3.0, 0.0) == 3.0


async def test_the_runner_beats_while_it_iterates(bench: Any) -> None:
    bench.store = store = Pulse()
    runner = await bench.runner(lambda task: None, heartbeat_interval=0.02, interval_jitter=0.0)
    running = asyncio.create_task(runner.iter())
    await _beats(store, 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    worker = await store.get_worker_by_id("Worker-0")
    assert worker is not None
    assert worker.status == "idle"
    assert worker.heartbeat_stats is not None
