"""The reading half of the store contract: queries, and records by their ids.

* ``limit`` -1: unlimited; 0: an empty page with the right total.
* An ``offset`` past the end: an empty page.
* No ``sort_by``: insertion order. An unknown sort field:
  :class:`~agl_core.errors.InvalidArgumentError`, which names the allowed ones.
* Filters and sort orders mean what :mod:`agl_core.store.query` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from agl_core.store.encoded import EncodedSpan, decode_spans
from agl_core.store.values import FilterLogic
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    SortOrder,
    Span,
    Worker,
    WorkerStatus,
)

__all__ = ["StoreQueries"]


class StoreQueries(ABC):
    """What may be asked of a store; the rules of :mod:`agl_core.store.base` hold."""

    @abstractmethod
    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
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
            rollout_id_in: Keep these ids.
            rollout_id_contains: Keep ids with this substring (case-sensitive).
            filter_logic: How the filters given combine; without any, everything matches.
            sort_by: A field of :class:`Rollout`.
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
            rollout_id: Rollout whose spans are meant; always holds.
            attempt_id: None for all attempts, ``"latest"`` for the one with the highest sequence
                id, or an id; always holds.
            trace_id: Keep spans of this trace (and so on for the filters below).
            trace_id_contains: Substring of the trace id.
            span_id: Span id.
            span_id_contains: Substring of the span id.
            parent_id: Parent span id.
            parent_id_contains: Substring of the parent span id.
            name: Span name.
            name_contains: Substring of the span name.
            filter_logic: How the optional filters combine; without any, everything in scope
                matches.
            limit: Page size.
            offset: Matches to skip.
            sort_by: One of sequence_id, start_time, end_time, name, span_id, trace_id, parent_id,
                rollout_id, attempt_id; None for insertion order. Equal keys keep insertion order.
            sort_order: Direction.

        Raises:
            SpansEvictedError: Spans of this rollout were evicted.
        """
        page = await self.query_encoded_spans(
            rollout_id,
            attempt_id,
            trace_id=trace_id,
            trace_id_contains=trace_id_contains,
            span_id=span_id,
            span_id_contains=span_id_contains,
            parent_id=parent_id,
            parent_id_contains=parent_id_contains,
            name=name,
            name_contains=name_contains,
            filter_logic=filter_logic,
            limit=limit,
            offset=offset,
            sort_by=sort_by,
            sort_order=sort_order,
        )
        return PaginatedResult[Span].model_construct(
            items=decode_spans(page.items), limit=page.limit, offset=page.offset, total=page.total
        )

    @abstractmethod
    async def query_encoded_spans(
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
    ) -> PaginatedResult[EncodedSpan]:
        """Like :meth:`query_spans`, without decoding: what servers use."""
