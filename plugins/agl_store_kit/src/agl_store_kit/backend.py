"""The port between the store engine and the storage of the data.

:class:`~agl_store_kit.EngineStore` implements :class:`~agl_core.store.LightningStore` once: it
checks arguments, calls :mod:`agl_store_kit.lifecycle` to decide the change, wakes waiting callers
and publishes events. A :class:`StorageBackend` persists the change. It contains no rules about
rollouts, attempts or workers.

::

    class MyStore(EngineStore):
        def __init__(self, path: str, *, scan_debounce_seconds: float = 10.0) -> None:
            super().__init__(MyBackend(path), scan_debounce_seconds=scan_debounce_seconds)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from agl_core.errors import AttemptNotFoundError, RolloutNotFoundError
from agl_core.store import EncodedSpan, LightningStoreCapabilities, LightningStoreStatistics
from agl_core.types import (
    FINISHED_STATUSES,
    RUNNING_STATUSES,
    Attempt,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    Worker,
)
from agl_store_kit import lifecycle
from agl_store_kit.clock import SharedClock
from agl_store_kit.lifecycle import Change
from agl_store_kit.queries import (
    AttemptQuery,
    ResourcesQuery,
    RolloutQuery,
    SpanQuery,
    WorkerQuery,
)

# -- values ----------------------------------------------------------------------------------------

HIGHEST_COUNTED_SEQUENCE_ID: Final = 2**53 - 1
"""Largest sequence id of a span that raises its rollout's counter.

A span may have any 64-bit sequence id. If the largest one raised the counter, no further id could
be drawn for the rollout. Up to here every id is an exact number in JSON.
"""

RolloutRecord = tuple[Rollout, Attempt | None]
"""A rollout and its latest attempt; None if it has no attempt."""


class RolloutState(NamedTuple):
    """The records that a decision about a rollout is based on."""

    rollout: Rollout
    attempt_count: int
    """Number of the rollout's attempts."""
    attempt: Attempt | None
    """The attempt that the decision is about; None if there is no such attempt."""
    worker: Worker | None
    """Record of the worker that the decision is about; None if there is no such record."""

    @property
    def is_latest(self) -> bool:
        """Whether the attempt is the rollout's latest."""
        return self.attempt is not None and self.attempt.sequence_id == self.attempt_count


def standing_claims(states: Iterable[RolloutState]) -> list[tuple[Rollout, Attempt]]:
    """Return the claims of an earlier call with the same key that were not given back since.

    Args:
        states: The states of the attempts that the call claimed.
    """
    return [
        (rollout, attempt)
        for rollout, _, attempt, _ in states
        if attempt is not None and not lifecycle.is_returned_claim(attempt)
    ]


Decide = Callable[[RolloutState], Change | None]
"""Maps a state to a change; None or an empty change means that nothing changes.

Pure, fast and never blocking, so a backend may call it inside a transaction, and again for a newer
state after a lost race. It may raise an :class:`~agl_core.errors.AglError`: then nothing changes,
and the backend lets the error through.
"""

DecideWorker = Callable[[Worker | None], Worker]
"""Maps a worker's record (None: no record yet) to its next one. Pure, like :data:`Decide`."""

DecideResources = Callable[[ResourcesUpdate | None], ResourcesUpdate]
"""Maps a snapshot (None: no snapshot yet) to its next version. Pure, like :data:`Decide`."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One claim from the queue.

    Attributes:
        limit: Largest number of rollouts to claim; 0 or less claims nothing.
        begin: Decides the change of a claim, for the state of a rollout at the head of the queue
            and its place among the claimed ones (0, 1, ...). ``state.attempt`` is None;
            ``state.worker`` is the record of ``worker_id``. The change always holds the rollout and
            a new attempt; of the rollout it changes only ``status`` and ``end_time``, and it
            depends only on ids and the number of attempts. So a backend may call it with any
            ``queuing`` rollout in order to claim with one conditional write. Without a key each
            call draws a new attempt id; otherwise it is pure, like :data:`Decide`.
        worker_id: Worker that claims; None for a claim without a worker.
        idle: Decides the worker's next record if there is nothing to claim; None: unchanged.
        key: Idempotency key; None if the call has none.
    """

    limit: int
    begin: Callable[[RolloutState, int], Change]
    worker_id: str | None = None
    idle: DecideWorker | None = None
    key: str | None = None


