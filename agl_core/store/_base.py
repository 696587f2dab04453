"""The store contract: all calls that algorithms, runners and servers make to a store.

Rules that hold for every method:

* **Atomic.** Each call happens as a whole or not at all, and calls appear in some serial order, for
  any number of tasks, threads, processes and machines that the store's capabilities admit.
* **Copies.** Arguments and results are not shared with the store: mutating them does not change
  the store.
* **Durable on return**, for stores with the capability ``durable``: the data of a returned call
  survives the process.
* Times are epoch seconds, durations are seconds, sizes are bytes.
* Unknown ids: reads answer ``None`` or an empty page, writes raise
  :class:`~agl_core.errors.RolloutNotFoundError` or :class:`~agl_core.errors.AttemptNotFoundError`.
* A bad argument raises :class:`~agl_core.errors.InvalidArgumentError` (a ``ValueError``). A store
  that cannot be reached raises :class:`~agl_core.errors.StoreUnavailableError`; damaged data raises
  :class:`~agl_core.errors.StoreDataError`.

Queries:

* ``limit`` -1: unlimited; 0: an empty page with the right total.
* An ``offset`` past the end: an empty page.
* No ``sort_by``: insertion order. An unknown sort field is an
  :class:`~agl_core.errors.InvalidArgumentError` that names the allowed ones.

How a call changes statuses is the same in every store: see the page on the life of a rollout in the
documentation, and the conformance suite of stores.

The abstract methods are those of version 0.3; all others have a default on top of them. The kit for
stores that keep their own data implements all of it once, on a port for a database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError
from agl_core.store._compat import adapt_methods
from agl_core.store._encoded import EncodedSpan, encode_span
from agl_core.store._request_key import key_of_place
from agl_core.store._values import (
    UNSET,
    FilterLogic,
    LightningStoreCapabilities,
    LightningStoreStatistics,
    StoreEvent,
    Unset,
)
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    SortOrder,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)
from agl_core.types._copying import evolve

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)


class LightningStore(ABC):
    """Keeps tasks, spans and tunable resources; the only thing between algorithm and runners."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A store written for version 0.3 has no `wait`, and may return plain sequences.
        adapt_methods(cls)

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """The capabilities of this store."""
        return LightningStoreCapabilities()

    async def statistics(self) -> LightningStoreStatistics:
        """Return counts of what is stored."""
        return LightningStoreStatistics(name=type(self).__name__)

    async def now(self) -> float:
        """Return the store's clock, in epoch seconds.

        All times of its records but those of spans are from it. The clock of another machine may
        differ. The default is this process's clock.
        """
        return time.time()

    def otlp_traces_endpoint(self) -> str:
        """Return the URL that accepts OTLP/HTTP traces; it ends in ``/v1/traces``.

        Raises:
            NotImplementedError: The store has no such endpoint (capability ``otlp_traces``).
        """
        raise NotImplementedError(f"{type(self).__name__} accepts no OTLP traces")

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        """Return the token bound to an attempt that was claimed or started through this object.

        None if the store needs no tokens. Hand it to the agent's code, not the runner's token.
        """
        return None

    async def close(self) -> None:  # noqa: B027 -- nothing to release is a valid answer
        """Release connections and files. Idempotent; the store must not be used afterwards."""

    # -- creating work ---------------------------------------------------------------------------

    @abstractmethod
    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout and its first attempt (both ``preparing``), bypassing the queue.

        Args:
            input: The task.
            mode: Purpose of the rollout: train, val or test.
            resources_id: Snapshot to run with; None takes the latest, if there is one.
            config: Timeouts and retries; None means the defaults.
            metadata: Free data; None is stored as ``{}``.
            worker_id: Worker that runs it; it becomes ``busy``.
        """

    @abstractmethod
    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        """Create a ``queuing`` rollout at the tail of the queue.

        Arguments are those of :meth:`start_rollout`; a ``resources_id`` of None is resolved now,
        not when the rollout is claimed.
        """

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        """Enqueue a batch as one step; the result and the queue keep the order given.

        The default enqueues one rollout after another.
        """
        made: list[Rollout] = []
        for item in rollouts:
            with key_of_place(len(made)):
                made.append(
                    await self.enqueue_rollout(
                        item.input,
                        mode=item.mode,
                        resources_id=item.resources_id,
                        config=item.config,
                        metadata=item.metadata,
                    )
                )
        return made

    # -- claiming work ---------------------------------------------------------------------------

    @abstractmethod
    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        """Claim the head of the queue: a new ``preparing`` attempt on it.

        Args:
            worker_id: Worker that claims; it becomes ``busy``, or ``idle`` if there is no work.
            wait: Longest wait for work, in seconds; 0 returns at once. Waiting uses no CPU and ends
                within milliseconds of an enqueue. Waiting calls are served in order of arrival. An
                implementation without this parameter is polled.

        Returns:
            The rollout with its new attempt, or None if there was no work in time.
        """

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        """Claim up to ``limit`` rollouts in queue order; see :meth:`dequeue_rollout`.

        With ``wait`` the call returns as soon as there is any work. A ``limit`` of 0 or less
        returns ``[]``.

        The default claims one rollout after another.
        """
        claimed: list[AttemptedRollout] = []
        while len(claimed) < limit:
            try:
                with key_of_place(len(claimed)):
                    one = await self.dequeue_rollout(worker_id, wait=0.0 if claimed else wait)
            except asyncio.CancelledError:
                await self._return_claims(claimed)
                raise
            except Exception as error:
                if not claimed:
                    raise
                logger.warning("Claimed %d of %d rollouts: %s", len(claimed), limit, error)
                break  # the next call says what is wrong
            if one is None:
                break
            claimed.append(one)
        return claimed

    async def _return_claims(self, claims: Sequence[AttemptedRollout]) -> None:
        """Return the claims of a cancelled call, which reach no caller."""
        for claim in claims:
            try:
                await self.return_claim(claim.rollout_id, claim.attempt.attempt_id)
            except Exception as error:
                logger.warning(
                    "The claim on rollout %s is lost, cancel or requeue it: %s",
                    claim.rollout_id,
                    error,
                )

    @abstractmethod
    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        """Start another attempt outside the queue, regardless of the rollout's status and limits.

        The rollout becomes ``preparing``, leaves the queue if it was in it, and its end time is
        cleared.

        Raises:
            RolloutNotFoundError: No such rollout.
        """

    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        """Take back a claim whose reply was not delivered: the rollout goes back to the queue.

        For servers, which notice that a client has disconnected. One atomic step; an attempt that
        has been used since does not change. The default takes several steps and does not end the
        attempt.

        Raises:
            RolloutNotFoundError: No such rollout.
            AttemptNotFoundError: No such attempt.
        """
        rollout = await self.get_rollout_by_id(rollout_id)
        if rollout is None:
            raise RolloutNotFoundError(f"Rollout {rollout_id} not found")
        attempts = {item.attempt_id: item for item in await self.query_attempts(rollout_id)}
        if attempt_id not in attempts:
            raise AttemptNotFoundError(f"Attempt {attempt_id} not found in rollout {rollout_id}")
        attempt = attempts[attempt_id]
        is_latest = attempt.sequence_id == max(item.sequence_id for item in attempts.values())
        if is_latest and attempt.status == rollout.status == "preparing":
            await self.update_rollout(rollout_id, status="requeuing")

    # -- queries ---------------------------------------------------------------------------------

    @abstractmethod
    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        mode_in: Sequence[RolloutMode] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout | AttemptedRollout]:
        """Return rollouts, each with its latest attempt if it has one.

        Args:
            status_in: Keep these statuses; ``[]`` keeps none.
            mode_in: Keep these modes; ``[]`` keeps none.
            rollout_id_in: Keep these ids.
            rollout_id_contains: Keep ids with this substring (case-sensitive).
            filter_logic: How the given filters combine; without filters every rollout matches.
            sort_by: A field of :class:`Rollout`; ``reward``, the primary reward that the latest
                attempt got last; or ``duration``, the seconds that the latest attempt took. A
                missing reward or duration sorts as the smallest.
            sort_order: Direction.
            limit: Page size.
            offset: Matches to skip.
            status: Deprecated name of ``status_in``, ignored if that is given.
            rollout_ids: Deprecated name of ``rollout_id_in``, ignored if that is given.
        """

    @abstractmethod
    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Return the attempts of a rollout; an unknown rollout has none."""

    @abstractmethod
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        """Return a rollout, with its latest attempt if it has one."""

    @abstractmethod
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt with the highest sequence id."""

    @abstractmethod
    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Return resources snapshots; both filters must hold."""

    @abstractmethod
    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """Return one snapshot."""

    @abstractmethod
    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the snapshot most recently added or updated, checkpoints aside."""

    @abstractmethod
    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """Return workers."""

    @abstractmethod
    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return one worker."""

    @abstractmethod
    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Return the spans of a rollout, or of one of its attempts.

        Args:
            rollout_id: Rollout of the spans; always applies.
            attempt_id: None for all attempts, ``"latest"`` for the one with the highest sequence
                id, or an id; always applies.
            trace_id: Keep spans of this trace (and so on for the filters below).
            trace_id_contains: Substring of the trace id.
            span_id: Span id.
            span_id_contains: Substring of the span id.
            parent_id: Parent span id.
            parent_id_contains: Substring of the parent span id.
            name: Span name.
            name_contains: Substring of the span name.
            filter_logic: How the optional filters combine; without any, every span of the rollout
                or attempt matches.
            limit: Page size.
            offset: Matches to skip.
            sort_by: One of sequence_id, start_time, end_time, name, span_id, trace_id, parent_id,
                rollout_id, attempt_id; None for insertion order. Equal keys keep insertion order.
            sort_order: Direction.

        Raises:
            SpansEvictedError: Spans of this rollout were evicted.
        """

    async def query_encoded_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        **filters: Any,
    ) -> PaginatedResult[EncodedSpan]:
        """Like :meth:`query_spans`, with the same parameters, for spans as bytes.

        Servers send the bytes unchanged. The default encodes the spans of :meth:`query_spans`.
        """
        page = await self.query_spans(rollout_id, attempt_id, **filters)
        return evolve(page, {"items": [encode_span(span) for span in page.items]})  # pyright: ignore[reportReturnType]

    # -- resources -------------------------------------------------------------------------------

    @abstractmethod
    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """Store a new snapshot under a new id, version 1.

        It becomes the latest, unless it holds a checkpoint
        (:func:`agl_core.types.becomes_latest`).
        """

    @abstractmethod
    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        """Replace a snapshot (version + 1, create time kept), or create it at version 1.

        In both cases it becomes the latest, as in :meth:`add_resources`.
        """

    async def swap_resources(
        self, resources_id: str, resources: NamedResources, *, version: int
    ) -> ResourcesUpdate | None:
        """Replace a snapshot if nobody has replaced it since it was read.

        The comparison and the write are one atomic step, for all processes that share the store.

        Args:
            resources_id: Id of the snapshot.
            resources: New content.
            version: Version that was read; 0 if there was none.

        Returns:
            The new snapshot; None if the stored version is another one, and nothing was written.

        Raises:
            NotImplementedError: The store does not have the capability ``compare_and_set``.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot compare and set")

    # -- spans -----------------------------------------------------------------------------------

    @abstractmethod
    async def add_span(self, span: Span) -> Span | None:
        """Store one span; return it, or None if its primary key is already stored.

        Raises:
            RolloutNotFoundError: The span names an unknown rollout.
            AttemptNotFoundError: The span names an unknown attempt.
            InvalidArgumentError: The span has more than ``MAX_SPAN_ATTRIBUTES`` attributes, or
                takes more than ``MAX_SPAN_BYTES``.
        """

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans as one step; return those stored, in the order given.

        Duplicates of stored spans and within the batch are skipped and logged. A span that arrives
        is its attempt's heartbeat. The rollout's sequence counter is raised to the highest sequence
        id of the batch. The default stores one span after another.

        Raises:
            RolloutNotFoundError: A span names an unknown rollout; nothing is stored.
            AttemptNotFoundError: A span names an unknown attempt; nothing is stored.
            InvalidArgumentError: A span is too large; nothing is stored.
        """
        return [span for span in spans if await self.add_span(span) is not None]

    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        """Like :meth:`add_many_spans`, for spans as bytes; returns the stored objects.

        The default decodes them.
        """
        stored = await self.add_many_spans([span.decode() for span in spans])
        keys = {(span.rollout_id, span.attempt_id, span.span_id) for span in stored}
        kept: list[EncodedSpan] = []
        for span in spans:
            key = (span.rollout_id, span.attempt_id, span.span_id)
            if key in keys:
                keys.discard(key)
                kept.append(span)
        return kept

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
    ) -> Span | None:
        """Convert a span of the OpenTelemetry SDK and store it; see :meth:`add_span`.

        Without a ``sequence_id`` the rollout's next one is drawn.
        """
        if sequence_id is None:
            sequence_id = await self.get_next_span_sequence_id(rollout_id, attempt_id)
        return await self.add_span(
            Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id)
        )

    @abstractmethod
    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Draw the rollout's next span sequence id: 1, 2, 3, …

        The counter belongs to the rollout and is shared by all attempts; unknown ids start one.
        """

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        """Draw the rollout's next span sequence id without waiting, if this store can.

        A tracer that numbers a span when it ends preserves the order of events, even if the span is
        stored later. Only for threads that may call the store.

        Returns:
            The id, or None if drawing one takes I/O.
        """
        del rollout_id, attempt_id
        return None

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """Draw a sequence id for each ``(rollout_id, attempt_id)``, in order."""
        return [await self.get_next_span_sequence_id(*ids) for ids in rollout_attempt_ids]

    # -- updates ---------------------------------------------------------------------------------

    @abstractmethod
    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | None | Unset = UNSET,
        resources_id: str | None | Unset = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
    ) -> Rollout:
        """Change the given fields; any status may follow any other.

        Raises:
            RolloutNotFoundError: No such rollout.
            InvalidArgumentError: A value is outside its domain, or None for status or config.
        """

    @abstractmethod
    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | None | Unset = UNSET,
    ) -> Attempt:
        """Change the given fields; the status of the latest attempt moves its rollout.

        Raises:
            RolloutNotFoundError: No such rollout.
            AttemptNotFoundError: No such attempt.
            InvalidArgumentError: A value is outside its domain.
        """

    @abstractmethod
    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        """Record a worker's heartbeat; creates the worker if it does not exist.

        The reply also shows a runner that it has lost its attempt: the returned worker then no
        longer has the attempt's id.

        Raises:
            TypeError: ``heartbeat_stats`` is None.
        """

    # -- waiting ---------------------------------------------------------------------------------

    @abstractmethod
    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> Sequence[Rollout]:
        """Wait until all of these rollouts are finished, or until the timeout.

        Args:
            rollout_ids: Rollouts to wait for; unknown ids are left out and not waited for.
            timeout: Seconds; None waits without a limit, 0 or less checks once.

        Returns:
            The finished rollouts among them, in the order given.
        """

    def events(self) -> AsyncIterator[StoreEvent]:
        """Yield changes as they happen, from the first iteration on, until the iterator is closed.

        A listener that is too slow loses the oldest events (their ids show a gap); it never slows
        the store. Spans are no events: a database would write a notice with each batch of them,
        for listeners that it seldom has. An interceptor of ``add_many_spans`` sees them.

        Raises:
            NotImplementedError: The store has no events (capability ``events``).
        """
        raise NotImplementedError(f"{type(self).__name__} has no events")

    async def run_watchdog(self) -> int:
        """End attempts that exceeded their timeout or were silent for too long.

        Stores debounce it; servers and managed stores call it periodically. The default is for
        stores that check during other calls, as in version 0.3.

        Returns:
            Number of ended attempts.
        """
        return 0
