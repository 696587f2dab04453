"""The store contract: everything algorithms, runners and servers may ask of a store.

Rules that hold for every method:

* **Atomic.** Each call happens as a whole or not at all, and calls appear in some serial order, for
  any number of tasks, threads, processes and machines that the store's capabilities admit.
* **Copies.** Nothing that goes in or comes out is shared with the store: mutating it changes
  nothing.
* **Durable on return**, for stores that claim ``durable``: what a returned call wrote survives the
  process.
* Times are epoch seconds, durations are seconds, sizes are bytes.
* Unknown ids: reads answer ``None`` or an empty page, writes raise
  :class:`~agl_core.errors.RolloutNotFoundError` or :class:`~agl_core.errors.AttemptNotFoundError`.
* A bad argument raises :class:`~agl_core.errors.InvalidArgumentError` (a ``ValueError``). A store
  that cannot be reached raises :class:`~agl_core.errors.StoreUnavailableError`; data that cannot be
  used raises :class:`~agl_core.errors.StoreDataError`.

What a call does to statuses is decided in :mod:`agl_core.lifecycle`, never in a store. The calls
that only read are in :mod:`agl_core.store.queries`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agl_core.store.encoded import EncodedSpan, encode_span
from agl_core.store.queries import StoreQueries
from agl_core.store.values import (
    UNSET,
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
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["LightningStore"]


class LightningStore(StoreQueries):
    """Keeps tasks, spans and tunable resources; the only thing between algorithm and runners."""

    # -- about the store -------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do."""
        return LightningStoreCapabilities()

    async def statistics(self) -> LightningStoreStatistics:
        """Return counts of what is stored."""
        return LightningStoreStatistics(name=type(self).__name__)

    def otlp_traces_endpoint(self) -> str:
        """Return the URL that takes OTLP/HTTP traces, ending in ``/v1/traces``.

        Raises:
            NotImplementedError: The store has no such endpoint (capability ``otlp_traces``).
        """
        raise NotImplementedError(f"{type(self).__name__} takes no OTLP traces")

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        """Return the token bound to an attempt that was claimed or started through this object.

        None if nobody asks for tokens. Hand it to the agent's code instead of the runner's token.
        """
        return None

    async def close(self) -> None:
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
            mode: What the rollout is for.
            resources_id: Snapshot to run with; None takes the latest, if there is one.
            config: Timeouts and retries; None means the defaults.
            metadata: Free data; None is stored as ``{}``.
            worker_id: Worker that runs it; it becomes ``busy``.
        """

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
        request = EnqueueRolloutRequest.model_construct(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )
        return (await self.enqueue_many_rollouts([request]))[0]

    @abstractmethod
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        """Enqueue a batch as one step; the result and the queue keep the order given."""

    # -- claiming work ---------------------------------------------------------------------------

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait: float = 0.0
    ) -> AttemptedRollout | None:
        """Claim the head of the queue: a new ``preparing`` attempt on it.

        Args:
            worker_id: Worker that claims; it becomes ``busy``, or ``idle`` if there is no work.
            wait: How long to wait for work, in seconds; 0 answers at once. Waiting costs nothing
                and ends within milliseconds of an enqueue. Waiters are served in order of arrival.

        Returns:
            The rollout with its new attempt, or None if there was no work in time.
        """
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id, wait=wait)
        return claimed[0] if claimed else None

    @abstractmethod
    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None, wait: float = 0.0
    ) -> Sequence[AttemptedRollout]:
        """Claim up to ``limit`` rollouts in queue order; see :meth:`dequeue_rollout`.

        With ``wait`` the call returns as soon as there is any work. A ``limit`` of 0 or less
        returns ``[]``.
        """

    @abstractmethod
    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None
    ) -> AttemptedRollout:
        """Start another attempt outside the queue, whatever the rollout's status and limits.

        The rollout becomes ``preparing``, leaves the queue if it was in it, and its end time is
        cleared.

        Raises:
            RolloutNotFoundError: No such rollout.
        """

    @abstractmethod
    async def return_claim(self, rollout_id: str, attempt_id: str) -> None:
        """Take back a claim that reached nobody; see :func:`agl_core.lifecycle.return_claim`.

        For servers, which learn that a claimer is gone. One atomic step; nothing changes once
        somebody has acted on the attempt.

        Raises:
            RolloutNotFoundError: No such rollout.
            AttemptNotFoundError: No such attempt.
        """

    # -- resources -------------------------------------------------------------------------------

    @abstractmethod
    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """Store a new snapshot under a new id, version 1.

        It becomes the latest, unless all it holds are checkpoints
        (:func:`agl_core.types.becomes_latest`).
        """

    @abstractmethod
    async def update_resources(
        self, resources_id: str, resources: NamedResources
    ) -> ResourcesUpdate:
        """Replace a snapshot (version + 1, create time kept), or create it at version 1.

        Either way it becomes the latest, as :meth:`add_resources` says.
        """

    # -- spans -----------------------------------------------------------------------------------

    async def add_span(self, span: Span) -> Span | None:
        """Store one span; return it, or None if its primary key is already stored."""
        stored = await self.add_encoded_spans([encode_span(span)])
        return span if stored else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans as one step; return those stored, in the order given.

        Duplicates of stored spans and within the batch are skipped and logged. A span that arrives
        is its attempt's heartbeat (:func:`agl_core.lifecycle.span_arrived`). The rollout's
        sequence counter is raised to the highest sequence id of the batch.

        Raises:
            RolloutNotFoundError: A span names an unknown rollout; nothing is stored.
            AttemptNotFoundError: A span names an unknown attempt; nothing is stored.
        """
        encoded = [encode_span(span) for span in spans]
        stored = await self.add_encoded_spans(encoded)
        if len(stored) == len(encoded):
            return list(spans)
        kept = {id(item) for item in stored}
        return [span for span, item in zip(spans, encoded, strict=True) if id(item) in kept]

    @abstractmethod
    async def add_encoded_spans(self, spans: Sequence[EncodedSpan]) -> Sequence[EncodedSpan]:
        """Like :meth:`add_many_spans`, without encoding; returns the very objects stored."""

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

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Draw the rollout's next span sequence id: 1, 2, 3, …

        The counter belongs to the rollout, all attempts share it; unknown ids start one.
        """
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        """Draw the rollout's next span sequence id without waiting, if this store can.

        A tracer that can number a span the moment it ends keeps the order of what happened, however
        late the span is stored. Only for threads that may call the store at all.

        Returns:
            The id, or None if drawing one takes I/O.
        """
        del rollout_id, attempt_id
        return None

    @abstractmethod
    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        """Draw a sequence id for each ``(rollout_id, attempt_id)``, in order."""

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
        """Change the fields given; what a status does: :func:`agl_core.lifecycle.update_rollout`.

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
        """Change the fields given; what follows: :func:`agl_core.lifecycle.update_attempt`.

        Raises:
            RolloutNotFoundError: No such rollout.
            AttemptNotFoundError: No such attempt.
            InvalidArgumentError: A value is outside its domain.
        """

    @abstractmethod
    async def update_worker(
        self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET
    ) -> Worker:
        """Record a worker's heartbeat, creating the worker if need be.

        The reply is also how a runner learns that its attempt was taken from it: the worker then
        no longer holds the attempt's id.

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
            timeout: Seconds; None waits as long as it takes, 0 or less looks once.

        Returns:
            The finished ones among them, in the order given.
        """

    def events(self) -> AsyncIterator[StoreEvent]:
        """Yield changes as they happen, from the first iteration on, until the iterator is closed.

        A listener that falls far behind loses the oldest events (their ids show a gap); it never
        slows the store.

        Raises:
            NotImplementedError: The store tells no events (capability ``events``).
        """
        raise NotImplementedError(f"{type(self).__name__} tells no events")

    async def run_watchdog(self) -> int:
        """Look for attempts past their timeout or silent for too long, and pass the verdicts.

        Stores debounce it; servers and managed stores call it periodically.

        Returns:
            How many verdicts were passed.
        """
        return 0
