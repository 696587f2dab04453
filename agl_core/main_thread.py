"""Calls sync agents in the main thread of a process, while its event loop runs in another one.

``signal.alarm``, which libraries limit their time with (math-verify), and some GUI and physics
libraries work in the main thread only. A strategy whose runners are processes can give them that.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from agl_core.types import ExecutionEvent

__all__ = ["MainThread", "run_beside_main_thread"]

logger = logging.getLogger(__name__)

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)
)


class MainThread:
    """The main thread of this process, as one worker for calls.

    Args:
        stop: The stop event of the run. Once it is set, Ctrl+C interrupts the running call.

    Attributes:
        current: The one of this process; None: sync agents get threads.
    """

    current: ClassVar[MainThread | None] = None

    def __init__(self, stop: ExecutionEvent) -> None:
        self._stop = stop
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running: Callable[[], None] | None = None
        self._abandoned: Callable[[], None] | None = None

    def submit(self, call: Callable[[], None]) -> None:
        """Call ``call`` in the main thread, after those submitted before. Thread-safe."""
        self._calls.put(call)

    def interrupt(self, call: Callable[[], None]) -> None:
        """Raise KeyboardInterrupt in ``call`` if it runs. Thread-safe."""
        self._abandoned = call
        if self._running is call:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def close(self) -> None:
        """Let :meth:`serve` return after the running call. Thread-safe."""
        self._calls.put(None)

    def serve(self) -> None:
        """Make the calls until :meth:`close` is called. Must be called in the main thread."""
        with self._signals():
            while (call := self._calls.get()) is not None:
                if call is self._abandoned:
                    continue
                self._running = call
                try:
                    call()
                except KeyboardInterrupt:
                    logger.debug("a call was interrupted just when it had ended")
                finally:
                    self._running = None

    @contextmanager
    def _signals(self) -> Generator[None]:
        previous = {signum: signal.signal(signum, self._react) for signum in _SIGNALS}
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def _react(self, _signum: int, _frame: object) -> None:
        """Interrupt the agent if it was abandoned or the run ends; the terminal's Ctrl+C waits."""
        running = self._running
        if running is not None and (running is self._abandoned or self._stop.is_set()):
            raise KeyboardInterrupt


def run_beside_main_thread(work: Callable[[], None], stop: ExecutionEvent) -> None:
    """Run ``work``, such as an event loop, in a thread, and its sync agents in this one.

    Must be called in the main thread. Sync agents run one at a time; one that is cancelled is
    interrupted with a KeyboardInterrupt.

    Args:
        work: Runs a runner.
        stop: The stop event of the run.

    Raises:
        BaseException: The error of ``work``.
    """
    main = MainThread(stop)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            main.close()

    MainThread.current = main
    try:
        thread = threading.Thread(target=run, name="agl-main-thread-loop")
        thread.start()
        main.serve()
        thread.join()
    finally:
        MainThread.current = None
    if errors:
        raise errors[0]
