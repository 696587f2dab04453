"""Bundles for tests of strategies: classes, so that strategies with processes can pickle them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

from agl_core.execution import ExecutionEvent
from agl_core.store import LightningStore
from agl_core.types import EnqueueRolloutRequest, RolloutConfig

__all__ = [
    "IN_PROCESS",
    "UNNOTICED",
    "ClaimWithDefaults",
    "DeafBatchRunner",
    "DeafRunner",
    "DoTasks",
    "DoTasksThenReturn",
    "FailAtTheEnd",
    "FailingAlgorithm",
    "FailingRunner",
    "FailingWorker",
    "FailsInALibrary",
    "FailsWith",
    "GiveTasks",
    "IgnoreTheEnd",
    "InterruptsItself",
    "KilledOnce",
    "Leisurely",
    "Present",
    "StopTheRun",
    "StubbornRunner",
    "TakesItsTime",
    "UntilAllWorkersCame",
    "UntilClaimed",
    "UntilItIsTriedAgain",
    "UntilOneTimedOut",
    "WaitForTheEnd",
    "appears",
]

IN_PROCESS = "in the process of the test"
"""Worker that :class:`KilledOnce` writes if it cannot kill itself."""
UNNOTICED = "nobody noticed that the runner was killed"


async def appears(store: LightningStore, *worker_ids: str) -> None:
    """Wait until these workers have sent a heartbeat."""
    # Stores without the flag `events` have no event for it.
    while not all([await store.get_worker_by_id(name) for name in worker_ids]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


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
    """An algorithm bundle that enqueues tasks and waits for their results.

    Args:
        tasks: Number of tasks.
        patience: Longest wait, in seconds.
    """

    def __init__(self, tasks: int, patience: float) -> None:
        self.tasks = tasks
        self.patience = patience

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        ids = [(await store.enqueue_rollout(i)).rollout_id for i in range(self.tasks)]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=self.patience)
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


class IgnoreTheEnd:
    """An algorithm bundle that ignores the stop event until it is cancelled, then cleans up."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            await store.update_worker("the algorithm cleaned up")


class FailAtTheEnd:
    """An algorithm bundle that raises because the run ends."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        await event.wait_async()
        raise ZeroDivisionError("the algorithm failed")


class StopTheRun:
    """An algorithm bundle that uses every method of the event and sets it."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        await appears(store, "runner-0")
        assert not event.is_set()
        assert event.wait(0.01) is False
        event.set()
        assert event.is_set()
        assert event.wait(5) is True
        await event.wait_async()
        await appears(store, "runner-0 saw the end")


class UntilAllWorkersCame:
    """An algorithm bundle that returns when this number of runners runs at once."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        await appears(store, *(f"runner-{i}" for i in range(self.workers)))
        await store.update_worker("algorithm")


class Present:
    """A runner bundle that reports its worker id and stays until the stop event."""

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await store.update_worker(f"runner-{worker_id}")
        try:
            await event.wait_async()
        finally:  # Ctrl+C may cancel a bundle at once
            await store.update_worker(f"runner-{worker_id} saw the end")


class FailingWorker:
    """A runner bundle that raises in one worker only, once all of them run."""

    def __init__(self, failing: int, workers: int) -> None:
        self.failing = failing
        self.workers = workers

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await store.update_worker(f"runner-{worker_id}")
        await appears(store, *(f"runner-{i}" for i in range(self.workers)))
        if worker_id == self.failing:
            raise ZeroDivisionError("the runner failed")
        await event.wait_async()


class DoTasksThenReturn:
    """A runner bundle in which worker 0 returns after its first task, long before the end.

    The others start after that task and take their time, or they might be done before it.
    """

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        while not event.is_set():
            if worker_id and await store.get_worker_by_id("the first task is done") is None:
                await asyncio.sleep(0.01)
                continue
            claimed = await store.dequeue_rollout(f"Worker-{worker_id}", wait=0.2)
            if claimed is None:
                continue
            await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
            if worker_id == 0:
                await store.update_worker("the first task is done")
                return
            await asyncio.sleep(0.05)


class StubbornRunner:
    """A runner bundle that ignores the stop event, and waits on after it was cancelled."""

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await store.dequeue_rollout(f"Worker-{worker_id}", wait=30)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await store.update_worker("cancelled")
        await asyncio.Event().wait()


class DeafBatchRunner:
    """A runner bundle that claims three tasks at once, notes the last and ignores the stop event.

    It finishes a fourth task.
    """

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        done = await store.dequeue_rollout(f"Worker-{worker_id}", wait=30)
        assert done is not None
        await store.update_attempt(done.rollout_id, "latest", status="succeeded")
        claimed: list[Any] = []
        while len(claimed) < 3:
            claimed += await store.dequeue_many_rollouts(limit=3, worker_id="w", wait=30)
        await store.update_attempt(claimed[-1].rollout_id, "latest", metadata={"noted": 1})
        await store.update_worker("claimed")
        await asyncio.Event().wait()


class UntilOneTimedOut:
    """An algorithm bundle for :class:`DeafBatchRunner`: the first of its three tasks times out."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout("done")
        short, long = RolloutConfig(timeout_seconds=0.05), RolloutConfig()
        rollouts = await store.enqueue_many_rollouts(
            [
                EnqueueRolloutRequest(input="short", config=short),
                EnqueueRolloutRequest(input="open", config=long),
                EnqueueRolloutRequest(input="noted", config=long),
            ]
        )
        await appears(store, "claimed")
        await store.wait_for_rollouts(rollout_ids=[rollouts[0].rollout_id], timeout=30)


