"""Faults of execution strategies: of threads in one process, and of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

from agl_core.store import InterceptedStore
from agl_exec_cs import ClientServerExecutionStrategy
from agl_exec_shm import SharedMemoryExecutionStrategy


class Threads(SharedMemoryExecutionStrategy):
    SUITE, FIXTURE = "ExecutionSuite", "make_strategy"
    FLAGS = ("fails_open_attempts", "watchdog")
    VALUE = "{fake}"
    CAUGHT_BY = ""

    def __init__(self, n_runners: int = 1) -> None:
        super().__init__(
            n_runners=n_runners, main_thread="algorithm", graceful_delay=0.5, join_timeout=5
        )


class Processes(ClientServerExecutionStrategy):
    SUITE, FIXTURE, FLAGS = "ExecutionSuite", "make_strategy", ("fails_open_attempts",)
    VALUE = "{fake}"
    CAUGHT_BY = ""

    def __init__(self, n_runners: int = 1) -> None:
        super().__init__(
            n_runners=n_runners, server_port=0, graceful_timeout=1, terminate_timeout=1
        )


GOOD = (Threads, Processes)


# -- runners that die -----------------------------------------------------------------------------


class IgnoresAKilledRunner(Processes):
    """A runner that was killed (SIGKILL) counts as one that has ended."""

    CAUGHT_BY = "test_a_killed_runner_is_noticed"
    SLOW = True

    def _children(self, *args: Any, **options: Any):
        children = super()._children(*args, **options)
        children._max_restarts, children._on_death = 0, None
        children._death = lambda child, stopping: ""
        return children


class TakesADeathForSuccess(Processes):
    """The attempt of a killed runner counts as one that succeeded."""

    CAUGHT_BY = "test_a_killed_runner_is_noticed"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        self.store = store
        super().execute(algorithm, runner, store)

    def _children(self, context: Any, stop: Any, on_death: Any, *args: Any, **options: Any):
        def died(name: str) -> bool:
            asyncio.run(self.succeed())
            return on_death(name)

        return super()._children(context, stop, died, *args, **options)

    async def succeed(self) -> None:
        for rollout in (await self.store.query_rollouts()).items:
            await self.store.update_attempt(rollout.rollout_id, "latest", status="succeeded")


class WaitsForTheDead(Processes):
    """It notices a killed runner only when the run ends."""

    CAUGHT_BY = "test_a_killed_runner_is_noticed"
    SLOW = True

    def _children(self, *args: Any, **options: Any):
        children = super()._children(*args, **options)
        watch = children._watch

        def late() -> None:
            children._stop.wait()
            watch()

        children._watcher._target = late  # pyright: ignore[reportAttributeAccessIssue]
        return children


class DiesWithItsRunner(Processes):
    """A killed runner ends the run without an error."""

    CAUGHT_BY = "test_a_killed_runner_is_noticed"

    def _children(self, *args: Any, **options: Any):
        children = super()._children(*args, **options)
        children._max_restarts = 0
        return children

    def _raise_failures(self, children: Any) -> None:
        if any("raised" in failure for failure in children.failures):
            super()._raise_failures(children)


# -- errors ---------------------------------------------------------------------------------------


class SwallowsSystemExitOfTheAlgorithm(Threads):
    """`sys.exit(3)` of the algorithm ends the run as if all were well."""

    CAUGHT_BY = "test_an_error_of_the_algorithm_keeps_its_type"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        with contextlib.suppress(SystemExit):
            super().execute(algorithm, runner, store)


class SwallowsSystemExitOfARunner(Threads):
    """A runner that calls `sys.exit` ends without a word, and the algorithm waits for ever."""

    CAUGHT_BY = "test_any_error_of_a_runner_is_an_error_of_the_run"
    SLOW = True

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        async def quiet(store: Any, worker_id: int, event: Any) -> None:
            with contextlib.suppress(SystemExit):
                await runner(store, worker_id, event)

        super().execute(algorithm, quiet, store)


class TurnsErrorsIntoAnother(Threads):
    """Every error becomes a RuntimeError that says nothing."""

    CAUGHT_BY = "test_an_error_of_the_algorithm_keeps_its_type"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        try:
            super().execute(algorithm, runner, store)
        except Exception:
            raise RuntimeError("the run failed") from None


class TurnsTimeoutsIntoSuccess(Threads):
    """A TimeoutError of the algorithm is taken for one of its own waiting."""

    CAUGHT_BY = "test_an_error_of_the_algorithm_keeps_its_type"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        with contextlib.suppress(TimeoutError):
            super().execute(algorithm, runner, store)


class TurnsCancellationIntoSuccess(Threads):
    """An algorithm that was cancelled from within counts as one that has finished."""

    CAUGHT_BY = "test_an_error_of_the_algorithm_keeps_its_type"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        async def run(store: Any, event: Any) -> None:
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await algorithm(store, event)

        super().execute(run, runner, store)


class SwallowsGroups(Threads):
    """Errors that come in a group, as those of a task group do, are taken for none."""

    CAUGHT_BY = "test_an_error_of_the_algorithm_keeps_its_type"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        with contextlib.suppress(ExceptionGroup):
            super().execute(algorithm, runner, store)


class LosesTheCause(Threads):
    """An error of the algorithm arrives without the one that it came from."""

    CAUGHT_BY = "test_an_error_of_a_library_arrives_with_its_cause"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        try:
            super().execute(algorithm, runner, store)
        except Exception as error:
            error.__cause__ = error.__context__ = None
            raise


class LosesErrorsThatPickleCannotRebuild(Processes):
    """An error of a runner that is not one of Python's own ends it without a word."""

    CAUGHT_BY = "test_an_error_of_a_library_arrives_with_its_cause"

    def _raise_failures(self, children: Any) -> None:
        if not any("ErrorOfALibrary" in failure for failure in children.failures):
            super()._raise_failures(children)


