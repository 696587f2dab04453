"""Runners that are killed, errors of every kind, and what a run changes in its process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from agl_testing.execution.base import ExecutionTests, MakeStrategy, WatchedStore
from agl_testing.execution.bundles import (
    IN_PROCESS,
    UNNOTICED,
    DoTasks,
    FailsWith,
    GiveTasks,
    KilledOnce,
    Present,
    UntilItIsTriedAgain,
    WaitForTheEnd,
)

__all__ = ["FaultTests"]

ERRORS: list[BaseException] = [
    SystemExit(3),
    TimeoutError("the batch took too long"),
    ConnectionError("the model is away"),
    RuntimeError("the bundle's own"),
]


class FaultTests(ExecutionTests):
    """No death and no error of a bundle looks like the end of its work."""

    @pytest.mark.parametrize("n_runners", [1, 2])
    def test_a_killed_runner_is_noticed(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, n_runners: int
    ):
        """With runners in the test's own process, it is an ordinary run."""
        start = time.monotonic()
        failure: Exception | None = None
        try:
            make_strategy(n_runners=n_runners).execute(
                UntilItIsTriedAgain(0.7 * self.patience), KilledOnce(), execution_store
            )
        except Exception as error:
            failure = error
        assert UNNOTICED not in str(failure), UNNOTICED
        assert time.monotonic() - start < self.patience, "the run does not end after a kill"
        (rollout,) = asyncio.run(execution_store.query_rollouts())
        attempts = asyncio.run(execution_store.query_attempts(rollout.rollout_id))
        left = [attempt.status for attempt in attempts if attempt.end_time is None]
        assert not left, f"an attempt of the runner that was killed stays {left[0]}"
        if asyncio.run(execution_store.get_worker_by_id(IN_PROCESS)) is None:
            assert attempts[0].status != "succeeded", "a kill counts as success"
        # Either another runner did the task, or the run failed and says so.
        assert rollout.status == "succeeded" or failure is not None, "the task is lost"

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_an_error_of_the_algorithm_keeps_its_type(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, error: BaseException
    ):
        seen = self._ends_with(make_strategy, execution_store, FailsWith(error), Present())
        assert type(seen) is type(error), f"{error!r} has become {seen!r}"
        assert str(seen) == str(error)

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_any_error_of_a_runner_is_an_error_of_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, error: BaseException
    ):
        seen = self._ends_with(make_strategy, execution_store, WaitForTheEnd(), FailsWith(error))
        assert seen is not None, f"a runner raised {error!r}, and the run ends as if all were well"

    def _ends_with(
        self, make_strategy: MakeStrategy, store: WatchedStore, algorithm: object, runner: object
    ) -> BaseException | None:
        start = time.monotonic()
        try:
            make_strategy(n_runners=2).execute(algorithm, runner, store)  # pyright: ignore[reportArgumentType]
        except BaseException as error:
            return error
        finally:
            assert time.monotonic() - start < self.patience
        return None

    def test_it_leaves_the_process_as_it_was(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        def state() -> tuple[object, ...]:
            handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
            return handlers, dict(os.environ), Path.cwd(), list(sys.path)

        strategy = make_strategy(n_runners=2)
        before = state()
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        strategy.execute(GiveTasks(2), DoTasks(), execution_store)
        after = state()
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)  # or later tests would miss Ctrl+C
        assert after == before
