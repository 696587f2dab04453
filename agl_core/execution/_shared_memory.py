"""``shm``: algorithm and runners as threads of this process, over one store object.

Each runner has its own thread and event loop, so an agent that blocks its loop never stops the
other runners. Use it for agents that mostly wait for models, for debugging, and for tests; agents
that compute need processes (``cs``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from agl_core.env import LightningEnvVar, resolve_bool_env_var
from agl_core.execution._base import (
    RUN_ENDED,
    AlgorithmBundle,
    ExecutionStrategy,
    RunnerBundle,
    keep_watch,
)
from agl_core.execution._claims import ClaimTracker
from agl_core.execution._config import SharedMemoryConfig
from agl_core.execution._events import ThreadingEvent
from agl_core.execution._supervise import BundleThread, supervise
from agl_core.plugins import configured_by
from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_HURRIED_JOIN = 1.0  # seconds to join threads after a second Ctrl+C cancelled them


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """Run everything in this process; options: :class:`SharedMemoryConfig`."""

    @configured_by(SharedMemoryConfig)
    def __init__(self, config: SharedMemoryConfig) -> None:
        self.n_runners = config.n_runners
        self.main_thread = config.main_thread or (
            "runner" if config.n_runners == 1 else "algorithm"
        )
        self.join_timeout = config.join_timeout
        self.graceful_delay = config.graceful_delay
        self.managed_store = resolve_bool_env_var(
            LightningEnvVar.AGL_MANAGED_STORE, override=config.managed_store, fallback=True
        )

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        self.interrupted = False
        tracker = ClaimTracker(store) if self.managed_store else None
        if tracker is not None:
            store = tracker
        stop, hurry = ThreadingEvent(), ThreadingEvent()
        thread = partial(BundleThread, stop=stop, grace=self.graceful_delay, hurry=hurry)
        lead = partial(algorithm, store, stop)
        runners = [partial(runner, store, i, stop) for i in range(self.n_runners)]

        if self.main_thread == "algorithm":
            main = lead
            threads = [thread(f"runner-{i}", work) for i, work in enumerate(runners)]
        else:
            main = runners[0]
            threads = [thread("algorithm", lead, ends_run=True)]
        if self.managed_store:
            threads.append(thread("watchdog", partial(keep_watch, store, stop)))
        errors: list[BaseException] = []
        try:
            # In here, since a user may press Ctrl+C as soon as the first runner works.
            for one in threads:
                one.start()
            asyncio.run(supervise(main, stop, self.graceful_delay, hurry))
            if self.main_thread == "runner":
                threads[0].join()
        except KeyboardInterrupt:
            self.interrupted = True
            logger.warning("Stopping. Press Ctrl+C again to stop at once")
        except BaseException as error:
            errors.append(error)
        stop.set()
        self._join(threads, hurry)
        if tracker is not None:
            tracker.close_open_attempts(RUN_ENDED)
        errors.extend(thread.error for thread in threads if thread.error is not None)
        if any(isinstance(error, KeyboardInterrupt) for error in errors):  # raised by user code
            self.interrupted = True
            errors = [error for error in errors if not isinstance(error, KeyboardInterrupt)]
        if self.main_thread == "runner":
            errors.reverse()  # the algorithm's error comes first
        for error in errors if self.interrupted else errors[1:]:
            logger.error("A part of the run failed while it was ending", exc_info=error)
        if errors and not self.interrupted:
            raise errors[0]

    def _join(self, threads: Sequence[BundleThread], hurry: ThreadingEvent) -> None:
        """Wait for the stopped threads; abandon those that do not end."""
        try:
            _join_all(threads, self.join_timeout)
        except KeyboardInterrupt:
            self.interrupted = True
            hurry.set()
            _join_all(threads, _HURRIED_JOIN)
        for thread in threads:
            if thread.is_alive():
                logger.warning("Abandoned %s: it ignores that it was cancelled", thread.name)


def _join_all(threads: Sequence[BundleThread], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for thread in threads:
        if thread.ident is not None:  # Ctrl+C may have come before its start
            thread.join(max(0.0, deadline - time.monotonic()))
