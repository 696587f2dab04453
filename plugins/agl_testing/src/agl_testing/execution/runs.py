"""Ordinary runs: both bundles meet in one store."""

from __future__ import annotations

import asyncio

import pytest

from agl_core.execution import ExecutionEvent, ExecutionStrategy
from agl_core.store import LightningStore
from agl_testing.execution.base import ExecutionTests, MakeStrategy, WatchedStore
from agl_testing.execution.bundles import (
    ClaimWithDefaults,
    DoTasks,
    DoTasksThenReturn,
    GiveTasks,
    Leisurely,
    Present,
    StopTheRun,
    TakesItsTime,
    UntilAllWorkersCame,
)
from agl_testing.suite import requires

__all__ = ["RunTests"]


class RunTests(ExecutionTests):
    """Both bundles run to their end."""

    def test_it_is_a_strategy(self, make_strategy: MakeStrategy):
        strategy = make_strategy(n_runners=2)
        assert isinstance(strategy, ExecutionStrategy)
        assert strategy.n_runners == 2
        assert not strategy.interrupted

    @pytest.mark.parametrize("n_runners", [1, 3])
    def test_both_sides_meet_in_one_store(
        self,
        make_strategy: MakeStrategy,
        execution_store: WatchedStore,
        n_runners: int,
    ):
        strategy = make_strategy(n_runners=n_runners)
        strategy.execute(GiveTasks(20, self.patience), DoTasks(), execution_store)
        done = asyncio.run(execution_store.query_rollouts(status_in=["succeeded"]))
        assert done.total == 20
        assert not strategy.interrupted

    def test_it_can_execute_twice(self, make_strategy: MakeStrategy, execution_store: WatchedStore):
        strategy = make_strategy(n_runners=2)
        for _ in range(2):
            strategy.execute(GiveTasks(3, self.patience), DoTasks(), execution_store)
        assert asyncio.run(execution_store.query_rollouts()).total == 6

    @pytest.mark.parametrize("n_runners", [1, 3])
    def test_each_worker_runs_once_and_sees_the_end(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, n_runners: int
    ):
        strategy = make_strategy(n_runners=n_runners)
        strategy.execute(UntilAllWorkersCame(n_runners), Present(), execution_store)
        workers = asyncio.run(execution_store.query_workers())
        names = [f"runner-{i}" for i in range(n_runners)]
        expected = {"algorithm", *names, *(f"{name} saw the end" for name in names)}
        # A strategy may write workers of its own.
        strays = {f"runner-{n_runners}", f"runner-{n_runners} saw the end"}
        seen = {worker.worker_id for worker in workers}
        assert expected <= seen
        assert not strays & seen

    def test_the_event_ends_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        make_strategy(n_runners=1).execute(StopTheRun(), Present(), execution_store)
        worker = asyncio.run(execution_store.get_worker_by_id("runner-0 saw the end"))
        assert worker is not None

    def test_a_runner_that_returns_does_not_end_the_run(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        make_strategy(n_runners=2).execute(
            GiveTasks(12, self.patience), DoTasksThenReturn(), execution_store
        )
        done = asyncio.run(execution_store.query_rollouts(status_in=["succeeded"]))
        assert done.total == 12

    @pytest.mark.parametrize("n_runners", [1, 2])
    def test_the_algorithm_has_all_the_time_it_needs(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, n_runners: int
    ):
        make_strategy(n_runners=n_runners).execute(TakesItsTime(), Present(), execution_store)
        for name in ("algorithm", "runner-0"):
            assert asyncio.run(execution_store.get_worker_by_id(name)), name

    def test_a_bundle_has_time_to_end_by_itself(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        make_strategy(n_runners=2).execute(UntilAllWorkersCame(2), Leisurely(), execution_store)
        for index in range(2):
            name = f"runner-{index} ended by itself"
            assert asyncio.run(execution_store.get_worker_by_id(name)), name

    def test_the_store_of_a_bundle_is_a_store(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore
    ):
        make_strategy(n_runners=2).execute(ClaimWithDefaults(), Present(), execution_store)
        rollouts = asyncio.run(execution_store.query_rollouts())
        assert [rollout.input for rollout in rollouts] == [0, 1, 2]
        assert [rollout.status for rollout in rollouts][1:] == ["succeeded", "queuing"]

    @requires("watchdog")
    @pytest.mark.parametrize("n_runners", [1, 2])
    def test_the_stores_watchdog_runs(
        self, make_strategy: MakeStrategy, execution_store: WatchedStore, n_runners: int
    ):
        async def until_scanned(store: LightningStore, event: ExecutionEvent) -> None:
            async with asyncio.timeout(self.patience):
                while not execution_store.scans:  # noqa: ASYNC110 -- a count has no event
                    await asyncio.sleep(0.01)

        make_strategy(n_runners=n_runners).execute(until_scanned, Present(), execution_store)
