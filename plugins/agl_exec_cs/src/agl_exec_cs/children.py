"""Starting, watching, replacing and stopping the child processes of ``cs``."""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from multiprocessing.connection import wait as wait_for_connections
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from agl_core.errors import LaunchError, error_text
from agl_core.plugins import EventPipe
from agl_exec_cs.child import Job, child_main
from agl_exec_cs.forking import between_imports
from agl_exec_cs.leftovers import Leftovers
from agl_exec_cs.main_guard import ADVICE, IMPORTS_MAIN
from agl_exec_cs.waits import wait_in_steps

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from agl_exec_cs.events import MultiprocessingEvent

__all__ = ["Children"]

logger = logging.getLogger(__name__)

MakeJob: TypeAlias = "Callable[[Connection[str, Any]], Job]"


class _Child:
    """One child: its current process, and how many died since its last progress."""

    def __init__(self, name: str, make_job: MakeJob) -> None:
        self.name = name
        self.make_job = make_job
        self.deaths = 0
        self.ended = False
        self.interrupted = False
        """Whether the last signal that it was sent is SIGINT."""

    def launch(self, context: Any) -> None:
        self._report, writer = context.Pipe(duplex=False)
        self._leftovers = Leftovers(self.name, secrets.token_hex(8))
        self._events = EventPipe(context)
        process = context.Process(
            target=child_main,
            args=(self.make_job(writer), self._leftovers, self._events.sender),
            name=self.name,
        )
        try:
            with between_imports():
                process.start()
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise LaunchError(
                f"{self.name} cannot be pickled for a new process ({context.get_start_method()}): "
                f"{error}; use start_method='fork', or make everything that it holds picklable"
            ) from error
        except BrokenPipeError:
            # The process imports the program first, and ended before it read its work.
            raise LaunchError(f"the runners did not start: {ADVICE}") from None
        finally:
            writer.close()
        self.process: BaseProcess = process  # started, so that another thread can signal it
        self._events.start()

    def reported_end(self) -> str | None:
        """Return the reason of a failure, or an empty text after an end without one.

        None means that the process ended without a report, so it died.
        """
        try:
            return self._report.recv() if self._report.poll(0) else None
        except EOFError:
            return None

    def receive_events(self) -> None:
        """Wait for the events that the process has sent; call it after its end."""
        self._events.join()

    def end_leftovers(self) -> None:
        """End the processes that agents started in a process that died."""
        if self.process.pid is not None:
            self._leftovers.end_processes(self.process.pid)


