"""``shm``: algorithm and runners as threads of this process, over one store object.

Each runner has its own thread and event loop, so an agent that blocks its loop never stops the
other runners. Use it for agents that mostly wait for models, for debugging, and for tests; agents
that compute need processes (``cs``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from queue import Empty
from typing import Any

from agl_core.env import LightningEnvVar, resolve_bool_env_var
from agl_core.execution import (
    RUN_ENDED,
    AlgorithmBundle,
    BundleThread,
    ClaimTracker,
    CtrlC,
    ExecutionStrategy,
    RunnerBundle,
    ThreadingEvent,
    keep_watch,
    supervise,
)
from agl_core.plugins import configured_by
from agl_core.store import InterceptedStore, LightningStore
from agl_exec_shm.config import SharedMemoryConfig
from agl_store_kit import LightningStoreThreaded

logger = logging.getLogger(__name__)

_HURRIED_JOIN = 1.0  # seconds to join threads after a second Ctrl+C cancelled them
_LONGEST_WAIT = 1.0  # seconds: a Ctrl+C from just before a wait is handled only after it


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """Run everything in this process; options: :class:`SharedMemoryConfig`."""

    in_process = True

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
        claims = ClaimTracker()
        if self.managed_store:
            store = LightningStoreThreaded(InterceptedStore(store, innermost=(claims,)))
        stop, hurry = ThreadingEvent(), ThreadingEvent()
        with CtrlC() as ctrl_c:
            main, threads = self._bundles(algorithm, runner, store, stop, hurry, ctrl_c)
            first_error = self._lead(main, threads, ctrl_c)
            presses = ctrl_c.presses  # before others learn that the run ends: later ones hurry it
            stop.set()
            raised = isinstance(first_error, KeyboardInterrupt)  # maybe by user code
            if presses == 1 or (raised and not presses):
                logger.warning("Stopping. Press Ctrl+C again to stop at once")
            self._join(threads, hurry, ctrl_c, patient=min(presses, 1))
            claims.close_open_attempts(store, RUN_ENDED)  # none, if the store is not managed
            self._settle([first_error, *(thread.error for thread in threads)], ctrl_c)

    def _settle(self, ended: Sequence[BaseException | None], ctrl_c: CtrlC) -> None:
        """Raise the first error of a run that Ctrl+C did not end, and log the others."""
        errors = [error for error in ended if error is not None]
        if ctrl_c.presses or any(isinstance(error, KeyboardInterrupt) for error in errors):
            self.interrupted = True  # without a press, user code raised it
            errors = [error for error in errors if not isinstance(error, KeyboardInterrupt)]
        if self.main_thread == "runner":
            errors.reverse()  # the algorithm's error comes first
        for error in errors if self.interrupted else errors[1:]:
            logger.error("A part of the run failed while it was ending", exc_info=error)
        if errors and not self.interrupted:
            raise errors[0]

    def _bundles(
        self,
        algorithm: AlgorithmBundle,
        runner: RunnerBundle,
        store: LightningStore,
        stop: ThreadingEvent,
        hurry: ThreadingEvent,
        ctrl_c: CtrlC,
    ) -> tuple[Callable[[], Coroutine[Any, Any, None]], list[BundleThread]]:
        """Return the supervised bundle of the main thread, and the threads of all others."""
        options = {"stop": stop, "grace": self.graceful_delay, "hurry": hurry}
        thread = partial(BundleThread, notices=ctrl_c.notices, **options)
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
        return partial(supervise, main, **options), threads

    def _lead(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        threads: Sequence[BundleThread],
        ctrl_c: CtrlC,
    ) -> BaseException | None:
        """Start the threads and run the main thread's bundle; return its error, if any."""
        try:
            try:
                # In here, since a user may press Ctrl+C as soon as the first runner works.
                for thread in threads:
                    thread.start()
                asyncio.run(ctrl_c.lead(main))
                if self.main_thread == "runner":
                    while threads[0].is_alive():
                        threads[0].join(_LONGEST_WAIT)
            finally:
                ctrl_c.raise_no_more()
        except BaseException as error:
            cancelled_by_press = ctrl_c.presses and isinstance(error, asyncio.CancelledError)
            return None if cancelled_by_press else error
        return None

    def _join(
        self,
        threads: Sequence[BundleThread],
        hurry: ThreadingEvent,
        ctrl_c: CtrlC,
        *,
        patient: int,
    ) -> None:
        """Wait for the stopped threads; after more than ``patient`` presses not for long."""
        deadline = time.monotonic() + self.join_timeout
        # Ctrl+C may have come before the start of some.
        started = [thread for thread in threads if thread.ident is not None]
        while not all(thread.has_ended for thread in started):
            if ctrl_c.presses > patient and not hurry.is_set():
                hurry.set()
                deadline = min(deadline, time.monotonic() + _HURRIED_JOIN)
            try:
                remaining = max(0.0, deadline - time.monotonic())
                ctrl_c.notices.get(timeout=min(remaining, _LONGEST_WAIT))
            except Empty:
                if time.monotonic() >= deadline:
                    break
            except KeyboardInterrupt:  # from a handler of the program's own
                ctrl_c.count()
        for thread in started:
            if thread.has_ended:
                thread.join()
            else:
                logger.warning("Abandoned %s: it ignores that it was cancelled", thread.name)
