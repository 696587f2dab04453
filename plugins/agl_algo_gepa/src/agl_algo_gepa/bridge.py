"""Runs a synchronous engine in a thread, and its coroutine calls on the run's event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
from anyio import from_thread, to_thread

__all__ = ["Bridge"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Stopped(BaseException):
    """Ends the engine. It is not an ``Exception``, because engines catch those and continue."""


class Bridge:
    """Runs one engine, and the coroutines that it calls, one at a time.

    A coroutine that fails ends the engine, and :meth:`run` raises the failure. If :meth:`run` is
    cancelled, the current coroutine is cancelled too, and :meth:`run` returns only after the engine
    has ended, so no engine is left running.
    """

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._failure: Exception | None = None
        self._ending = False

    async def run(self, engine: Callable[[], T]) -> T:
        """Run the engine in a thread; return its result.

        Raises:
            Exception: The exception of the engine or of a coroutine.
        """
        ended = anyio.Event()

        def work() -> tuple[T] | None:
            try:
                return (engine(),)
            except _Stopped:
                return None
            finally:
                from_thread.run_sync(ended.set)

        try:
            result = await to_thread.run_sync(work, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            self._ending = True
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await ended.wait()
            raise
        if self._failure is not None:
            raise self._failure
        assert result is not None, "only a failure or cancellation stops the engine"
        return result[0]

    def call(self, function: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Run a coroutine function on the event loop; called from the engine's thread."""
        try:
            outcome = from_thread.run(self._run_on_loop, function, args)
        except CancelledError:
            outcome = None
        if outcome is None:
            raise _Stopped
        return outcome[0]

    async def _run_on_loop(
        self, function: Callable[[Unpack[Ts]], Awaitable[T]], args: tuple[*Ts]
    ) -> tuple[T] | None:
        """Return the result in a tuple, or None if the engine must end."""
        with anyio.CancelScope() as self._scope:
            if self._ending:
                return None
            try:
                return (await function(*args),)
            except Exception as error:
                self._failure, self._ending = error, True
        return None
