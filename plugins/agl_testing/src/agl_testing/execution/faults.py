"""Runners that are killed, errors of every kind, and what a run changes in its process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agl_core.execution import ExecutionStrategy
from agl_testing.errors import causes
from agl_testing.execution.base import ExecutionTests, MakeStrategy, WatchedStore
from agl_testing.execution.bundles import (
    IN_PROCESS,
    UNNOTICED,
    DoTasks,
    FailsInALibrary,
    FailsWith,
    GiveTasks,
    InterruptsItself,
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
    ExceptionGroup("two parts", [ValueError("one"), ValueError("two")]),
]


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def process_state() -> dict[str, Any]:
    """Return, by name, what a run must leave as it was: later runs and other code depend on it."""
    state: dict[str, Any] = {f"handler of {one.name}": signal.getsignal(one) for one in SIGNALS}
    state |= {f"environment variable {key}": value for key, value in os.environ.items()}
    state.pop("environment variable PYTEST_CURRENT_TEST", None)  # pytest changes it
    return {**state, "working folder": Path.cwd(), "sys.path": list(sys.path)}


def changes(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Return the names of what has changed; values may be secrets."""
    return {name for name in before | after if before.get(name) != after.get(name)}


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
        seen = self._ends_with(
            make_strategy(n_runners=2), execution_store, FailsWith(error), Present()
        )
        assert type(seen) is type(error), f"{error!r} has become {seen!r}"
        assert str(seen) == str(error)

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_any_error_of_a_runner_is_an_error_of_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, error: BaseException
    ):
        seen = self._ends_with(
            make_strategy(n_runners=2), execution_store, WaitForTheEnd(), FailsWith(error)
        )
        assert seen is not None, f"a runner raised {error!r}, and the run ends as if all were well"

    @pytest.mark.parametrize("side", ["algorithm", "runner"])
    def test_an_error_of_a_library_arrives_with_its_cause(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, side: str
    ):
        fails = FailsInALibrary()
        bundles = (fails, Present()) if side == "algorithm" else (WaitForTheEnd(), fails)
        seen = self._ends_with(make_strategy(n_runners=2), execution_store, *bundles)
        assert seen is not None, "an error that pickle cannot rebuild is no error of the run"
        said = str([str(error) for error in causes(seen)])
        assert "the tokenizer is gone (7)" in said
        # The error of a runner elsewhere is told in words; its traceback is in its log.
        assert side == "runner" or "no such file" in said, "the cause of the error is lost"

    def test_an_interrupt_of_a_library_does_not_hold_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        """The run ends, or a runner does the task again."""
        strategy = make_strategy(n_runners=1)
        waits = UntilItIsTriedAgain(0.7 * self.patience)
        seen = self._ends_with(strategy, execution_store, waits, InterruptsItself())
        assert UNNOTICED not in str(seen), "nobody noticed that a runner was interrupted"
        (rollout,) = asyncio.run(execution_store.query_rollouts())
        done = rollout.status == "succeeded"
        assert done or strategy.interrupted or seen is not None, "the task is lost without a word"

    def test_the_store_of_the_caller_stays_open(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        make_strategy(n_runners=2).execute(GiveTasks(2, self.patience), DoTasks(), execution_store)
        assert not execution_store.closed, "it closes a store that is the caller's"

    def _ends_with(
        self, strategy: ExecutionStrategy, store: WatchedStore, algorithm: object, runner: object
    ) -> BaseException | None:
        start = time.monotonic()
        try:
            strategy.execute(algorithm, runner, store)  # pyright: ignore[reportArgumentType]
        except BaseException as error:
            return error
        finally:
            assert time.monotonic() - start < self.patience
        return None

    _process_at_first: ClassVar[dict[type, dict[str, Any]]] = {}
    _changed_by_runs: ClassVar[dict[type, set[str]]] = {}

    @pytest.fixture(autouse=True)
    def changed_by_runs(self, make_strategy: MakeStrategy) -> Iterator[set[str]]:
        """Note what the tests of the class change in the process.

        It needs ``make_strategy``, so that what the author's fixtures change is not noted.
        """
        before = process_state()
        self._process_at_first.setdefault(type(self), before)
        changed = self._changed_by_runs.setdefault(type(self), set())
        yield changed
        changed |= changes(before, process_state())

    def test_it_leaves_the_process_as_it_was(
        self,
        make_strategy: MakeStrategy,
        execution_store: WatchedStore,
        changed_by_runs: set[str],
    ):
        at_first, before = self._process_at_first[type(self)], process_state()
        make_strategy(n_runners=2).execute(GiveTasks(2, self.patience), DoTasks(), execution_store)
        after = process_state()
        for one in SIGNALS:
            # Or later tests would miss Ctrl+C.
            signal.signal(one, at_first[f"handler of {one.name}"])
        left = changes(before, after) | (changes(at_first, after) & changed_by_runs)
        assert not left, f"runs leave these changed: {sorted(left)}"
