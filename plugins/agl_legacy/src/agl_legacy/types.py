"""Records of the task server of 0.1, and enums that :mod:`agl_core.semconv` replaces."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from agl_core import semconv
from agl_core.types import RolloutMode, TaskInput, Triplet

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = [
    "GenericResponse",
    "RolloutLegacy",
    "RolloutRawResultLegacy",
    "SpanAttributeNames",
    "SpanNames",
    "Task",
    "TaskIfAny",
]


class Task(BaseModel):
    """A unit of work of the v0.1 server."""

    rollout_id: str
    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    create_time: float | None = None
    last_claim_time: float | None = None
    num_claims: int | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class TaskIfAny(BaseModel):
    """The v0.1 server's answer to a poll."""

    is_available: bool
    task: Task | None = None


class RolloutLegacy(BaseModel):
    """A finished rollout as the v0.1 client posted it."""

    rollout_id: str
    task: Task | None = None
    final_reward: float | None = None
    triplets: list[Triplet] | None = None
    trace: list[dict[str, Any]] | None = None
    logs: list[str] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


if TYPE_CHECKING:
    RolloutRawResultLegacy = (
        None | float | list[Triplet] | list[dict[str, Any]] | list[ReadableSpan] | RolloutLegacy
    )
else:
    RolloutRawResultLegacy = Any  # naming ReadableSpan at run time would import the SDK


class GenericResponse(BaseModel):
    """The v0.1 server's answer to a post."""

    status: Literal["success", "ok", "error"] | str = "success"
    message: str | None = None
    data: dict[str, Any] | None = None


class SpanNames(StrEnum):
    """Deprecated: use :mod:`agl_core.semconv`."""

    REWARD = semconv.SPAN_REWARD
    MESSAGE = semconv.SPAN_MESSAGE
    OBJECT = semconv.SPAN_OBJECT
    EXCEPTION = semconv.SPAN_EXCEPTION
    VIRTUAL = semconv.SPAN_VIRTUAL
    ROLLOUT_ID = semconv.ROLLOUT_ID
    ATTEMPT_ID = semconv.ATTEMPT_ID
    SPAN_SEQUENCE_ID = semconv.SPAN_SEQUENCE_ID


class SpanAttributeNames(StrEnum):
    """Deprecated: use :mod:`agl_core.semconv`."""

    MESSAGE = "message"
    OBJECT = "object"
