"""The runner contract: runs an agent on the rollouts of a store."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from agl_core.types import ParallelWorkerBase

if TYPE_CHECKING:
    from typing import Self

    from agl_core.agent import LitAgent
    from agl_core.runner._hooks import Hook
    from agl_core.store import LightningStore
    from agl_core.types import ExecutionEvent, NamedResources, Rollout, RolloutMode, TaskInput

logger = logging.getLogger(__name__)

T = TypeVar("T")


_PER_CORE: Final = 8
"""Rollouts of a concurrent agent at a time and core: its attempts mostly wait for models."""
_MOST: Final = 64
"""As many rollouts at a time fill a server of one accelerator; more cores would not."""


def worker_name(worker_id: int | str) -> str:
    """Return the id of a worker in the store."""
    return f"Worker-{worker_id}"


def choose_concurrency(agent: LitAgent[Any], given: int | None) -> int:
    """Return how many rollouts a runner runs at a time.

    Args:
        agent: If it declares that its rollouts may run at a time (``concurrent``), a runner runs 8
            per core, at most 64: they mostly wait for models. Otherwise it runs one, because code
            that was written for one rollout at a time may share variables, a browser or a limit of
            calls between them.
        given: The number that the user asked for, if any.
    """
    if given is not None:
        return given
    if not agent.concurrent:
        return 1
    # Not os.cpu_count(): a container may use fewer cores than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(_MOST, _PER_CORE * (cores or 1))


class Runner(ParallelWorkerBase, ABC, Generic[T]):
    """Runs an agent, one worker at a time.

    The order is ``init``, ``init_worker``, any number of ``iter`` and ``step``,
    ``teardown_worker``, ``teardown``; :meth:`run_context` keeps it. Several workers of one process
    each use a shallow copy (:func:`copy.copy`) made after ``init``: the state of one worker is
    created in ``init_worker``. A runner is picklable until then.
    """

    def init(
        self, agent: LitAgent[T], *, hooks: Sequence[Hook] | None = None, **kwargs: Any
    ) -> None:
        """Set the agent and the hooks; called once before any worker starts.

        Args:
            agent: The agent that runs the tasks.
            hooks: Callbacks around each rollout, called in this order.
            kwargs: For subclasses; a trainer with a proxy passes it as ``llm_proxy``.

        Raises:
            AgentSignatureError: A method of the agent has the wrong parameters.
        """

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        """Set the store; called in each worker before its first task.

        Args:
            worker_id: Number of the worker, unique among the workers of the store.
            store: Source of the rollouts and destination of the spans.
            kwargs: For subclasses.
        """
        super().init_worker(worker_id)

    def run(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not supported by runners: use :meth:`iter` or :meth:`step`.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("a runner has no run(); use iter() or step()")

    @abstractmethod
    async def iter(self, *, event: ExecutionEvent | None = None, until_idle: bool = False) -> None:
        """Run rollouts from the store's queue, one after another.

        A failed rollout does not end the iteration. It ends when the event is set (the current
        rollout is finished first), when the runner's limit is reached, or, with ``until_idle``,
        when there is no more work.

        Args:
            event: Ends the iteration.
            until_idle: End when the queue is empty and no rollout of the store is running.

        Raises:
            KeyboardInterrupt: The agent raised it; its attempt is ``failed``, and the iteration
                ends.
        """

    @abstractmethod
    async def step(
        self,
        input: TaskInput,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
    ) -> Rollout:
        """Run one task now, bypassing the queue, and return its finished rollout.

        Args:
            input: The task.
            resources: Resources to run with; they are added to the store. None takes the latest.
            mode: ``"train"`` runs the agent's training method, anything else its validation one.
            event: Stops the agent; its attempt then fails with
                :class:`~agl_core.errors.AgentCancelledError`.

        Raises:
            BaseException: The agent's error; its attempt is ``failed``.
            ResourceMissingError: The store has no resources.
            AgentCancelledError: The rollout was cancelled, or the event was set.
            AgentTimeoutError: The agent exceeded the rollout's ``timeout_seconds``.
        """

    @contextmanager
    def run_context(
        self,
        *,
        agent: LitAgent[T],
        store: LightningStore,
        hooks: Sequence[Hook] | None = None,
        worker_id: int | None = None,
    ) -> Generator[Self]:
        """Set the runner up for a ``with`` block, for trying an agent or a test.

        The runner is torn down at the end, also when the block raises; errors of the teardown are
        logged.

        Args:
            agent: The agent that runs the tasks.
            store: Source of the rollouts and destination of the spans.
            hooks: Callbacks around each rollout.
            worker_id: Number of the worker; None means 0.
        """
        worker = 0 if worker_id is None else worker_id
        self.init(agent=agent, hooks=hooks)
        try:
            self.init_worker(worker, store)
            try:
                yield self
            finally:
                _contain(lambda: self.teardown_worker(worker), "tearing down the worker")
        finally:
            _contain(self.teardown, "tearing down the runner")


def _contain(action: Callable[[], None], what: str) -> None:
    try:
        action()
    except Exception:
        logger.exception("%s failed", what)
