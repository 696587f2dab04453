"""The tracer contract: it records the run of an agent as spans.

A runner uses a tracer like this, once per worker and once per attempt::

    tracer.init()
    tracer.init_worker(worker_id, store)
    async with tracer.trace_context(rollout_id=..., attempt_id=...):
        ...  # the agent runs; its actions and emitted values become spans
    spans = tracer.get_last_trace()
    tracer.teardown_worker(worker_id)
    tracer.teardown()

Rules that hold for every tracer:

* **One tracer, many attempts.** Any number of trace contexts may be open at once: in several
  threads with a loop each, in several tasks of one loop, and one within another. A span belongs to
  the trace context it was started in, which follows :mod:`contextvars`.
* **No span is lost silently.** When a trace context has closed, every span of it is in the store,
  or leaving the context raised.
* **Spans arrive while the agent works**, within a few seconds of their end: people watch, and the
  spans are numbered together with those of a proxy. A tracer that does not send a span at its end
  overrides :meth:`Tracer.flush`.
* **A store may fail for a moment.** A span that the store refused with ``StoreUnavailableError`` is
  sent again; leaving the context raises once the tracer's own time limit has passed.
* **No patch remains.** After the last ``teardown_worker`` no library is patched any more.
* **Picklable before use**: until ``init_worker`` a tracer holds configuration only.
"""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from agl_core.types import ParallelWorkerBase

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.types import (
        AttributeValue,
        Span,
        SpanCoreFields,
        SpanRecordingContext,
        TraceStatus,
    )

P = ParamSpec("P")
R = TypeVar("R")


class Tracer(ParallelWorkerBase, ABC):
    """Records spans within its trace contexts and sends them to the store."""

    _store: LightningStore | None = None

    # -- life cycle ------------------------------------------------------------------------------

    def init_worker(
        self, worker_id: int, store: LightningStore | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Prepare for the trace contexts of one worker.

        Called once per worker of this process; each call is matched by one ``teardown_worker``.

        Args:
            worker_id: Number of the worker.
            store: Destination of the spans; None keeps them in memory.
            args: For subclasses.
            kwargs: For subclasses.
        """
        super().init_worker(worker_id)
        self._store = store

    @contextmanager
    def lifespan(self, store: LightningStore | None = None) -> Generator[None]:
        """Initialise the tracer for a ``with`` block, as worker 0, and tear it down after."""
        self.init()
        try:
            self.init_worker(0, store)
            try:
                yield
            finally:
                self.teardown_worker(0)
        finally:
            self.teardown()

    # -- recording a trace -----------------------------------------------------------------------

    @abstractmethod
    def trace_context(
        self,
        name: str | None = None,
        *,
        store: LightningStore | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Open a trace: an async context manager within which this is the active tracer.

        When it has been left, every span is in the store.

        Args:
            name: Name of the trace, for backends that show names.
            store: Deprecated; ``init_worker`` takes the store.
            rollout_id: Rollout that the spans belong to; without ids they stay in memory.
            attempt_id: Attempt that the spans belong to; given with ``rollout_id`` or not at all.

        Raises:
            ValueError: Only one of the ids was given, or ids without a store.
            RuntimeError: ``init_worker`` was not called.
            StoreUnavailableError: On leaving: spans could not be stored.
        """

    @abstractmethod
    def get_last_trace(self) -> list[Span]:
        """Return the spans of the running trace context, or of the last one closed, ordered by end.

        "Running" and "last" refer to the calling context; if that has had no trace, the last one
        that this tracer closed is used. Sequence ids of spans that are not stored yet are
        provisional.
        """

    async def flush(self) -> None:
        """Return when every span that ended in the running trace context is in the store.

        Raises:
            StoreUnavailableError: Spans could not be stored.
        """

    # -- creating spans --------------------------------------------------------------------------
    # Not abstract: a tracer written for version 0.3 may record only calls of libraries.

    def create_span(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span that starts and ends at one moment.

        Args:
            name: Name of the span.
            attributes: Flat attributes.
            timestamp: The moment, in epoch seconds; None means now.
            status: Outcome; None leaves it unset.

        Raises:
            NotImplementedError: The tracer does not record what agents emit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not record what agents emit")

    def operation_context(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[SpanRecordingContext]:
        """Record a span around a ``with`` block; spans made within it become its children.

        An exception that leaves the block is recorded, sets the status ``ERROR``, and propagates.

        Args:
            name: Name of the span.
            attributes: Flat attributes known at the start.
            start_time: Epoch seconds; None means now.
            end_time: Epoch seconds; None means when the block is left.

        Raises:
            NotImplementedError: The tracer does not record what agents emit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not record what agents emit")

    def get_langchain_handler(self) -> Any | None:
        """Return a LangChain callback handler that reports to this tracer, if it has one."""
        warnings.warn(
            f"{type(self).__name__} has no LangChain handler; the agentops tracer has one",
            stacklevel=2,
        )
        return None

    # -- deprecated ------------------------------------------------------------------------------

    def trace_run(self, func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function in a new trace context. Deprecated: use :meth:`trace_context`."""
        warnings.warn("use trace_context instead of trace_run", DeprecationWarning, stacklevel=2)

        async def run() -> R:
            async with self.trace_context():
                return func(*args, **kwargs)

        return asyncio.run(run())

    async def trace_run_async(
        self, func: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Like :meth:`trace_run` for a coroutine function. Deprecated."""
        warnings.warn(
            "use trace_context instead of trace_run_async", DeprecationWarning, stacklevel=2
        )
        async with self.trace_context():
            return await func(*args, **kwargs)
