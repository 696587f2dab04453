"""Algorithms that are wrong in one way each."""

from __future__ import annotations

import asyncio
import contextlib
import time

from agl_algorithm_kit import Baseline
from agl_core.algorithm import FastAlgorithm, Run


class Base(Baseline):
    CAUGHT_BY = ""

    def __init__(self) -> None:
        super().__init__(span_verbosity="none")


class LeavesWorkBehind(Base):
    CAUGHT_BY = "test_a_run_ends_and_leaves_no_rollout_open"

    async def run(self, train_dataset=None, val_dataset=None):
        for task in [*(train_dataset or []), *(val_dataset or [])]:
            await self.get_store().enqueue_rollout(task)


class DoesNothing(Base):
    CAUGHT_BY = "test_a_run_ends_and_leaves_no_rollout_open"

    async def run(self, train_dataset=None, val_dataset=None):
        return None


class RunsOnce(Base):
    CAUGHT_BY = "test_it_can_run_twice"
    ran = False

    async def run(self, train_dataset=None, val_dataset=None):
        if self.ran:
            raise RuntimeError("this algorithm has run")
        self.ran = True
        await super().run(train_dataset=train_dataset, val_dataset=val_dataset)


class NeedsData(Base):
    CAUGHT_BY = "test_missing_datasets_are_accepted"

    async def run(self, train_dataset=None, val_dataset=None):
        if not train_dataset:
            raise ValueError("no data")
        await super().run(train_dataset=train_dataset, val_dataset=val_dataset)


class KeepsItsResourcesToItself(Base):
    CAUGHT_BY = "test_it_writes_resources"

    async def run(self, train_dataset=None, val_dataset=None):
        resources = self.get_initial_resources() or {}
        others = {f"tuned_{name}": resource for name, resource in resources.items()}
        await super().run(train_dataset=train_dataset, val_dataset=val_dataset)
        await self.get_store().add_resources(others)


class GivesUpWithoutAWord(FastAlgorithm):
    CAUGHT_BY = "test_an_agent_that_always_fails_does_not_hang_it"

    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        await store.add_resources(self.get_initial_resources() or {})
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in train_dataset or []]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=30)
        if any(rollout.status == "failed" for rollout in done):
            raise RuntimeError


class RestsOnItsSecondRun(Base):
    CAUGHT_BY = "test_a_second_run_does_its_work_again"
    ran = False

    async def run(self, train_dataset=None, val_dataset=None):
        if not self.ran:
            self.ran = True
            await super().run(train_dataset=train_dataset, val_dataset=val_dataset)


class TrainsOnValidationTasks(Base):
    CAUGHT_BY = "test_validation_tasks_are_not_trained_on"

    async def run(self, train_dataset=None, val_dataset=None):
        await super().run(train_dataset=[*(train_dataset or []), *(val_dataset or [])])


class SaysNothingOfItsPurpose(FastAlgorithm):
    CAUGHT_BY = "test_validation_tasks_are_not_trained_on"

    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        await store.add_resources(self.get_initial_resources() or {})
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in train_dataset or []]
        await store.wait_for_rollouts(rollout_ids=ids, timeout=30)


class SwallowsCancellation(Base):
    CAUGHT_BY = "test_it_ends_when_it_is_cancelled"

    async def run(self, train_dataset=None, val_dataset=None):
        with contextlib.suppress(asyncio.CancelledError):
            await super().run(train_dataset=train_dataset, val_dataset=val_dataset)


class LeavesItsQueueWhenCancelled(FastAlgorithm):
    CAUGHT_BY = "test_it_ends_when_it_is_cancelled"

    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        await store.add_resources(self.get_initial_resources() or {})
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in train_dataset or []]
        await store.wait_for_rollouts(rollout_ids=ids, timeout=30)


class BlocksTheLoop(Base):
    CAUGHT_BY = "test_it_does_not_block_its_loop"

    async def run(self, train_dataset=None, val_dataset=None):
        time.sleep(2.5)  # as a training step in the loop does
        await super().run(train_dataset=train_dataset, val_dataset=val_dataset)


class StartsOver(Base):
    CAUGHT_BY = "test_a_run_that_was_cut_off_continues"

    def get_run(self):
        return Run(self.get_store())
