"""Ends of runs: errors, Ctrl+C, bundles that ignore the end, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agl_core.store import LightningStore
from agl_testing.execution.base import ExecutionTests, MakeStrategy, WatchedStore
from agl_testing.execution.bundles import (
    DeafBatchRunner,
    DeafRunner,
    DoTasks,
    FailAtTheEnd,
    FailingAlgorithm,
    FailingRunner,
    FailingWorker,
    GiveTasks,
    IgnoreTheEnd,
    Present,
    StubbornRunner,
    UntilClaimed,
    UntilOneTimedOut,
    WaitForTheEnd,
)
from agl_testing.processes import children, command_of
from agl_testing.suite import requires

__all__ = ["EndingTests", "LeftoverTests"]


class EndingTests(ExecutionTests):
    """A run ends in time, and says why."""

    def test_the_algorithms_error_stops_the_run_and_is_raised(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        with pytest.raises(ZeroDivisionError, match="the algorithm failed"):
            make_strategy(n_runners=2).execute(FailingAlgorithm(), DoTasks(), execution_store)

    def test_a_runners_error_stops_the_run_and_is_raised(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        with pytest.raises(Exception, match=r".+") as raised:
            make_strategy(n_runners=2).execute(WaitForTheEnd(), FailingRunner(), execution_store)
        assert isinstance(raised.value, ZeroDivisionError | RuntimeError)
        assert "the runner failed" in str(raised.value)

    def test_a_deaf_runner_does_not_hold_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        start = time.monotonic()
        make_strategy(n_runners=1).execute(UntilClaimed(), DeafRunner(), execution_store)
        assert time.monotonic() - start < self.patience

    @pytest.mark.parametrize("failing", [0, 1, 2])
    def test_one_failing_runner_of_three_stops_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, failing: int
    ):
        start = time.monotonic()
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            make_strategy(n_runners=3).execute(
                WaitForTheEnd(), FailingWorker(failing, 3), execution_store
            )
        assert time.monotonic() - start < self.patience

    @pytest.mark.parametrize("n_runners", [1, 2])
    def test_the_algorithms_error_comes_first(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, n_runners: int
    ):
        with pytest.raises(ZeroDivisionError, match="the algorithm failed"):
            make_strategy(n_runners=n_runners).execute(
                FailAtTheEnd(), FailingRunner(), execution_store
            )

    @pytest.mark.parametrize("n_runners", [1, 2])
    def test_an_algorithm_that_ignores_the_end_is_cancelled(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, n_runners: int
    ):
        start = time.monotonic()
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            make_strategy(n_runners=n_runners).execute(
                IgnoreTheEnd(), FailingRunner(), execution_store
            )
        assert time.monotonic() - start < self.patience
        assert asyncio.run(execution_store.get_worker_by_id("the algorithm cleaned up"))

    def test_a_runner_that_outlives_its_cancellation_does_not_hold_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        start = time.monotonic()
        make_strategy(n_runners=2).execute(UntilClaimed(), StubbornRunner(), execution_store)
        assert time.monotonic() - start < self.patience
        assert asyncio.run(execution_store.get_worker_by_id("cancelled"))

    @pytest.mark.parametrize("n_runners", [1, 2])
    def test_ctrl_c_ends_the_run_normally(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, n_runners: int
    ):
        strategy = make_strategy(n_runners=n_runners)

        def running() -> bool:
            return asyncio.run(execution_store.get_worker_by_id("runner-0")) is not None

        with interrupted_when(running, self.patience):
            strategy.execute(WaitForTheEnd(), Present(), execution_store)
        assert strategy.interrupted
        assert asyncio.run(execution_store.get_worker_by_id("runner-0 saw the end"))
        strategy.execute(GiveTasks(2, self.patience), DoTasks(), execution_store)
        assert not strategy.interrupted


class LeftoverTests(ExecutionTests):
    """A run leaves no attempt open, no thread and no process."""

    @requires("fails_open_attempts")
    def test_what_a_deaf_runner_had_is_failed(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        make_strategy(n_runners=1).execute(UntilClaimed(), DeafRunner(), execution_store)
        (rollout,) = asyncio.run(execution_store.query_rollouts())
        assert rollout.status == "failed"

    def test_it_leaves_no_thread_behind(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        before = set(threading.enumerate())
        make_strategy(n_runners=2).execute(GiveTasks(4, self.patience), DoTasks(), execution_store)
        deadline = time.monotonic() + 5
        left: set[Any] = set()
        while time.monotonic() < deadline:
            left = {t for t in set(threading.enumerate()) - before if t.is_alive()}
            if not left:
                break
            for thread in left:
                thread.join(0.1)
        assert not left

    @requires("fails_open_attempts")
    def test_only_open_attempts_are_failed(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        make_strategy(n_runners=1).execute(UntilOneTimedOut(), DeafBatchRunner(), execution_store)
        attempts = asyncio.run(_attempts_by_input(execution_store))
        assert {name: attempt.status for name, attempt in attempts.items()} == {
            "done": "succeeded",
            "short": "timeout",
            "open": "failed",
            "noted": "failed",
        }
        assert isinstance(attempts["open"].metadata["error"], str)
        assert attempts["noted"].metadata["noted"] == 1

    def test_it_leaves_no_process_behind(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        before = children()
        make_strategy(n_runners=2).execute(GiveTasks(4, self.patience), DoTasks(), execution_store)
        make_strategy(n_runners=2).execute(UntilClaimed(), DeafRunner(), execution_store)
        deadline = time.monotonic() + 2
        while (left := children() - before) and time.monotonic() < deadline:
            time.sleep(0.02)  # children of others cannot be waited for
        assert not left, [command_of(pid) for pid in left]


async def _attempts_by_input(store: LightningStore) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rollout in await store.query_rollouts():
        found[rollout.input] = await store.get_latest_attempt(rollout.rollout_id)
    return found


@contextmanager
def interrupted_when(running: Callable[[], bool], patience: float) -> Iterator[None]:
    """Press Ctrl+C, once, as soon as a run is ready for it.

    Args:
        running: Tells whether it is.
        patience: Seconds after which Ctrl+C is pressed in any case.

    Raises:
        AssertionError: The run was not ready by then.
    """
    ended = threading.Event()
    late = threading.Event()

    def press() -> None:
        deadline = time.monotonic() + patience
        while not ended.wait(0.02):
            if time.monotonic() > deadline:
                late.set()
            if late.is_set() or running():
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        assert not late.is_set(), f"no runner has come within {patience:g} s"