class Notice(NamedTuple):
    """One committed change, for waiting callers and event listeners.

    The fields are those of :class:`~agl_core.store.StoreEvent` without its number.
    """

    kind: str
    """``rollout``, ``attempt``, ``worker`` or ``resources``."""
    time: float
    """When it changed, in epoch seconds."""
    rollout_id: str | None = None
    attempt_id: str | None = None
    worker_id: str | None = None
    resources_id: str | None = None
    status: str | None = None


class EndNotice(Notice):
    """The notice of a rollout that got its final status.

    Attributes:
        rollout: The rollout, for listeners in this process. As a tuple the notice is like any
            other, so other processes get it without the rollout.
    """

    rollout: Rollout


class BackendListener(Protocol):
    """The engine as a backend sees it; thread-safe, and never blocks or raises."""

    def changed(self, notices: Sequence[Notice]) -> None:
        """Process committed changes, in the order in which they were committed."""
        ...

    def announce(self, notices: Sequence[Notice]) -> None:
        """Send the events of committed changes to listeners; the caller holds no lock."""
        ...

    def work_available(self, count: int) -> None:
        """Wake up to ``count`` waiting claims, regardless of earlier notices.

        For backends that may miss the notices of other processes and count the queue instead.
        """
        ...

    @property
    def waiting_claims(self) -> int:
        """Number of claims that wait for work; with 0 there is no need to count the queue."""
        ...

    def look_again(self) -> None:
        """Make calls that wait for rollouts read the statuses again, as a notice may be lost."""
        ...


# -- the port --------------------------------------------------------------------------------------


