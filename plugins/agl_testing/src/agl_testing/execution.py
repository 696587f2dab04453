"""The conformance suite for execution strategies.

::

    class TestMyStrategy(ExecutionSuite):
        @pytest.fixture
        def make_strategy(self):
            return lambda **options: MyStrategy(**options)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agl_core.execution import ExecutionEvent, ExecutionStrategy
from agl_core.store import InMemoryLightningStore, LightningStore
from agl_testing.suite import Suite, requires

__all__ = ["ExecutionSuite"]


class DoTasks:
    """A runner bundle that runs queued tasks until the stop event."""

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        while not event.is_set():
            claimed = await store.dequeue_rollout(f"Worker-{worker_id}", wait=0.2)
            if claimed is not None:
                await store.update_attempt(
                    claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded"
                )


class GiveTasks:
    """An algorithm bundle that enqueues tasks and waits for their results."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(self.tasks)]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
        assert [item.status for item in done] == ["succeeded"] * self.tasks


class FailingAlgorithm:
    """An algorithm bundle that raises."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        raise ZeroDivisionError("the algorithm failed")


class FailingRunner:
    """A runner bundle that raises."""

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        raise ZeroDivisionError("the runner failed")


class WaitForTheEnd:
    """An algorithm bundle that runs until the stop event."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        await event.wait_async()


class DeafRunner:
    """A runner bundle that claims a task and then ignores the stop event."""

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await store.dequeue_rollout(f"Worker-{worker_id}", wait=30)
        await asyncio.Event().wait()


class UntilClaimed:
    """An algorithm bundle that enqueues one task and returns when it is claimed."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        rollout = await store.enqueue_rollout("x")
        # Stores without the flag `events` have no event for a claim.
        while await store.get_latest_attempt(rollout.rollout_id) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class ExecutionSuite(Suite):
    """Tests the contract of execution strategies.

    The author supplies a fixture ``make_strategy``: a callable that takes ``n_runners`` and returns
    a strategy whose grace periods are about a second.
    """

    suite_name = "execution"
    FLAGS: ClassVar[dict[str, str]] = {
        "fails_open_attempts": "open attempts of an abandoned worker are failed in the store",
    }

    @pytest.fixture
    def make_strategy(self) -> Callable[..., ExecutionStrategy]:
        raise NotImplementedError(f"{type(self).__name__} must supply a fixture `make_strategy`")

    @pytest.fixture
    def execution_store(self) -> LightningStore:
        return InMemoryLightningStore()

    def test_it_is_a_strategy(self, make_strategy: Callable[..., ExecutionStrategy]):
        strategy = make_strategy(n_runners=2)
        assert isinstance(strategy, ExecutionStrategy)
        assert strategy.n_runners == 2

    @pytest.mark.parametrize("n_runners", [1, 3])
    def test_both_sides_meet_in_one_store(
        self,
        make_strategy: Callable[..., ExecutionStrategy],
        execution_store: LightningStore,
        n_runners: int,
    ):
        strategy = make_strategy(n_runners=n_runners)
        strategy.execute(GiveTasks(20), DoTasks(), execution_store)
        done = asyncio.run(execution_store.query_rollouts(status_in=["succeeded"]))
        assert done.total == 20
        assert not strategy.interrupted

    def test_it_can_execute_twice(
        self, make_strategy: Callable[..., ExecutionStrategy], execution_store: LightningStore
    ):
        strategy = make_strategy(n_runners=2)
        for _ in range(2):
            strategy.execute(GiveTasks(3), DoTasks(), execution_store)
        assert asyncio.run(execution_store.query_rollouts()).total == 6

    def test_the_algorithms_error_stops_the_run_and_is_raised(
        self, make_strategy: Callable[..., ExecutionStrategy], execution_store: LightningStore
    ):
        with pytest.raises(ZeroDivisionError, match="the algorithm failed"):
            make_strategy(n_runners=2).execute(FailingAlgorithm(), DoTasks(), execution_store)

    def test_a_runners_error_stops_the_run_and_is_raised(
        self, make_strategy: Callable[..., ExecutionStrategy], execution_store: LightningStore
    ):
        with pytest.raises(Exception, match=r".+") as raised:
            make_strategy(n_runners=2).execute(WaitForTheEnd(), FailingRunner(), execution_store)
        assert isinstance(raised.value, ZeroDivisionError | RuntimeError)

    def test_a_deaf_runner_does_not_hold_the_run(
        self, make_strategy: Callable[..., ExecutionStrategy], execution_store: LightningStore
    ):
        start = time.monotonic()
        make_strategy(n_runners=1).execute(UntilClaimed(), DeafRunner(), execution_store)
        assert time.monotonic() - start < 30

    @requires("fails_open_attempts")
    def test_what_a_deaf_runner_had_is_failed(
        self, make_strategy: Callable[..., ExecutionStrategy], execution_store: LightningStore
    ):
        make_strategy(n_runners=1).execute(UntilClaimed(), DeafRunner(), execution_store)
        (rollout,) = asyncio.run(execution_store.query_rollouts())
        assert rollout.status == "failed"

    def test_it_leaves_no_thread_behind(
        self, make_strategy: Callable[..., ExecutionStrategy], execution_store: LightningStore
    ):
        before = set(threading.enumerate())
        make_strategy(n_runners=2).execute(GiveTasks(4), DoTasks(), execution_store)
        deadline = time.monotonic() + 5
        left: set[Any] = set()
        while time.monotonic() < deadline:
            left = {t for t in set(threading.enumerate()) - before if t.is_alive()}
            if not left:
                break
            for thread in left:
                thread.join(0.1)
        assert not left
