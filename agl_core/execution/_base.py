"""The execution contract: how algorithm and runners are started, and how they end.

A trainer hands a strategy two *bundles*, coroutine functions that take a store and a stop event:
the algorithm's, called once, and the runner's, called once per worker. The strategy decides in
which threads, processes or machines they run and which store object each one gets.

How a run ends, with every strategy:

1. The algorithm returns, a bundle raises, or the user presses Ctrl+C. The stop event is set.
2. Each bundle still running has a grace period to return by itself.
3. Then it is cancelled (as asyncio cancels a task). A second grace period follows.
4. Then it is abandoned. The attempts of abandoned or dead workers are failed in the store, so
   that no attempt stays open.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Final, Protocol

import anyio

from agl_core.errors import StoreUnavailableError
from agl_core.store import LightningStore
from agl_core.types import ExecutionEvent

logger = logging.getLogger(__name__)

RUN_ENDED: Final = "the run ended before the attempt did"
"""Reason that strategies give for the attempts that are open at the end of a run."""


class AlgorithmBundle(Protocol):
    """Runs the algorithm; returns when the run is over."""

    def __call__(self, store: LightningStore, event: ExecutionEvent) -> Awaitable[None]: ...


class RunnerBundle(Protocol):
    """Runs one worker; returns soon after the event is set."""

    def __call__(
        self, store: LightningStore, worker_id: int, event: ExecutionEvent
    ) -> Awaitable[None]: ...


class ExecutionStrategy(ABC):
    """Runs an algorithm bundle and a number of runner bundles to their end.

    Attributes:
        n_runners: Number of runner bundles that run concurrently, at least 1.
        interrupted: Whether the last :meth:`execute` was ended by Ctrl+C.
        in_process: Whether runners are threads or tasks of this process, with which they share the
            interpreter lock.
    """

    n_runners: int = 1
    interrupted: bool = False
    in_process: bool = False

    @abstractmethod
    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        """Run both bundles; return when all workers have ended or were abandoned.

        Called in the main thread. Ctrl+C stops the run, sets :attr:`interrupted` and returns
        normally.

        Args:
            algorithm: Called once.
            runner: Called with worker ids 0, 1, … ``n_runners - 1``.
            store: The store of the trainer; a strategy may hand out a facade or a client of it.

        Raises:
            Exception: The error of a bundle; the algorithm's error comes first.
        """


async def keep_watch(store: LightningStore, event: ExecutionEvent, period: float = 10.0) -> None:
    """Run a store's watchdog until the event is set.

    Args:
        store: Its watchdog fails silent and overdue attempts even while no other call arrives.
        event: Stops the watchdog.
        period: Seconds between two checks; the store debounces them.
    """
    while not event.is_set():
        try:
            await store.run_watchdog()
        except StoreUnavailableError as error:
            logger.warning("The watchdog could not reach the store: %s", error)
        with anyio.move_on_after(period):
            await event.wait_async()
