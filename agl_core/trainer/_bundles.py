"""The two bundles of a run that a trainer hands to an execution strategy.

Both are plain objects that pickle (with cloudpickle, for agents and algorithms defined in
``__main__``), because a strategy may call them in other processes.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agl_core.algorithm import Run, RunContext
from agl_core.algorithm._announce import AnnouncingStore
from agl_core.llm_server import serving_behind
from agl_core.plugins._events import has_listeners
from agl_core.runner._sync_calls import SyncCalls

if TYPE_CHECKING:
    from agl_core.adapter import Adapter
    from agl_core.agent import LitAgent
    from agl_core.algorithm import Algorithm
    from agl_core.llm_server import LLMServer
    from agl_core.proxy import LLMProxy
    from agl_core.runner import Hook, Runner
    from agl_core.store import LightningStore
    from agl_core.trainer._trainer import Trainer
    from agl_core.types import Dataset, ExecutionEvent, NamedResources

logger = logging.getLogger(__name__)


@dataclass
class AlgorithmSide:
    """Runs the algorithm once; without one, keeps the runners working until the run is stopped."""

    trainer: Trainer
    algorithm: Algorithm | None
    adapter: Adapter[Any, Any]
    llm_proxy: LLMProxy | None
    initial_resources: NamedResources | None
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    llm_server: LLMServer | None = None
    run: str = ""

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        if not hasattr(self.trainer, "store"):
            self.trainer.store = store  # the trainer was pickled without its store
        if self.llm_proxy is not None:
            self.llm_proxy.set_store(store)
        algorithm = self.algorithm
        if algorithm is None:
            if self.initial_resources:
                await store.add_resources(self.initial_resources)
            logger.info("No algorithm: runners run the rollouts that others enqueue, until Ctrl+C")
            await event.wait_async()
            return
        run = await Run.open(store, self.run)
        if run.finished:
            logger.info("The run %r is finished; nothing to do", run.name)
            return
        if has_listeners():
            store = AnnouncingStore(store, algorithm.display_name)
        resources = self.initial_resources
        algorithm.set_context(
            RunContext(
                store=store,
                adapter=self.adapter,
                llm_proxy=self.llm_proxy,
                llm_server=self.llm_server,
                initial_resources=algorithm.get_initial_resources()
                if resources is None
                else resources,
                run=run,
                trainer=self.trainer,
            )
        )
        datasets = {"train_dataset": self.train_dataset, "val_dataset": self.val_dataset}
        async with serving_behind(self.llm_proxy, self.llm_server):
            if algorithm.is_async():
                await algorithm.run(**datasets)  # pyright: ignore[reportGeneralTypeIssues]
            else:
                await _run_sync(partial(algorithm.run, **datasets))
        await run.finish()


async def _run_sync(call: Callable[[], Any]) -> None:
    """Run a sync algorithm in a thread, which is abandoned if the run is stopped."""
    calls = SyncCalls("algorithm")
    try:
        outcome = await calls.submit(call)
    finally:
        calls.close()
    if outcome.error is not None:
        raise outcome.error


class RunnerSide:
    """Runs workers: each has a copy of the runner, from its first rollout to the stop event.

    Thread-safe: several workers of a process use one object concurrently.

    Args:
        runner: Set up with the first worker of the process, torn down after the last.
        agent: The agent that runs the tasks.
        hooks: Callbacks around each rollout.
        llm_proxy: The proxy that issues the agents' keys; in another process, a stopped copy.
    """

    def __init__(
        self,
        runner: Runner[Any],
        agent: LitAgent[Any],
        hooks: Sequence[Hook],
        llm_proxy: LLMProxy | None = None,
    ) -> None:
        self._runner = runner
        self._agent = agent
        self._hooks = hooks
        self._llm_proxy = llm_proxy
        self._workers = 0
        self._lock = threading.Lock()

    async def __call__(self, store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
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
                more: dict[str, Any] = {"llm_proxy": self._llm_proxy} if self._llm_proxy else {}
                self._runner.init(self._agent, hooks=self._hooks, **more)
            self._workers += 1
        try:
            yield copy.copy(self._runner)
        finally:
            with self._lock:
                self._workers -= 1
                if self._workers == 0:
                    self._runner.teardown()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "runner": self._runner,
            "agent": self._agent,
            "hooks": self._hooks,
            "llm_proxy": self._llm_proxy,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)