class IgnoresAnInterruptOfARunner(Threads):
    """A runner in which a library raised KeyboardInterrupt ends, and the algorithm waits."""

    CAUGHT_BY = "test_an_interrupt_of_a_library_does_not_hold_the_run"
    SLOW = True

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        async def quiet(store: Any, worker_id: int, event: Any) -> None:
            with contextlib.suppress(KeyboardInterrupt):
                await runner(store, worker_id, event)

        super().execute(algorithm, quiet, store)


# -- what it leaves behind ------------------------------------------------------------------------


class KeepsTheSignalHandler(Threads):
    """After the run Ctrl+C does nothing."""

    CAUGHT_BY = "test_it_leaves_the_process_as_it_was"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        super().execute(algorithm, runner, store)
        signal.signal(signal.SIGINT, lambda *_: None)


class ChangesTheEnvironment(Threads):
    """It leaves a variable that later runs read."""

    CAUGHT_BY = "test_it_leaves_the_process_as_it_was"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        os.environ["AGL_OF_A_RUN"] = "1"
        super().execute(algorithm, runner, store)


class ChangesTheFolder(Threads):
    """After a run, relative paths lead elsewhere."""

    CAUGHT_BY = "test_it_leaves_the_process_as_it_was"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        os.chdir("/")
        super().execute(algorithm, runner, store)


class ClosesTheCallersStore(Threads):
    """It closes a store that the caller goes on with."""

    CAUGHT_BY = "test_the_store_of_the_caller_stays_open"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        super().execute(algorithm, runner, store)
        asyncio.run(store.close())


class ForgetsTheLastTasks(Threads):
    """Runners get no work after the thirteenth task."""

    CAUGHT_BY = "test_both_sides_meet_in_one_store"

    def execute(self, algorithm: Any, runner: Any, store: Any) -> None:
        async def impatient(store: Any, event: Any) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(algorithm(store, event), 2)

        super().execute(impatient, runner, _GivesThirteen(store))


class _GivesThirteen(InterceptedStore):
    given = 0

    async def dequeue_rollout(self, *args: Any, **options: Any):
        claimed = None
        if self.given < 13:
            claimed = await super().dequeue_rollout(*args, **options)
        else:
            await asyncio.sleep(0.05)
        self.given += claimed is not None
        return claimed