class Children:
    """Child processes with one stop event.

    A child reports the end of its work. One that fails reports the reason and stops the run. One
    that ends without a report has died (killed, out of memory, a crash in native code, an agent
    that called ``os._exit``); it is replaced, up to a limit.

    Args:
        context: Starts the processes (``multiprocessing.get_context``).
        stop: The stop event of the run.
        graceful_timeout: Longest wait for children after the stop event, in seconds.
        terminate_timeout: Longest wait after each further step (interrupt, terminate, kill), in
            seconds.
        allowed_exit_codes: Exit codes that are not failures of a child that died after the stop
            event.
        max_restarts: Most replacements of a child that keeps dying without progress.
        on_death: Called with the name of each child that died, before it is replaced; in the
            watching thread. Returns whether the child had made progress since its last death.
        on_end: Called when every child has ended, in the watching thread.

    Attributes:
        failures: One line per child that failed.
    """

    def __init__(
        self,
        context: Any,
        stop: MultiprocessingEvent,
        *,
        graceful_timeout: float,
        terminate_timeout: float,
        allowed_exit_codes: Collection[int],
        max_restarts: int = 0,
        on_death: Callable[[str], bool] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.failures: list[str] = []
        self._context = context
        self._stop = stop
        self._graceful_timeout = graceful_timeout
        self._terminate_timeout = terminate_timeout
        self._allowed = allowed_exit_codes
        self._max_restarts = max_restarts
        self._on_death = on_death
        self._on_end = on_end
        self._children: list[_Child] = []
        self._in_vain = False  # a child has said that none can start
        # Only the watching thread reads exit codes. waitpid() reports a child once, so with two
        # readers one would miss it.
        self._watcher = threading.Thread(target=self._watch, name="agl-children", daemon=True)

    def start(self, jobs: Mapping[str, MakeJob]) -> None:
        """Start one process per job, and watch them.

        Args:
            jobs: Functions by name; each takes the pipe for reports and creates the job. It is
                called again for a replacement.

        Raises:
            LaunchError: A job cannot be pickled.
            OSError: The system has no room for another process.

        After an error none of them runs.
        """
        try:
            for name, make_job in jobs.items():
                child = _Child(name, make_job)
                child.launch(self._context)
                self._children.append(child)
        except BaseException:
            self._watcher.start()
            self.shut_down()
            raise
        self._watcher.start()  # after the last fork: a forked child has no threads

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every child has ended, replacements included.

        Args:
            timeout: Seconds; None waits without limit.

        Returns:
            Whether all have ended.
        """

        def wait(seconds: float) -> bool:
            self._watcher.join(seconds)
            return not self._watcher.is_alive()

        return wait_in_steps(wait, timeout)

    def shut_down(self) -> bool:
        """End all children, by force if needed. Ctrl+C skips to the next step.

        Returns:
            Whether Ctrl+C was pressed.
        """
        interrupted = False
        steps: list[tuple[Callable[[BaseProcess], None] | None, str, float]] = [
            (None, "", self._graceful_timeout),
            (_interrupt, "interrupting it", self._terminate_timeout),
            (lambda process: process.terminate(), "terminating it", self._terminate_timeout),
            (lambda process: process.kill(), "killing it", self._terminate_timeout),
        ]
        self._stop.set()
        if self._in_vain:
            # They only import the program: nothing of theirs ends in order, and an interrupt there
            # writes a traceback.
            del steps[1]
        for act, doing, seconds in steps:
            try:
                for child in self._children:
                    if act is not None and not child.ended:
                        logger.warning("%s did not end in time; %s", child.name, doing)
                        child.interrupted = act is _interrupt
                        act(child.process)
                if self.join(seconds):
                    return interrupted
            except KeyboardInterrupt:
                interrupted = True
        alive = [str(child.process.pid) for child in self._children if not child.ended]
        logger.error("These processes cannot be ended: %s", ", ".join(alive))
        return interrupted

    # -- the watching thread ---------------------------------------------------------------------

    def _watch(self) -> None:
        while running := {c.process.sentinel: c for c in self._children if not c.ended}:
            for sentinel in wait_for_connections(list(running)):
                self._handle_exit(running[cast("int", sentinel)])
        if self._on_end is not None:
            self._on_end()

    def _handle_exit(self, child: _Child) -> None:
        """Replace a child that died, or record that it has ended."""
        child.process.join()
        child.receive_events()
        failure = child.reported_end()
        if failure is None:
            # Looked up first: the call of on_death may end the last rollout, and so the run.
            stopping = self._stop.is_set()
            child.end_leftovers()
            if self._on_death is not None and self._on_death(child.name):
                child.deaths = 0
            failure = self._death(child, stopping=stopping)
            self._in_vain |= child.process.exitcode == IMPORTS_MAIN
            restarts = 0 if self._in_vain else self._max_restarts
            if failure and not stopping and child.deaths < restarts:
                child.deaths += 1
                logger.warning("%s %s; replacing it", child.name, failure)
                try:
                    child.launch(self._context)
                    return
                except Exception as error:  # no memory or no process is left
                    failure = f"{failure}, and cannot be replaced: {error_text(error)}"
        child.ended = True
        if failure:
            self.failures.append(f"{child.name} {failure}")
            self._stop.set()

    def _death(self, child: _Child, *, stopping: bool) -> str:
        """Return the reason of a failure for a child that died; empty if it is not a failure."""
        code = child.process.exitcode
        # Our own interrupt may hit a child that is already exiting. Python then exits with 1.
        hit = child.interrupted and code in (1, -signal.SIGINT)
        if stopping and (hit or code in self._allowed):
            return ""
        if code == IMPORTS_MAIN:
            return f"did not start: {ADVICE}"
        hint = ""
        if code == 1 and self._context.get_start_method() != "fork":
            # Its own words are on stderr: it could not report before it had imported the program.
            hint = (
                "; if its output speaks of a bootstrapping phase, start the run below "
                "`if __name__ == '__main__':`, since each process imports the program"
            )
        return f"died with exit code {code}{hint}"


def _interrupt(process: BaseProcess) -> None:
    # The watching thread, or the fork server, may have reaped the process.
    if process.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
