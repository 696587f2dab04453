"""Execution strategies that are wrong in one way each."""

from __future__ import annotations

import contextlib
import threading
import time

from agl_core.execution import SharedMemoryExecutionStrategy
from agl_core.store import InMemoryLightningStore


class Base(SharedMemoryExecutionStrategy):
    CAUGHT_BY = ""

    def __init__(self, n_runners: int = 1) -> None:
        super().__init__(
            n_runners=n_runners, main_thread="algorithm", graceful_delay=0.5, join_timeout=5
        )


class HasAStoreOfItsOwn(Base):
    CAUGHT_BY = "test_both_sides_meet_in_one_store"

    def execute(self, algorithm, runner, store):
        super().execute(algorithm, runner, InMemoryLightningStore())


class SwallowsTheAlgorithmsError(Base):
    CAUGHT_BY = "test_the_algorithms_error_stops_the_run_and_is_raised"

    def execute(self, algorithm, runner, store):
        with contextlib.suppress(ZeroDivisionError):
            super().execute(algorithm, runner, store)


class SwallowsTheRunnersError(Base):
    CAUGHT_BY = "test_a_runners_error_stops_the_run_and_is_raised"

    def execute(self, algorithm, runner, store):
        with contextlib.suppress(ZeroDivisionError):
            super().execute(algorithm, runner, store)


class LeavesAttemptsOpen(Base):
    CAUGHT_BY = "test_what_a_deaf_runner_had_is_failed"

    def __init__(self, n_runners: int = 1) -> None:
        super().__init__(n_runners)
        self.managed_store = False


class LeavesAThread(Base):
    CAUGHT_BY = "test_it_leaves_no_thread_behind"

    def execute(self, algorithm, runner, store):
        super().execute(algorithm, runner, store)
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()


class RunsOnce(Base):
    CAUGHT_BY = "test_it_can_execute_twice"
    ran = False

    def execute(self, algorithm, runner, store):
        if self.ran:
            raise RuntimeError("this strategy has run")
        self.ran = True
        super().execute(algorithm, runner, store)


class IgnoresTheNumber(Base):
    CAUGHT_BY = "test_it_is_a_strategy"

    def __init__(self, n_runners: int = 1) -> None:
        super().__init__(1)
