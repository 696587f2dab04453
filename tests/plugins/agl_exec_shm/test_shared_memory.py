"""The shm strategy: the threads of the bundles, and every way in which a run ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agl_core.errors import ConfigError
from agl_core.execution import ExecutionEvent
from agl_core.execution._supervise import BundleThread
from agl_core.store import LightningStore
from agl_core.types import AttemptedRollout
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_store_memory import InMemoryLightningStore

Algorithm = Callable[[LightningStore, ExecutionEvent], Awaitable[None]]


async def idle(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
    await event.wait_async()


async def done(store: LightningStore, event: ExecutionEvent) -> None:
    return


def strategy(n_runners: int = 2, **options: Any) -> SharedMemoryExecutionStrategy:
    options.setdefault("graceful_delay", 0.1)
    options.setdefault("join_timeout", 2.0)
    return SharedMemoryExecutionStrategy(n_runners, **options)


def test_each_bundle_runs_where_it_should() -> None:
    threads: dict[str, str] = {}
    loops: set[int] = set()
    everyone = threading.Barrier(3)

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        threads["algorithm"] = threading.current_thread().name
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.to_thread(everyone.wait, 10)

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        threads[f"runner-{worker_id}"] = threading.current_thread().name
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.to_thread(everyone.wait, 10)
        await event.wait_async()

    strategy(2).execute(algorithm, runner, InMemoryLightningStore())
    assert threads == {
        "algorithm": "MainThread",
        "runner-0": "runner-0",
        "runner-1": "runner-1",
    }
    assert len(loops) == 3


def test_one_runner_takes_the_main_thread() -> None:
    threads: dict[str, str] = {}

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        threads["algorithm"] = threading.current_thread().name

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        threads["runner"] = threading.current_thread().name
        await event.wait_async()

    strategy(1).execute(algorithm, runner, InMemoryLightningStore())
    assert threads == {"algorithm": "algorithm", "runner": "MainThread"}


@pytest.mark.parametrize("last", ["runner-0", "watchdog"])
def test_ctrl_c_while_the_threads_start_ends_the_run(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        start(self)
        if self.name == last:
            raise KeyboardInterrupt

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await event.wait_async()
        seen.append(worker_id)

    monkeypatch.setattr(BundleThread, "start", interrupted)
    run = strategy(2)
    before = set(threading.enumerate())
    run.execute(done, runner, InMemoryLightningStore())
    assert run.interrupted
    assert sorted(seen) == ([0] if last == "runner-0" else [0, 1])
    assert set(threading.enumerate()) <= before


def test_a_runner_in_the_main_thread_waits_for_the_algorithm() -> None:
    order: list[str] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await asyncio.sleep(0.3)
        order.append("algorithm")

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        order.append("runner")

    strategy(1).execute(algorithm, runner, InMemoryLightningStore())
    assert order == ["runner", "algorithm"]


def test_idle_runners_stop_at_once() -> None:
    start = time.monotonic()
    strategy(4, graceful_delay=30.0, join_timeout=60.0).execute(
        done, idle, InMemoryLightningStore()
    )
    assert time.monotonic() - start < 5


def test_a_runner_that_ignores_the_event_is_cancelled() -> None:
    ended: list[str] = []

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.01)  # clean-up that awaits
            ended.append("cancelled")
            raise

    start = time.monotonic()
    strategy(2).execute(done, runner, InMemoryLightningStore())
    assert ended == ["cancelled", "cancelled"]
    assert time.monotonic() - start < 5


def test_a_blocked_runner_is_abandoned_and_its_attempt_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    store = InMemoryLightningStore()
    claimed = threading.Event()

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout({"n": 1})
        await asyncio.to_thread(claimed.wait, 10)

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        if worker_id == 0:
            assert await store.dequeue_rollout("Worker-0", wait=10)
            claimed.set()
            release.wait(30)  # blocks the loop: cannot be cancelled
        await event.wait_async()

    start = time.monotonic()
    strategy(2, join_timeout=0.5).execute(algorithm, runner, store)
    release.set()
    assert time.monotonic() - start < 10
    assert "Abandoned runner-0" in caplog.text
    (rollout,) = asyncio.run(store.query_rollouts()).items
    assert isinstance(rollout, AttemptedRollout)
    assert (rollout.status, rollout.attempt.status) == ("failed", "failed")
    assert rollout.attempt.metadata == {"error": "the run ended before the attempt did"}


@pytest.mark.parametrize("n_runners", [1, 2])
def test_the_algorithms_error_is_raised_after_the_runners_stopped(n_runners: int) -> None:
    stopped: list[int] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        raise KeyError("broken algorithm")

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await event.wait_async()
        stopped.append(worker_id)

    with pytest.raises(KeyError, match="broken algorithm"):
        strategy(n_runners).execute(algorithm, runner, InMemoryLightningStore())
    assert sorted(stopped) == list(range(n_runners))


@pytest.mark.parametrize("n_runners", [1, 3])
def test_a_runners_error_stops_the_run(n_runners: int) -> None:
    cancelled: list[str] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("algorithm")
            raise

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        if worker_id == 0:
            raise OSError("broken runner")
        await event.wait_async()

    with pytest.raises(OSError, match="broken runner"):
        strategy(n_runners).execute(algorithm, runner, InMemoryLightningStore())
    assert cancelled == ["algorithm"]


@pytest.mark.parametrize("n_runners", [1, 2])
def test_the_algorithms_error_comes_first(n_runners: int, caplog: pytest.LogCaptureFixture) -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        raise ValueError("algorithm")

    async def runner(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await event.wait_async()
        raise OSError("runner")

    with pytest.raises(ValueError, match="algorithm"):
        strategy(n_runners).execute(algorithm, runner, InMemoryLightningStore())
    assert "OSError: runner" in caplog.text


def test_system_exit_in_the_algorithm_still_stops_the_runners() -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        strategy(2).execute(algorithm, idle, InMemoryLightningStore())


class Fragile(InMemoryLightningStore):
    """A store without the capability ``thread_safe`` that counts its watchdog's scans."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    @property
    def capabilities(self) -> Any:
        return {**super().capabilities, "thread_safe": False}

    async def run_watchdog(self) -> int:
        self.rounds += 1
        return await super().run_watchdog()


@pytest.mark.parametrize(("managed", "facade"), [(True, True), (False, False)])
def test_a_managed_store_is_wrapped_and_watched(managed: bool, facade: bool) -> None:
    store = Fragile()
    seen: list[LightningStore] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        seen.append(store)
        await asyncio.sleep(0.05)

    strategy(2, managed_store=managed).execute(algorithm, idle, store)
    assert (seen[0] is not store) is facade
    assert (store.rounds > 0) is facade


def test_the_environment_decides_about_managed_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert strategy().managed_store is True
    monkeypatch.setenv("AGL_MANAGED_STORE", "off")
    assert strategy().managed_store is False
    assert strategy(managed_store=True).managed_store is True
    monkeypatch.setenv("AGL_MANAGED_STORE", "perhaps")
    with pytest.raises(ValueError, match="AGL_MANAGED_STORE"):
        strategy()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_runners": 0}, r"n_runners: .* greater than or equal to 1"),
        ({"n_runners": 2, "main_thread": "runner"}, "needs n_runners=1"),
        ({"main_thread": "neither"}, "main_thread: .*algorithm.*runner"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SharedMemoryExecutionStrategy(**options)
