"""A way from a synchronous engine, in a thread of its own, to coroutines on the run's loop."""

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
    """Ends the engine. Not an Exception: engines catch those, and go on."""


class Bridge:
    """Runs one engine, and the coroutines that it asks for, one at a time.

    A coroutine that fails ends the engine, whatever that does with exceptions, and the failure
    comes out of :meth:`run`. If :meth:`run` is cancelled, so is the coroutine under way; the engine
    ends, and only then does :meth:`run` return: the engine never works on unattended.
    """

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._failure: Exception | None = None
        self._over = False

    async def run(self, engine: Callable[[], T]) -> T:
        """Run the engine in a thread, and return what it returns.

        Raises:
            Exception: What the engine or a coroutine raised.
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
            self._over = True
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await ended.wait()
            raise
        if self._failure is not None:
            raise self._failure
        assert result is not None, "only a failure or cancellation stops the engine"
        return result[0]

    def call(self, function: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Run a coroutine function on the loop; called by the engine, from its thread."""
        try:
            outcome = from_thread.run(self._attend, function, args)
        except CancelledError:
            outcome = None
        if outcome is None:
            raise _Stopped
        return outcome[0]

    async def _attend(
        self, function: Callable[[Unpack[Ts]], Awaitable[T]], args: tuple[*Ts]
    ) -> tuple[T] | None:
        """Return the result in a tuple, or None if the engine is to end."""
        with anyio.CancelScope() as self._scope:
            if self._over:
                return None
            try:
                return (await function(*args),)
            except Exception as error:
                self._failure, self._over = error, True
        return None