class StorageBackend(ABC):
    """Keeps rollouts, attempts, spans, resources and workers, and the queue.

    **Atomicity.** Each call happens as a whole or not at all, and calls appear in some serial
    order, for any number of tasks, threads and processes that ``capabilities`` admits. One
    exception: a change of a worker that belongs to a change of a rollout may be a second step.
    The backend then calls ``decide`` for the rollout with ``worker=None``, and afterwards with the
    stored worker; of that second result only ``worker`` counts. If the process dies between the
    steps, the worker's next :meth:`change_worker` must show it as if the second step had been
    taken.

    **Threads.** With the capability ``thread_safe`` any thread with an event loop may call, several
    at a time. Nothing may be bound to one loop.

    **Ownership.** Records and queries passed in belong to the backend; neither side changes them
    afterwards. The backend must not change records after it has returned them. If
    ``shares_records`` is True they may be the very objects that it keeps: the engine copies them.
    If it is False they belong to the caller.

    **Idempotency.** The engine derives ids from a call's idempotency key, so
    :meth:`insert_rollouts` gets no key. :meth:`claim`, :meth:`put_resources` and, for a status,
    :meth:`change` get the key: called again under the same key they change nothing. The first two
    return what the first call returned. A backend whose data does not outlive its process may
    ignore keys: the store server remembers replies while it runs.

    **Cancellation.** A cancelled call has taken effect completely or not at all. A cancelled
    :meth:`claim` must not keep rollouts that its caller never receives: they go back to the head of
    the queue, as if they had not been claimed.

    **Notices.** After each commit, also of a call whose caller is gone, the backend calls the
    listener with the notices of the changes (:func:`notices_of`, :func:`worker_notice`, and one of
    kind ``resources`` per snapshot written): once per change, in the order of the commits, and
    holding no lock that another call needs (:meth:`publish`). What is rolled back has no notice.

    **Errors.** :class:`~agl_core.errors.RolloutNotFoundError` and
    :class:`~agl_core.errors.AttemptNotFoundError` where a method says so;
    :class:`~agl_core.errors.StoreUnavailableError` if the data cannot be reached;
    :class:`~agl_core.errors.StoreDataError` if it is damaged. A driver's own errors must not get
    out.

    Times are epoch seconds. Insertion order is the order in which calls inserted, and within a call
    the order given.
    """

    shares_records: ClassVar[bool] = True
    """Whether returned records may be the objects that the backend keeps."""
    keeps_models: ClassVar[bool] = False
    """Whether spans are kept as objects. False: each span passed in has its bytes already."""
    clock: SharedClock | None = None
    """The clock of the records' times, if several machines share the data; None: this machine's."""

    @property
    @abstractmethod
    def capabilities(self) -> LightningStoreCapabilities:
        """The capabilities of a store on this backend; the engine adds ``events``."""

    @abstractmethod
    async def statistics(self) -> LightningStoreStatistics:
        """Return exact counts of what is stored; the engine adds ``name`` and ``uptime``."""

    def subscribe(self, listener: BackendListener) -> None:
        """Set the listener; called once, before any other method."""
        self._listener = listener

    def remote_changes(self) -> AbstractAsyncContextManager[object]:
        """Return a context in which the listener also gets the changes of other processes.

        Once it is entered, no later change is missed. May be entered several times at once. The
        default is for data that only this process changes.
        """
        return nullcontext()

    async def close(self) -> None:  # noqa: B027 -- nothing to release is a valid answer
        """Release connections and files. Idempotent; concurrent calls may fail."""

    # -- changing --------------------------------------------------------------------------------

    @abstractmethod
    async def insert_rollouts(
        self,
        rollouts: Sequence[Rollout],
        *,
        begin: Decide | None = None,
        worker_id: str | None = None,
    ) -> Sequence[RolloutRecord] | None:
        """Add rollouts, all of them or none, in the order given.

        A ``resources_id`` of None is replaced by the id of the latest snapshot, if there is one.

        Args:
            rollouts: ``queuing`` rollouts.
            begin: None appends them to the queue. Otherwise it is called for each of them, with
                ``attempt=None`` and the worker's record; its change (a first attempt) is part of
                the insertion, and the rollout does not enter the queue.
            worker_id: Worker that runs the first attempts.

        Returns:
            The rollouts as stored. None if one of the ids exists already; then none was added, or
            (a backend without transactions, a batch that an earlier call left incomplete) only the
            missing ones.
        """

    @abstractmethod
    async def claim(self, request: ClaimRequest) -> Sequence[tuple[Rollout, Attempt]]:
        """Claim rollouts from the head of the queue; if it is empty, record the worker as idle.

        The head of the queue is the rollout that entered it first. No rollout is claimed twice.

        Returns:
            The claimed rollouts with their new attempts, in queue order.
        """

    @abstractmethod
    async def change(
        self,
        rollout_id: str,
        decide: Decide,
        *,
        attempt_id: str = "latest",
        worker_id: str | None = None,
        payload: bool = True,
        key: str | None = None,
    ) -> RolloutRecord:
        """Read a rollout, call ``decide``, persist its change. The one way to change a rollout.

        ``Change.queue`` is ``append`` (at the tail), ``remove`` or None. The fields ``input``,
        ``mode``, ``resources_id``, ``config`` and ``metadata`` of ``Change.rollout`` are the
        objects of the state unless they changed.

        Args:
            rollout_id: The rollout.
            decide: Called with the stored rollout, attempt and worker. A change's
                attempt replaces the one with its id, or is new.
            attempt_id: The attempt to read into the state, or ``"latest"``. An attempt that does
                not exist is None in the state; that is not an error.
            worker_id: The worker to read into the state; None means the attempt's.
            payload: Whether ``decide`` and the caller read the rollout's ``input`` and
                ``metadata``. If False a backend may leave them None, and ``decide`` changes
                neither.
            key: Idempotency key; a change that was made under it is not made again.

        Returns:
            The rollout and the attempt after the change.

        Raises:
            RolloutNotFoundError: There is no such rollout (:func:`rollout_not_found`).
        """

    @abstractmethod
    async def append_spans(
        self, spans: Sequence[EncodedSpan], arrived: Decide
    ) -> Sequence[EncodedSpan]:
        """Store spans, all of them or none; skip those whose primary key is stored already.

        The key is ``(rollout_id, attempt_id, span_id)``; of two in one call the first is stored.
        Each rollout's counter (:meth:`draw_sequence_ids`) is raised to the highest sequence id of
        its spans, the skipped ones included, but not to those above
        :data:`HIGHEST_COUNTED_SEQUENCE_ID`. For each attempt that got a new span, ``arrived`` is
        called once, as in :meth:`change` with ``payload=False``; it reads the worker only if the
        attempt is ``unresponsive``. If ``arrived`` raises, nothing is stored.

        Returns:
            The very objects that were stored, in the order given.

        Raises:
            RolloutNotFoundError: A span's rollout does not exist; nothing is stored.
            AttemptNotFoundError: A span's attempt does not exist; nothing is stored.
        """

    @abstractmethod
    async def draw_sequence_ids(self, rollout_ids: Sequence[str]) -> Sequence[int]:
        """Draw the next span sequence id (1, 2, 3, ...) of each rollout, in the order given.

        An id may occur several times. An unknown rollout starts a counter.
        """

    def draw_sequence_id_now(self, rollout_id: str) -> int | None:
        """Draw one sequence id without I/O, in any thread; None if that is not possible."""
        del rollout_id
        return None

    @abstractmethod
    async def put_resources(
        self,
        resources_id: str,
        decide: DecideResources,
        *,
        becomes_latest: bool,
        key: str | None = None,
    ) -> ResourcesUpdate:
        """Write the next version of a snapshot.

        Args:
            resources_id: The snapshot.
            decide: Called with the stored snapshot.
            becomes_latest: Whether it becomes the latest snapshot; False keeps the current one.
            key: Idempotency key.
        """

    @abstractmethod
    async def change_worker(self, worker_id: str, decide: DecideWorker) -> Worker:
        """Replace a worker's record by the result of ``decide``; return it."""

    # -- reading ---------------------------------------------------------------------------------

    @abstractmethod
    async def get_rollout(self, rollout_id: str) -> RolloutRecord | None:
        """Return a rollout with its latest attempt; None if there is no such rollout."""

    @abstractmethod
    async def find_rollouts(self, query: RolloutQuery) -> tuple[Sequence[RolloutRecord], int]:
        """Return a page of rollouts with their latest attempts, and the number of all matches.

        They are also sorted by what :func:`agl_store_kit.changed_figures` returns for each change.
        """

    @abstractmethod
    async def find_attempts(self, query: AttemptQuery) -> tuple[Sequence[Attempt], int]:
        """Return a page of a rollout's attempts, and their number; an unknown rollout has none."""

    @abstractmethod
    async def find_spans(self, query: SpanQuery) -> tuple[Sequence[EncodedSpan], int]:
        """Return a page of a rollout's spans, and the number of all matches.

        Raises:
            SpansEvictedError: Spans of this rollout were dropped.
        """

    @abstractmethod
    async def find_resources(self, query: ResourcesQuery) -> tuple[Sequence[ResourcesUpdate], int]:
        """Return a page of snapshots, and the number of all matches."""

    @abstractmethod
    async def get_resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        """Return a snapshot by id, or the latest for None; None if there is no such snapshot."""

    @abstractmethod
    async def find_workers(self, query: WorkerQuery) -> tuple[Sequence[Worker], int]:
        """Return a page of workers, and the number of all matches."""

    @abstractmethod
    async def get_worker(self, worker_id: str) -> Worker | None:
        """Return a worker; None if there is no such worker."""

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return a rollout's latest attempt; override it if that is cheaper than the rollout."""
        record = await self.get_rollout(rollout_id)
        return None if record is None else record[1]

    async def rollout_statuses(self, rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
        """Return the status of each of these rollouts that exists."""
        records, _ = await self.find_rollouts(RolloutQuery(rollout_id_in=rollout_ids))
        return {rollout.rollout_id: rollout.status for rollout, _ in records}

    # -- the watchdog ----------------------------------------------------------------------------

    def has_watched(self) -> bool:
        """Tell without I/O whether there may be rollouts to watch; True is allowed if unknown."""
        return True

    async def begin_scan(self, now: float, debounce: float) -> bool:
        """Tell whether this process may scan now; override it if several processes share the data.

        True in at most one process within ``debounce`` seconds; within a process the engine
        ensures that. A clock that was set back must not stop the scans.
        """
        del now, debounce
        return True

    async def find_watched(self) -> Sequence[RolloutRecord]:
        """Return the rollouts for which :func:`agl_store_kit.lifecycle.is_watched` holds.

        The engine reads only config, status and attempt. The cost should grow with the number of
        watched rollouts, not of all rollouts.
        """
        records, _ = await self.find_rollouts(RolloutQuery(status_in=sorted(RUNNING_STATUSES)))
        return [record for record in records if lifecycle.is_watched(record[0])]

    # -- for implementations ---------------------------------------------------------------------

    _listener: BackendListener | None = None

    def publish(self, notices: Sequence[Notice]) -> None:
        """Pass the notices of a commit to the listener. The caller holds no lock."""
        if notices:
            self.tell(notices)
            self.announce(notices)

    def tell(self, notices: Sequence[Notice]) -> None:
        """The first half of :meth:`publish`, which a backend may call while it holds a lock."""
        if self._listener is not None and notices:
            self._listener.changed(notices)

    def announce(self, notices: Sequence[Notice]) -> None:
        """The second half of :meth:`publish`: send events. The caller holds no lock."""
        if self._listener is not None:
            self._listener.announce(notices)


# -- helpers for implementations -------------------------------------------------------------------

# Takes half the time of Notice().
_notice: Callable[[tuple[Any, ...]], Notice] = partial(tuple[Any, ...].__new__, Notice)
_end_notice: Callable[[tuple[Any, ...]], EndNotice] = partial(tuple[Any, ...].__new__, EndNotice)


def rollout_not_found(rollout_id: str) -> RolloutNotFoundError:
    """Return the error for a rollout that does not exist."""
    return RolloutNotFoundError(f"Rollout {rollout_id} not found")


def attempt_not_found(rollout_id: str, attempt_id: str) -> AttemptNotFoundError:
    """Return the error for an attempt that does not exist."""
    return AttemptNotFoundError(f"Attempt {attempt_id} not found in rollout {rollout_id}")


def notices_of(state: RolloutState, change: Change, now: float) -> list[Notice]:
    """Return the notices of a change: of its attempt, its rollout and its worker.

    Args:
        state: The state that the change was decided upon.
        change: The change.
        now: The time, in epoch seconds.
    """
    rollout, attempt, worker, _, _ = change
    notices: list[Notice] = []
    if attempt is not None:
        before = state.attempt
        if before is None or before.status != attempt.status:
            ids = attempt.rollout_id, attempt.attempt_id, attempt.worker_id
            notices.append(_notice(("attempt", now, *ids, None, attempt.status)))
    if rollout is not None:
        notice = rollout_notice(rollout, now)
        if rollout.status in FINISHED_STATUSES and state.rollout.status not in FINISHED_STATUSES:
            notice = _end_notice(notice)
            notice.rollout = rollout
        notices.append(notice)
    if worker is not None:
        notices += worker_notice(state.worker, worker, now)
    return notices


def rollout_notice(rollout: Rollout, now: float) -> Notice:
    """Return the notice of a rollout that was added or changed."""
    return _notice(("rollout", now, rollout.rollout_id, None, None, None, rollout.status))


def worker_notice(before: Worker | None, worker: Worker, now: float) -> list[Notice]:
    """Return the notice of a worker: a new status or assignment, or a heartbeat.

    A poll that found no work has no notice.
    """
    if before is not None and (
        (before.status, before.current_attempt_id, before.last_heartbeat_time)
        == (worker.status, worker.current_attempt_id, worker.last_heartbeat_time)
    ):
        return []
    ids = worker.current_rollout_id, worker.current_attempt_id, worker.worker_id
    return [Notice("worker", now, *ids, None, worker.status)]
