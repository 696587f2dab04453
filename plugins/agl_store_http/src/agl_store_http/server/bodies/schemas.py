"""JSON bodies and query strings of the store API.

Updates are typed dicts, because there a key that is absent (leave alone) differs from one that is
null (overwrite); everything else is a model. Unknown keys are ignored, as the reference does.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agl_core.store import FilterLogic
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
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
from agl_store_http.server.views.summaries import ModelCallView
from agl_store_http.server.views.text_search import MAX_TEXT

__all__ = [
    "MAX_BATCH",
    "AttemptPage",
    "AttemptQuery",
    "AttemptUpdate",
    "BatchStored",
    "DequeueRequest",
    "EnqueueRequest",
    "Health",
    "ModelCallPage",
    "ModelCallQuery",
    "Problem",
    "ResourcesPage",
    "ResourcesQuery",
    "RolloutCounts",
    "RolloutPage",
    "RolloutQuery",
    "RolloutSummariesRequest",
    "RolloutUpdate",
    "RunQuery",
    "SequenceId",
    "SequenceIdRequest",
    "SequenceIds",
    "SequenceIdsRequest",
    "SpanBatch",
    "SpanPage",
    "SpanQuery",
    "StartAttemptRequest",
    "StartRolloutRequest",
    "Statistics",
    "TextQuery",
    "WaitRequest",
    "WorkerPage",
    "WorkerQuery",
    "WorkerUpdate",
]

Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits a database column."""
Timestamp = Annotated[float, Field(allow_inf_nan=False)]
MAX_BATCH: Final = 5_000
"""Most rollouts, spans or sequence ids of one request: they take about a second of the server.

Lists also stop at their first item that does not fit. The errors of all items would take much more
memory than the request (https://docs.pydantic.dev/latest/concepts/performance/, "FailFast").
"""
Strings = Annotated[list[str], Field(max_length=100_000, fail_fast=True)]


# -- work ------------------------------------------------------------------------------------------


class EnqueueRequest(BaseModel):
    """Rollouts to append to the queue, in order."""

    rollouts: Annotated[list[EnqueueRolloutRequest], Field(max_length=MAX_BATCH, fail_fast=True)]


class DequeueRequest(BaseModel):
    """A claim on the head of the queue."""

    limit: Count = 1
    """How many rollouts to claim at most; one reply has no more than 1,000. 0 or less claims none,
    and with the idempotency key of an earlier call gives back what that call claimed."""
    worker_id: str | None = None
    wait: Seconds = 0.0
    """Seconds to wait for work; 0 answers at once."""


class StartRolloutRequest(BaseModel):
    """A rollout to start at once, bypassing the queue."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    worker_id: str | None = None


class StartAttemptRequest(BaseModel):
    """Another attempt at a rollout."""

    worker_id: str | None = None


class RolloutUpdate(TypedDict, total=False):
    """Fields of a rollout to overwrite; absent ones stay, null clears a nullable one."""

    input: TaskInput
    mode: RolloutMode | None
    resources_id: str | None
    status: RolloutStatus | None
    config: RolloutConfig | None
    metadata: dict[str, Any] | None


class AttemptUpdate(TypedDict, total=False):
    """Fields of an attempt to overwrite; absent ones stay."""

    status: AttemptStatus | None
    worker_id: str | None
    last_heartbeat_time: Timestamp | None
    metadata: dict[str, Any] | None


class WorkerUpdate(TypedDict, total=False):
    """A worker's heartbeat."""

    heartbeat_stats: dict[str, Any] | None


class WorkerRelease(BaseModel):
    """Why a worker is gone."""

    reason: str


class WaitRequest(BaseModel):
    """Rollouts to wait for."""

    rollout_ids: Strings
    timeout: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Seconds; null waits as long as it takes."""


# -- spans -----------------------------------------------------------------------------------------


class SpanBatch(BaseModel):
    """Spans to store as one step."""

    spans: Annotated[list[Span], Field(max_length=MAX_BATCH, fail_fast=True)]


class BatchStored(BaseModel):
    """The result of storing a batch of spans."""

    stored: int
    """How many were stored."""
    duplicates: list[int]
    """Positions in the batch of those that were stored already, or earlier in the batch."""


class SequenceIdRequest(BaseModel):
    """An attempt that wants a sequence id for its next span."""

    rollout_id: str
    attempt_id: str


class SequenceIdsRequest(BaseModel):
    """Attempts that want sequence ids; one may stand several times."""

    ids: Annotated[list[SequenceIdRequest], Field(max_length=MAX_BATCH, fail_fast=True)]


class RenewedToken(BaseModel):
    """A token that replaces the caller's."""

    token: str | None
    """None if the caller's is not renewed: it is the secret, or its first one is 90 days old."""
    seconds: float | None
    """How long it holds. A duration, since the caller's clock may differ."""


class SequenceId(BaseModel):
    """A drawn sequence id."""

    sequence_id: int


class SequenceIds(BaseModel):
    """Sequence ids in the order asked for."""

    sequence_ids: list[int]


# -- queries ---------------------------------------------------------------------------------------