class Leisurely:
    """A runner bundle that needs a moment to end by itself, and notes whether it had it."""

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        await store.update_worker(f"runner-{worker_id}")
        await event.wait_async()
        await asyncio.sleep(0.05)
        await store.update_worker(f"runner-{worker_id} ended by itself")


class ClaimWithDefaults:
    """An algorithm bundle that claims without arguments."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        start = asyncio.get_running_loop().time()
        assert await store.dequeue_rollout() is None
        assert list(await store.dequeue_many_rollouts()) == []
        assert asyncio.get_running_loop().time() - start < 0.9
        for index in range(3):
            await store.enqueue_rollout(index)
        assert [claimed.input for claimed in await store.dequeue_many_rollouts()] == [0]
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        ended = await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
        assert ended.attempt_id == claimed.attempt.attempt_id


class TakesItsTime:
    """An algorithm bundle that takes longer than the grace periods, beside a runner."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        await appears(store, "runner-0")  # a cluster may take longer than this to start it
        await asyncio.sleep(1.5)
        await store.update_worker("algorithm")


class FailsWith:
    """A bundle of either side that raises an error, as an algorithm once a runner runs."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def __call__(self, store: LightningStore, *rest: Any) -> None:
        if len(rest) == 1:
            await appears(store, "runner-0")
        raise self.error


class ErrorOfALibrary(Exception):
    """An error as libraries define them: pickle cannot rebuild it from its message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


class FailsInALibrary:
    """A bundle of either side that raises such an error, from another one."""

    async def __call__(self, store: LightningStore, *rest: Any) -> None:
        raise ErrorOfALibrary(7, "the tokenizer is gone") from KeyError("no such file")


class InterruptsItself:
    """A runner bundle in whose first task a library raises KeyboardInterrupt."""

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        while not event.is_set():
            claimed = await store.dequeue_rollout(f"Worker-{worker_id}", wait=0.2)
            if claimed is None:
                continue
            first = claimed.attempt.sequence_id == 1
            status = "failed" if first else "succeeded"
            await store.update_attempt(claimed.rollout_id, "latest", status=status)
            if first:
                raise KeyboardInterrupt


class KilledOnce:
    """A runner bundle whose process kills itself in its first task, as the kernel does.

    In the process that made the bundle it reports that instead, and does its tasks.
    """

    def __init__(self) -> None:
        self.place = (socket.gethostname(), os.getpid())

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        if self.place == (socket.gethostname(), os.getpid()):
            await store.update_worker(IN_PROCESS)
        while not event.is_set():
            claimed = await store.dequeue_rollout(f"Worker-{worker_id}", wait=0.2)
            if claimed is None:
                continue
            alone = await store.get_worker_by_id(IN_PROCESS) is None
            if alone and claimed.attempt.sequence_id == 1:
                await store.update_attempt(claimed.rollout_id, "latest", status="running")
                os.kill(os.getpid(), signal.SIGKILL)
            await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")


class UntilItIsTriedAgain:
    """An algorithm bundle whose task may be tried twice; it waits for the end of the task.

    Args:
        seconds: Seconds within which the strategy must notice that a runner has ended.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        config = RolloutConfig(max_attempts=2, retry_condition=["failed", "unresponsive"])
        rollout = await store.enqueue_rollout("x", config=config)
        deadline = asyncio.get_running_loop().time() + self._seconds
        # A strategy that does not replace a dead runner ends the run instead.
        while not event.is_set():
            if await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0.5):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(UNNOTICED)
