"""Execution strategies that are wrong in one way each."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time

from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_store_memory import InMemoryLightningStore


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


class LeavesAProcess(Base):
    CAUGHT_BY = "test_it_leaves_no_process_behind"

    def execute(self, algorithm, runner, store):
        super().execute(algorithm, runner, store)
        # The process ends by itself when this one does: its standard input is a pipe.
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        self.left = subprocess.Popen(command, stdin=subprocess.PIPE)


class Wrapped(Base):
    """Runs other bundles than it was given."""

    def execute(self, algorithm, runner, store):
        super().execute(self.algorithm(algorithm), self.runner(runner), store)

    def algorithm(self, algorithm):
        return algorithm

    def runner(self, runner):
        return runner


class ForgivesAllButTheFirstRunner(Wrapped):
    CAUGHT_BY = "test_one_failing_runner_of_three_stops_the_run"

    def algorithm(self, algorithm):
        async def impatient(store, event):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(algorithm(store, event), 0.5)

        return impatient

    def runner(self, runner):
        async def forgiven(store, worker_id, event):
            try:
                await runner(store, worker_id, event)
            except ZeroDivisionError:
                if worker_id == 0:
                    raise

        return forgiven


class EndsWithTheFirstRunner(Wrapped):
    CAUGHT_BY = "test_a_runner_that_returns_does_not_end_the_run"

    def runner(self, runner):
        async def ending(store, worker_id, event):
            await runner(store, worker_id, event)
            event.set()

        return ending


class StartsOneWorkerOnly(Wrapped):
    CAUGHT_BY = "test_each_worker_runs_once_and_sees_the_end"

    def algorithm(self, algorithm):
        async def impatient(store, event):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(algorithm(store, event), 0.5)

        return impatient

    def runner(self, runner):
        async def only_one(store, worker_id, event):
            await (event.wait_async() if worker_id else runner(store, worker_id, event))

        return only_one


class RaisesTheRunnersErrorFirst(Base):
    CAUGHT_BY = "test_the_algorithms_error_comes_first"

    def execute(self, algorithm, runner, store):
        try:
            super().execute(algorithm, runner, store)
        except ZeroDivisionError as error:
            raise RuntimeError("the runner failed") from error


class ForgetsCtrlC(Base):
    CAUGHT_BY = "test_ctrl_c_ends_the_run_normally"

    def execute(self, algorithm, runner, store):
        super().execute(algorithm, runner, store)
        self.interrupted = False


class ScansNothing(Base):
    CAUGHT_BY = "test_the_stores_watchdog_runs"

    def __init__(self, n_runners: int = 1) -> None:
        super().__init__(n_runners)
        self.managed_store = False


class FailsWhatHasEnded(Base):
    CAUGHT_BY = "test_only_open_attempts_are_failed"

    def execute(self, algorithm, runner, store):
        super().execute(algorithm, runner, store)

        async def fail():
            for rollout in await store.query_rollouts():
                await store.update_attempt(rollout.rollout_id, "latest", status="failed")

        asyncio.run(fail())


class CancelsWithoutCleaningUp(Wrapped):
    CAUGHT_BY = "test_an_algorithm_that_ignores_the_end_is_cancelled"

    def algorithm(self, algorithm):
        async def cut(store, event):
            run = asyncio.ensure_future(algorithm(store, event))
            await event.wait_async()
            run.get_coro().close()

        return cut


class GivesNoGrace(Base):
    CAUGHT_BY = "test_a_bundle_has_time_to_end_by_itself"

    def __init__(self, n_runners: int = 1) -> None:
        super().__init__(n_runners)
        self.graceful_delay = 0.0