class _Page(BaseModel):
    limit: Count = -1
    """Items wanted; -1 is all."""
    offset: Count = 0
    """Matches to skip."""
    sort_by: str | None = None
    """Field to sort by; insertion order if absent."""
    sort_order: SortOrder = "asc"


class RolloutQuery(_Page):
    """Filters, order and page of rollouts; an absent or null filter does not filter."""

    status_in: Annotated[list[RolloutStatus], Field(fail_fast=True)] | None = None
    mode_in: Annotated[list[RolloutMode], Field(fail_fast=True)] | None = None
    rollout_id_in: Strings | None = None
    rollout_id_contains: str | None = None
    filter_logic: FilterLogic = "and"


class AttemptQuery(_Page):
    """Order and page of a rollout's attempts."""

    sort_by: str | None = "sequence_id"


class WorkerQuery(_Page):
    """Filters, order and page of workers."""

    status_in: Annotated[list[WorkerStatus], Field(fail_fast=True)] | None = None
    worker_id_contains: str | None = None
    filter_logic: FilterLogic = "and"


class ResourcesQuery(_Page):
    """Filters, order and page of resources snapshots; both filters must hold."""

    resources_id: str | None = None
    resources_id_contains: str | None = None


class SpanQuery(_Page):
    """Filters, order and page of the spans of one rollout."""

    rollout_id: str
    attempt_id: str | None = None
    """An id, ``latest``, or absent for all attempts."""
    trace_id: str | None = None
    trace_id_contains: str | None = None
    span_id: str | None = None
    span_id_contains: str | None = None
    parent_id: str | None = None
    parent_id_contains: str | None = None
    name: str | None = None
    name_contains: str | None = None
    filter_logic: FilterLogic = "and"
    sort_by: str | None = "sequence_id"


class RolloutSummariesRequest(BaseModel):
    """Rollouts to summarize."""

    rollout_ids: Annotated[list[str], Field(max_length=500, fail_fast=True)]


class ModelCallQuery(BaseModel):
    """Attempt and page of a rollout's model calls."""

    attempt_id: str = "latest"
    """An id, or ``latest``."""
    limit: Annotated[int, Field(ge=-1, le=2**31)] = -1
    """Calls wanted; -1 is all."""
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Calls to skip."""


class RunQuery(BaseModel):
    """A run."""

    run: str = ""
    """Its name; empty for rollouts without one."""


class TextQuery(BaseModel):
    """A text that rollouts may say."""

    text: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    offset: Annotated[Count, Field(ge=0)] = 0
    """Rollouts to skip, from the newest on: ``searched`` of the answer before."""


class BatchQuery(BaseModel):
    """One batch of a run."""

    run: str = ""
    """Name of the run; empty for rollouts without one."""
    batch: str = ""
    """Name of the batch."""


class GainQuery(BaseModel):
    """Two snapshots of resources to compare."""

    before: str = ""
    """Id of the one that the gain is over."""
    after: str = ""
    """Id of the other."""
    mode: RolloutMode | None = None
    """Mode of the rollouts; absent for those without one."""


# -- pages: named forms of PaginatedResult, for the OpenAPI document -------------------------------


class RolloutPage(PaginatedResult[AttemptedRollout | Rollout]):
    """One page of rollouts, each with its latest attempt if it has one."""


class AttemptPage(PaginatedResult[Attempt]):
    """One page of attempts."""


class WorkerPage(PaginatedResult[Worker]):
    """One page of workers."""


class ResourcesPage(PaginatedResult[ResourcesUpdate]):
    """One page of resources snapshots."""


class SpanPage(PaginatedResult[Span]):
    """One page of spans."""


class ModelCallPage(PaginatedResult[ModelCallView]):
    """One page of model calls."""


# -- other answers ---------------------------------------------------------------------------------


class Health(BaseModel):
    """The server answers."""

    status: Literal["ok"] = "ok"


class RolloutCounts(BaseModel):
    """Number of rollouts by status."""

    queuing: int
    preparing: int
    running: int
    failed: int
    succeeded: int
    cancelled: int
    requeuing: int


class Statistics(BaseModel):
    """Counts of what is stored; a store may leave out what it does not know."""

    name: str
    """Class of the store."""
    total_rollouts: int | None = None
    total_attempts: int | None = None
    total_spans: int | None = None
    total_resources: int | None = None
    total_workers: int | None = None
    uptime: float | None = None
    """Seconds since the store was made."""
    total_span_bytes: int | None = None
    eviction_threshold_bytes: int | None = None
    safe_threshold_bytes: int | None = None
    memory_capacity_bytes: int | None = None


class StoreTime(BaseModel):
    """The store's clock, which all times of its records but those of spans are from."""

    now: float
    """Epoch seconds."""


class Problem(BaseModel):
    """The body of every reply with a status from 400 on."""

    detail: Any
    """A sentence, or for 422 a list of ``{type, loc, msg}``."""
    error_type: str | None = None
    """Class of the error that the store raised."""
    error_id: str | None = None
    """For 500: what to look for in the server's log."""
