"""The reading half of the client."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

from pydantic import Field, TypeAdapter
from pydantic_core import from_json, to_json

from agl_core.store import (
    BatchingStore,
    EncodedSpan,
    FilterLogic,
    LightningStoreStatistics,
    construct,
    encode_span,
)
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
from agl_store_http.client.transport import Reply, RequestFailed, Transport

__all__ = ["ClientQueries", "path_of"]

T = TypeVar("T")

# An AttemptedRollout is a Rollout with one key more, so the first that fits is the right one.
AnyRollout = Annotated[AttemptedRollout | Rollout, Field(union_mode="left_to_right")]
_rollout: Final[TypeAdapter[Rollout | AttemptedRollout | None]] = TypeAdapter(AnyRollout | None)
_attempt: Final[TypeAdapter[Attempt | None]] = TypeAdapter(Attempt | None)
_worker: Final[TypeAdapter[Worker | None]] = TypeAdapter(Worker | None)
_resources: Final[TypeAdapter[ResourcesUpdate | None]] = TypeAdapter(ResourcesUpdate | None)
_rollouts: Final = TypeAdapter(PaginatedResult[AnyRollout])
_attempts: Final = TypeAdapter(PaginatedResult[Attempt])
_snapshots: Final = TypeAdapter(PaginatedResult[ResourcesUpdate])
_workers: Final = TypeAdapter(PaginatedResult[Worker])
_spans: Final = TypeAdapter(PaginatedResult[Span])


def path_of(*segments: str) -> str:
    """Return a path whose segments may hold anything, slashes included."""
    return "".join([f"/{quote(segment, safe='')}" for segment in segments])


class ClientQueries(BatchingStore):
    """What a client asks its server.

    Args:
        transport: How the server is reached.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def call(self, method: str, path: str, body: bytes | None = None, **more: Any) -> Reply:
        """Send a request; failures become the errors that a local store raises."""
        try:
            return await self._transport.call(method, path, body, **more)
        except RequestFailed as error:
            raise error.as_store_error() from None

    async def statistics(self) -> LightningStoreStatistics:
        return from_json((await self.call("GET", "/statistics")).body)

    # -- one record ------------------------------------------------------------------------------

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | AttemptedRollout | None:
        try:
            reply = await self._transport.call("GET", path_of("rollouts", rollout_id))
        except RequestFailed as error:
            if error.error_type == "ResponseValidationError":
                return None  # how the reference's server says that there is no such rollout
            raise error.as_store_error() from None
        return _rollout.validate_json(reply.body)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        reply = await self.call("GET", path_of("rollouts", rollout_id, "attempts", "latest"))
        return _attempt.validate_json(reply.body)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        reply = await self.call("GET", path_of("resources", resources_id))
        return _resources.validate_json(reply.body)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return _resources.validate_json((await self.call("GET", "/resources/latest")).body)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        reply = await self.call("GET", path_of("workers", worker_id))
        return _worker.validate_json(reply.body)

    # -- pages -----------------------------------------------------------------------------------

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
        for old, new, given in (
            ("status", "status_in", status),
            ("rollout_ids", "rollout_id_in", rollout_ids),
        ):
            if given is not None:
                warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=2)
        return await self._search(
            "/rollouts/search",
            _rollouts,
            {
                "status_in": _listed(status if status_in is None else status_in),
                "rollout_id_in": _listed(rollout_ids if rollout_id_in is None else rollout_id_in),
                "rollout_id_contains": rollout_id_contains,
                "filter_logic": filter_logic,
            },
            sort_by,
            sort_order,
            limit,
            offset,
        )

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        path = path_of("rollouts", rollout_id, "attempts", "search")
        return await self._search(path, _attempts, {}, sort_by, sort_order, limit, offset)

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
        filters = {"resources_id": resources_id, "resources_id_contains": resources_id_contains}
        page = _page_fields(filters, sort_by, sort_order, limit, offset)
        params = {name: str(value) for name, value in page.items() if value is not None}
        reply = await self.call("GET", "/resources", params=params)
        return _cut(_snapshots.validate_json(reply.body), limit)

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
        filters = {
            "status_in": _listed(status_in),
            "worker_id_contains": worker_id_contains,
            "filter_logic": filter_logic,
        }
        return await self._search(
            "/workers/search", _workers, filters, sort_by, sort_order, limit, offset
        )

    async def query_spans(  # pyright: ignore[reportIncompatibleMethodOverride]
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
        filters = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "trace_id": trace_id,
            "trace_id_contains": trace_id_contains,
            "span_id": span_id,
            "span_id_contains": span_id_contains,
            "parent_id": parent_id,
            "parent_id_contains": parent_id_contains,
            "name": name,
            "name_contains": name_contains,
            "filter_logic": filter_logic,
        }
        return await self._search(
            "/spans/search", _spans, filters, sort_by, sort_order, limit, offset
        )

    async def query_encoded_spans(
        self, rollout_id: str, attempt_id: str | Literal["latest"] | None = None, **query: Any
    ) -> PaginatedResult[EncodedSpan]:
        page = await self.query_spans(rollout_id, attempt_id, **query)
        return construct(
            PaginatedResult[Any],
            {**page.__dict__, "items": [encode_span(span) for span in page.items]},
        )

    async def _search(
        self,
        path: str,
        page: TypeAdapter[PaginatedResult[T]],
        filters: dict[str, Any],
        sort_by: str | None,
        sort_order: SortOrder,
        limit: int,
        offset: int,
    ) -> PaginatedResult[T]:
        body = to_json(_page_fields(filters, sort_by, sort_order, limit, offset))
        return _cut(page.validate_json((await self.call("POST", path, body)).body), limit)


def _page_fields(
    filters: dict[str, Any], sort_by: str | None, sort_order: str, limit: int, offset: int
) -> dict[str, Any]:
    # The API has no empty page: one item is asked for and not shown.
    return {
        **filters,
        "sort_by": sort_by,
        "sort_order": sort_order,
        "limit": limit or 1,
        "offset": offset,
    }


def _cut(page: PaginatedResult[T], limit: int) -> PaginatedResult[T]:
    return page.model_copy(update={"items": [], "limit": 0}) if limit == 0 else page


def _listed(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)
