"""Code of the child processes of ``cs``: a runner, or the algorithm with the store server.

A job holds everything that its child needs. It can be pickled, for every start method.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from agl_core.errors import RunFailedError, error_text
from agl_core.execution import (
    RunnerBundle,
    ThreadingEvent,
    supervise,
)
from agl_core.known_errors import KnownErrors
from agl_core.main_thread import run_beside_main_thread
from agl_core.plugins import flush_listeners
from agl_core.runner import worker_name
from agl_core.store import Interceptor, LightningStore, Next, StoreCall, intercept
from agl_core.types import ExecutionEvent
from agl_exec_cs.events import MultiprocessingEvent, wait_readable
from agl_exec_cs.leftovers import Leftovers
from agl_exec_cs.orphans import end_with_parent
from agl_exec_cs.pickling import CloudPickled
from agl_exec_cs.run_store import RunnerClient
from agl_exec_cs.store_access import StoreAccess

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from agl_core.plugins import EventSender

__all__ = [
    "Job",
    "RunnerJob",
    "child_main",
    "report_end",
    "run_runner",
    "supervise_with_signals",
]

logger = logging.getLogger(__name__)

# The terminal sends them to runners too. A runner must not end before its run does: it would not be
# replaced.
_HURRY = tuple(getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name))


class Job(Protocol):
    """The work of one child process."""

    @property
    def stop(self) -> MultiprocessingEvent:
        """The stop event of the run."""
        ...

    @property
    def report(self) -> Connection[str, Any]:
        """The pipe for the end of the work: the reason of a failure, or an empty text."""
        ...

    def run(self, leftovers: Leftovers) -> None:
        """Do the work, in the child's main thread.

        Args:
            leftovers: Processes and threads that agents leave behind in this process.
        """
        ...


def child_main(job: Job, leftovers: Leftovers, events: EventSender) -> None:
    """Run a job, send its events to the parent, and report its end.

    A failure stops the run and makes the exit code 1. A child that exits without a report has died,
    whatever its exit code: an agent may call ``os._exit(0)``.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked child inherits the parent's handler
    leftovers.mark_this_process()
    events.install()
    code = 0
    try:
        job.run(leftovers)
        report_end(job.report)
    except KeyboardInterrupt:
        logger.debug("%s was interrupted", leftovers.name)
        report_end(job.report)
    except BaseException as error:
        logger.exception("%s failed", leftovers.name)
        report_end(job.report, f"failed with {error_text(error)}")
        job.stop.set()
        code = 1
    flush_listeners()
    events.close()
    # The end is reported. The parent may interrupt what hangs in exit functions, and Python's own
    # handler would print a traceback for it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    leftovers.exit_soon(code)
    sys.exit(code)


def report_end(report: Connection[str, Any], failure: str = "") -> None:
    """Report the end of the work to the parent, which reads the first report only."""
    try:
        report.send(failure)
    except OSError as error:
        logger.debug("the parent process is gone: %r", error)


@dataclass
class RunnerJob:
    """Runs one runner in a child process.

    Attributes:
        bundle: The runner bundle of the run.
        worker_id: Number of the worker.
        stop: The stop event of the run.
        report: The pipe for the end of the work.
        access: How the runner reaches the store.
        grace: Seconds between the stop event and the cancellation.
        errors: Shared memory for the errors whose traceback is in the log.
        in_main_thread: Whether sync agents run in the main thread of the process.
    """

    bundle: CloudPickled
    worker_id: int
    stop: MultiprocessingEvent
    report: Connection[str, Any]
    access: StoreAccess
    grace: float
    errors: Any
    in_main_thread: bool = False

    def run(self, leftovers: Leftovers) -> None:
        KnownErrors.shared = KnownErrors(self.errors.get_obj(), self.errors.get_lock())
        if not self.in_main_thread:
            asyncio.run(self._run(leftovers))
            return
        run_beside_main_thread(lambda: asyncio.run(self._run(leftovers)), self.stop)

    async def _run(self, leftovers: Leftovers) -> None:
        stop = ThreadingEvent()  # for this runner only: a lost server must not stop the others
        end_with_parent(stop.set, leftovers)
        forwarding = asyncio.ensure_future(_forward(self.stop, stop))
        work = partial(run_runner, self.bundle.value, self.worker_id, stop, self.access, self.stop)
        try:
            await supervise_with_signals(work, stop, self.grace, _HURRY, ends_work=False)
        finally:
            forwarding.cancel()
        flush_listeners()
        # Before the loop closes: it waits for threads that agents left in its executor.
        report_end(self.report)
        leftovers.exit_soon(0)


