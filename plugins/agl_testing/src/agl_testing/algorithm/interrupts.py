"""Algorithms that are cancelled, share their loop, or continue a run that was cut off."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from agl_core.agent import LitAgent
from agl_core.algorithm import Algorithm
from agl_core.execution import (
    AlgorithmBundle,
    ExecutionEvent,
    ExecutionStrategy,
    RunnerBundle,
    ThreadingEvent,
)
from agl_core.runner import Hook
from agl_core.store import LightningStore
from agl_core.trainer import Trainer
from agl_core.types import FINISHED_STATUSES
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_store_memory import InMemoryLightningStore
from agl_testing.algorithm.base import N_RUNNERS, AlgorithmTests, statuses_of
from agl_testing.suite import requires

__all__ = ["InterruptTests"]

MakeTrainer = Callable[..., Trainer]

FIRST_TASKS_SECONDS: Final = 100
"""Within which an algorithm enqueues its first tasks. A trainer starts a model server before, which
took 30 s where others imported PyTorch on the same two cores."""
END_SECONDS: Final = 30
"""Within which a cancelled algorithm ends: it may give processes 5 s each before it kills them."""
LONGEST_BLOCK = 1.5
"""Seconds for which an algorithm may keep its loop busy: heartbeats and streams share it."""
_TICK_SECONDS: Final = 0.01
"""Between two looks at the loop: a tenth of the gap that counts."""
_Gap: TypeAlias = tuple[float, float]


class CancelTheAlgorithm(ExecutionStrategy):
    """Runs no agents, and cancels the algorithm when it has enqueued its first tasks."""

    ended = False
    cancelled = False

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        asyncio.run(self._execute(algorithm, store))

    async def _execute(self, algorithm: AlgorithmBundle, store: LightningStore) -> None:
        run = asyncio.ensure_future(algorithm(store, ThreadingEvent()))
        async with asyncio.timeout(FIRST_TASKS_SECONDS):
            # Not every store has an event for a rollout.
            while not run.done() and not (await store.query_rollouts(limit=0)).total:
                await asyncio.wait({run}, timeout=0.01)
        run.cancel()
        await asyncio.wait({run}, timeout=END_SECONDS)
        self.ended, self.cancelled = run.done(), run.cancelled()


class Wrapping(SharedMemoryExecutionStrategy):
    """Runs something beside the algorithm, on its loop."""

    def __init__(self) -> None:
        super().__init__(n_runners=N_RUNNERS, main_thread="algorithm")

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        async def both(store: LightningStore, event: ExecutionEvent) -> None:
            begin = asyncio.Event()

            async def begun() -> None:
                await begin.wait()
                await algorithm(store, event)

            run = asyncio.ensure_future(begun())
            beside = asyncio.ensure_future(self.beside(store, run))
            await asyncio.sleep(0)  # the other task sees the algorithm's first step
            begin.set()
            try:
                await asyncio.wait({run})
            finally:
                beside.cancel()
                run.cancel()
                await asyncio.wait({run, beside})
            if not run.cancelled():
                run.result()

        super().execute(both, runner, store)

    async def beside(self, store: LightningStore, run: asyncio.Future[None]) -> None:
        """Run until it is cancelled."""
        raise NotImplementedError


class MeasureTheLoop(Wrapping):
    """Measures for how long the algorithm keeps its loop from other tasks.

    On a busy machine everything waits. A thread shows when it does, and that time does not count.
    The CPU time of this process counts: a call that keeps the interpreter lock stops the thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0
        self._of_loop: list[_Gap] = []
        self._of_thread: list[_Gap] = []

    @property
    def longest(self) -> float:
        """The longest time in seconds in which the loop was kept and the thread was not."""
        return max((_without(gap, self._of_thread) for gap in self._of_loop), default=0.0)

    async def beside(self, store: LightningStore, run: asyncio.Future[None]) -> None:
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,))
        thread.start()
        try:
            before = time.monotonic()
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                before = _note(self._of_loop, before)
                self.ticks += 1
        finally:
            ended.set()
            thread.join()

    def _watch(self, ended: threading.Event) -> None:
        before = time.monotonic()
        while not ended.is_set():
            used = time.process_time()
            ended.wait(_TICK_SECONDS)
            before = _note(self._of_thread, before, time.process_time() - used)


def _note(gaps: list[_Gap], before: float, used: float = 0.0) -> float:
    """Note the time since the last tick, less ``used``, if it is long; return that of this tick."""
    now = time.monotonic()
    if now - before - used > 10 * _TICK_SECONDS:
        gaps.append((before + used, now))
    return now


def _without(gap: _Gap, others: Iterable[_Gap]) -> float:
    start, end = gap
    common = (min(end, last) - max(start, first) for first, last in others)
    return end - start - sum(seconds for seconds in common if seconds > 0)


class CutOff(Wrapping):
    """Cancels the algorithm when some tasks are done, as Ctrl+C does."""

    async def beside(self, store: LightningStore, run: asyncio.Future[None]) -> None:
        # Not every store has an event for a rollout.
        while (await store.query_rollouts(status_in=["succeeded"], limit=0)).total < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        run.cancel()


class SlowTasks(Hook):
    """Makes each task take a moment, so that a run can be cut off in the middle."""

    async def on_rollout_start(self, **given: Any) -> None:
        await asyncio.sleep(0.1)


class InterruptTests(AlgorithmTests):
    """An algorithm is a good neighbour on its loop, ends when told, and continues."""

    def test_it_ends_when_it_is_cancelled(
        self,
        make_trainer: MakeTrainer,
        algorithm: Algorithm,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        if not algorithm.is_async():
            return  # it runs in a thread, which cannot be cancelled
        strategy = CancelTheAlgorithm()
        make_trainer(strategy=strategy).fit(agent, train_dataset, val_dataset=val_dataset)
        assert strategy.ended, "it ignores that it was cancelled"
        assert strategy.cancelled, "it swallows that it was cancelled"
        assert set(statuses_of(algorithm_store)) <= FINISHED_STATUSES, "it leaves tasks queued"

    def test_it_does_not_block_its_loop(
        self,
        make_trainer: MakeTrainer,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        strategy = MeasureTheLoop()
        make_trainer(strategy=strategy).fit(agent, train_dataset, val_dataset=val_dataset)
        assert strategy.ticks
        assert strategy.longest < LONGEST_BLOCK

    @requires("resumes")
    def test_a_run_that_was_cut_off_continues(
        self,
        make_trainer: MakeTrainer,
        algorithm_store: InMemoryLightningStore,
        agent: LitAgent[Any],
        train_dataset: Any,
        val_dataset: Any,
    ):
        data: dict[str, Any] = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        reference = InMemoryLightningStore()
        make_trainer(run="whole", store=reference).fit(agent, **data)
        whole = statuses_of(reference).count("succeeded")
        make_trainer(run="cut", strategy=CutOff(), hooks=SlowTasks()).fit(agent, **data)
        before = statuses_of(algorithm_store).count("succeeded")
        assert before < whole, "the run has ended before it could be cut off"
        make_trainer(run="cut").fit(agent, **data)
        statuses = statuses_of(algorithm_store)
        assert set(statuses) <= FINISHED_STATUSES
        assert statuses.count("succeeded") == whole
        make_trainer(run="cut").fit(agent, **data)
        assert statuses_of(algorithm_store) == statuses, "a finished run has run again"
