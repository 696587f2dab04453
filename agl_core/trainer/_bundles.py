"""The two bundles of a run that a trainer hands to an execution strategy.

Both are plain objects that pickle (with cloudpickle, for agents and algorithms defined in
``__main__``), because a strategy may call them in other processes.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from agl_core.algorithm import Run, RunContext
from agl_core.llm_server._behind import serving_behind
from agl_core.metrics import recording, sampled
from agl_core.plugins._events import has_listeners
from agl_core.store import intercept
from agl_core.sync_calls import SyncCalls
from agl_core.trainer._announce import AnnounceResources

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.agent import LitAgent
    from agl_core.algorithm import Algorithm, RewardRange
    from agl_core.llm_server import LLMServer
    from agl_core.metrics import Metrics
    from agl_core.proxy import LLMProxy
    from agl_core.runner import Hook, Runner
    from agl_core.store import LightningStore
    from agl_core.trainer._trainer import Trainer
    from agl_core.types import Dataset, ExecutionEvent, NamedResources

logger = logging.getLogger(__name__)

_RESOURCES_SECONDS = 10.0
"""Storing a snapshot takes milliseconds; who enqueues may also bring the resources later."""
_LOOK_SECONDS = 0.05
"""Between two looks for the snapshot: a store has no event for it."""


@dataclass
class AlgorithmSide:
    """Runs the algorithm once; without one, keeps the runners working until the run is stopped."""

    trainer: Trainer
    algorithm: Algorithm | None
    adapter: Adapter[Any, Any] | None
    llm_proxy: LLMProxy | None
    initial_resources: NamedResources | None
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    llm_server: LLMServer | None = None
    run: str = ""
    run_class: type[Run] = Run
    trackers: Sequence[Metrics] = ()
    reward_range: RewardRange | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parts of the run, for its history."""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        with recording(*self.trackers):
            async with sampled(store):
                await self._run(store, event)

    async def _run(self, store: LightningStore, event: ExecutionEvent) -> None:
        if not hasattr(self.trainer, "store"):
            self.trainer.store = store  # the trainer was pickled without its store
        if self.llm_proxy is not None:
            self.llm_proxy.set_store(store)
        algorithm = self.algorithm
        if algorithm is None:
            if self.initial_resources:
                await store.add_resources(self.initial_resources)
            said = "No algorithm: runners run the rollouts that others enqueue, until Ctrl+C"
            if self.train_dataset is not None:
                logger.warning("%s. Nobody enqueues the dataset: give Trainer(algorithm=)", said)
            else:
                logger.info(said)
            await event.wait_async()
            return
        run = await self.run_class.open(store, self.run)
        run.reward_range = self.reward_range
        run.origin = algorithm.display_name
        if run.finished:
            if not algorithm.has_more_to_do(run):
                logger.warning(
                    "The run %r is finished; nothing to do. Another name starts a new run", run.name
                )
                return
            logger.info("The run %r goes on: it is asked for more than it has done", run.name)
            await run.reopen()
        if has_listeners():
            store = intercept(store, AnnounceResources(algorithm.display_name))
        resources = self.initial_resources
        if resources is None:
            resources = algorithm.get_initial_resources()
        algorithm.set_context(
            RunContext(
                store=store,
                adapter=self.adapter,
                llm_proxy=self.llm_proxy,
                llm_server=self.llm_server,
                initial_resources=resources,
                run=run,
                trainer=self.trainer,
                strategy=self.trainer.strategy,
                reward_range=self.reward_range,
            )
        )
        datasets = {"train_dataset": self.train_dataset, "val_dataset": self.val_dataset}
        async with run.recording(self.about), serving_behind(self.llm_proxy, self.llm_server):
            try:
                if algorithm.is_async():
                    await algorithm.run(**datasets)  # pyright: ignore[reportGeneralTypeIssues]
                else:
                    await _run_sync(partial(algorithm.run, **datasets))
            except BaseExceptionGroup as group:  # of a task group in the algorithm
                raise _first_failure(group) from None
        await run.finish(has_result=self.about.get("mode") != "eval")


def _first_failure(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the failure of a group that ends the run, and log the others.

    It is an exit (``sys.exit``, Ctrl+C) if there is one, else the first, which says what to do.
    """
    failures = [*_flat(group)]
    first = next((one for one in failures if not isinstance(one, Exception)), failures[0])
    for other in failures:
        if other is not first:
            logger.error("Another failure", exc_info=other)
    return first


def _flat(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for part in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _flat(part)


async def _run_sync(call: Callable[[], Any]) -> None:
    """Run a sync algorithm in a thread, which is abandoned if the run is stopped."""
    calls = SyncCalls("algorithm")
    try:
        outcome = await calls.submit(call)
    finally:
        calls.close()
    if outcome.error is not None:
        raise outcome.error


@dataclass(eq=False)
class RunnerSide:
    """Runs workers: each has a copy of the runner, from its first rollout to the stop event.

    Thread-safe: several workers of a process use one object concurrently.

    Args:
        runner: Set up with the first worker of the process, torn down after the last.
        agent: The agent that runs the tasks.
        hooks: Callbacks around each rollout.
        llm_proxy: The proxy that issues the agents' keys; in another process, a stopped copy.
        trackers: Where the metrics of the runners go.
        needs_resources: Whether the other side begins by storing resources. A rollout that is in
            the store already would fail if it began before.
    """

    runner: Runner[Any]
    agent: LitAgent[Any]
    hooks: Sequence[Hook]
    llm_proxy: LLMProxy | None = None
    trackers: Sequence[Metrics] = ()
    needs_resources: bool = False

    def __post_init__(self) -> None:
        self._recording = ExitStack()
        self._workers = 0
        self._lock = threading.Lock()

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
        if self.needs_resources:
            await _wait_for_resources(store, event)
        with self._shared_runner() as runner:
            runner.init_worker(worker_id, store)
            try:
                await runner.iter(event=event)
            finally:
                runner.teardown_worker(worker_id)

    @contextmanager
    def _shared_runner(self) -> Generator[Runner[Any]]:
        with self._lock:
            if self._workers == 0:
                self._recording.enter_context(recording(*self.trackers))
                more: dict[str, Any] = {"llm_proxy": self.llm_proxy} if self.llm_proxy else {}
                self.runner.init(self.agent, hooks=self.hooks, **more)
            self._workers += 1
        try:
            yield copy.copy(self.runner)
        finally:
            with self._lock:
                self._workers -= 1
                if self._workers == 0:
                    with self._recording:  # closed even if the runner fails
                        self.runner.teardown()

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.runner, self.agent, self.hooks, self.llm_proxy, self.trackers)
        return type(self), (*parts, self.needs_resources)


async def _wait_for_resources(store: LightningStore, event: ExecutionEvent) -> None:
    """Wait until the store has a snapshot or the run is stopped, at most some seconds."""
    deadline = time.monotonic() + _RESOURCES_SECONDS
    stopped = asyncio.ensure_future(event.wait_async())
    try:
        while await store.get_latest_resources() is None and time.monotonic() < deadline:
            await asyncio.wait({stopped}, timeout=_LOOK_SECONDS)
            if stopped.done():
                return
    finally:
        stopped.cancel()