async def run_runner(
    bundle: RunnerBundle,
    worker_id: int,
    stop: ExecutionEvent,
    access: StoreAccess,
    siblings: ExecutionEvent | None = None,
) -> None:
    """Run a runner bundle until it ends.

    Args:
        bundle: The runner bundle of the run.
        worker_id: Number of the worker.
        stop: Ends the bundle; also set here when the run has ended or the server is lost.
        access: How the runner reaches the store.
        siblings: The stop event of the other runners of this machine; set when the run has ended.

    Raises:
        StoreUnavailableError: The server was lost and has not come back in time.
    """
    if access.shared.value is not None:
        claims = _NotesClaims()
        store = intercept(access.shared.value, claims)
        await _run_again_if_interrupted(bundle, store, claims, worker_id, stop)
        return
    url = access.url if isinstance(access.url, str) else await _receive(access.url, stop)
    if url is None:
        return  # the run ended before the server started
    client = RunnerClient(url, stop, access.reconnect_timeout, siblings, access.token)
    try:
        await client.come(worker_name(worker_id))
        await _run_again_if_interrupted(bundle, client, client, worker_id, stop)
        await client.leave(worker_name(worker_id))
    finally:
        await client.close()
    if client.lost is not None:
        raise client.lost


class _NotesClaims(Interceptor):
    """Notes whether work was claimed."""

    watches = ("dequeue_rollout", "dequeue_many_rollouts")

    def __init__(self) -> None:
        self.claimed = False

    async def around(self, call: StoreCall, next: Next) -> Any:
        result = await next(call)
        self.claimed |= bool(result)
        return result


async def _run_again_if_interrupted(
    bundle: RunnerBundle,
    store: LightningStore,
    claims: RunnerClient | _NotesClaims,
    worker_id: int,
    stop: ExecutionEvent,
) -> None:
    """Run a bundle, and again after a KeyboardInterrupt that the agent or a library of it raised.

    Ctrl+C raises none in a runner: :func:`supervise_with_signals` handles the signal.

    Raises:
        RunFailedError: The interrupt came before any work; it would come again.
    """
    while True:
        claims.claimed = False
        try:
            await bundle(store, worker_id, stop)
        except KeyboardInterrupt as interrupt:
            if stop.is_set():
                raise
            if not claims.claimed:
                raise RunFailedError(
                    "KeyboardInterrupt before the first rollout, without Ctrl+C: the runner, its "
                    "tracer or the agent raised it while it was set up"
                ) from interrupt
            logger.warning(
                "%s: the agent raised KeyboardInterrupt, without Ctrl+C; its attempt failed, and "
                "the runner goes on",
                worker_name(worker_id),
            )
        else:
            return


async def supervise_with_signals(
    work: Callable[[], Awaitable[None]],
    stop: ExecutionEvent,
    grace: float,
    signals: Sequence[signal.Signals],
    *,
    ends_work: bool = True,
) -> bool:
    """Supervise work. The first of these signals sets ``stop``, the next one cancels at once.

    Args:
        work: Creates the awaitable.
        stop: Event that requests the end of the work.
        grace: Seconds between the stop event and the cancellation.
        signals: The signals.
        ends_work: False ignores the signals until ``stop`` is set.

    Returns:
        Whether any of the signals arrived.
    """
    hurry = ThreadingEvent()
    arrived: list[signal.Signals] = []

    def react(signum: signal.Signals) -> None:
        arrived.append(signum)
        if stop.is_set():
            hurry.set()
        elif ends_work:
            stop.set()
        else:
            logger.debug("%s ignored: the parent process decides when the run ends", signum.name)

    with _signal_handler(signals, react):
        await supervise(work, stop, grace, hurry)
    return bool(arrived)


@contextmanager
def _signal_handler(
    signals: Sequence[signal.Signals], react: Callable[[signal.Signals], None]
) -> Generator[None]:
    """Call ``react`` on the running loop for each of these signals; does nothing in a thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal(signum: int, _frame: object) -> None:
        loop.call_soon_threadsafe(react, signal.Signals(signum))

    previous = {signum: signal.getsignal(signum) for signum in signals}
    for signum in signals:
        if sys.platform == "win32":
            signal.signal(signum, on_signal)
        else:  # also wakes a loop that waits
            loop.add_signal_handler(signum, react, signum)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            if sys.platform != "win32":
                loop.remove_signal_handler(signum)
            signal.signal(signum, handler)


async def _receive(source: Connection[Any, str], stop: ExecutionEvent) -> str | None:
    """Wait for a message; return None if the stop event is set first."""
    received = asyncio.ensure_future(wait_readable(source))
    stopped = asyncio.ensure_future(stop.wait_async())
    try:
        await asyncio.wait((received, stopped), return_when=asyncio.FIRST_COMPLETED)
        return source.recv() if received.done() else None
    finally:
        received.cancel()
        stopped.cancel()


async def _forward(source: ExecutionEvent, target: ExecutionEvent) -> None:
    await source.wait_async()
    target.set()
