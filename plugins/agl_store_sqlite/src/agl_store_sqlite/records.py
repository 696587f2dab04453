"""Rows and records: the columns of each record, and records built from rows.

Records are built without validation, because the rows were written from validated records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json

from agl_core.errors import InvalidArgumentError
from agl_core.types import (
    Attempt,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Worker,
    construct,
)
from agl_store_sqlite.errors import damaged

__all__ = [
    "ATTEMPT_COLUMNS",
    "LATEST_ATTEMPT",
    "LATEST_RESOURCES",
    "NO_PAYLOAD_COLUMNS",
    "RECORD_COLUMNS",
    "RESOURCES_COLUMNS",
    "ROLLOUT_COLUMNS",
    "SPAN_COLUMNS",
    "WORKER_COLUMNS",
    "WORKER_FIELDS",
    "attempt_from",
    "encode",
    "record_from",
    "resources_from",
    "resources_json",
    "rollout_from",
    "worker_from",
]

Row = Sequence[Any]

ROLLOUT_COLUMNS: Final = (
    "r.rollout_id, r.input, r.start_time, r.end_time, r.mode, r.resources_id, r.status, r.config, "
    "r.metadata"
)
NO_PAYLOAD_COLUMNS: Final = (
    "r.rollout_id, NULL, r.start_time, r.end_time, r.mode, r.resources_id, r.status, r.config, NULL"
)
"""A rollout without its input and metadata, which may be large: both are None."""
ATTEMPT_COLUMNS: Final = (
    "a.rollout_id, a.attempt_id, a.sequence_id, a.start_time, a.end_time, a.status, a.worker_id, "
    "a.last_heartbeat_time, a.metadata"
)
WORKER_COLUMNS: Final = (
    "w.worker_id, w.status, w.heartbeat_stats, w.last_heartbeat_time, w.last_dequeue_time, "
    "w.last_busy_time, w.last_idle_time, w.current_rollout_id, w.current_attempt_id"
)
RESOURCES_COLUMNS: Final = "resources_id, create_time, update_time, version, resources"
SPAN_COLUMNS: Final = (
    "attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, payload"
)
RECORD_COLUMNS: Final = f"{ROLLOUT_COLUMNS}, {ATTEMPT_COLUMNS}"
LATEST_RESOURCES: Final = "WHERE touched > 0 ORDER BY touched DESC LIMIT 1"
LATEST_ATTEMPT: Final = "attempts a ON a.rollout = r.ordinal AND a.sequence_id = r.attempts"

_ROLLOUT_WIDTH: Final = ROLLOUT_COLUMNS.count(",") + 1
WORKER_FIELDS: Final = tuple(Worker.model_fields)
_resources: Final = TypeAdapter(NamedResources)
resources_json: Final = _resources.dump_json


def encode(name: str, value: Any) -> bytes:
    """Return the JSON of a field's value.

    Raises:
        InvalidArgumentError: The value has no JSON form; the message names the field.
    """
    try:
        return to_json(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"{name} cannot be stored as JSON: {error}") from error


def _decoded(value: bytes | None, decode: Callable[[bytes], Any] = from_json) -> Any:
    """Return the value that :func:`encode` was called with; None for a column that was left out.

    Raises:
        sqlite3.DatabaseError: The bytes are damaged.
    """
    if value is None:
        return None
    try:
        return decode(value)
    except ValueError as error:
        raise damaged(error) from error


def _config_from(value: bytes) -> RolloutConfig:
    return RolloutConfig.model_validate(from_json(value))


def rollout_from(row: Row) -> Rollout:
    """Build a rollout from a row that begins with :data:`ROLLOUT_COLUMNS`."""
    return construct(
        Rollout,
        {
            "rollout_id": row[0],
            "input": _decoded(row[1]),
            "start_time": row[2],
            "end_time": row[3],
            "mode": row[4],
            "resources_id": row[5],
            "status": row[6],
            "config": _decoded(row[7], _config_from),
            "metadata": _decoded(row[8]),
        },
    )


def attempt_from(row: Row) -> Attempt:
    """Build an attempt from a row that begins with :data:`ATTEMPT_COLUMNS`."""
    return construct(
        Attempt,
        {
            "rollout_id": row[0],
            "attempt_id": row[1],
            "sequence_id": row[2],
            "start_time": row[3],
            "end_time": row[4],
            "status": row[5],
            "worker_id": row[6],
            "last_heartbeat_time": row[7],
            "metadata": _decoded(row[8]),
        },
    )


def record_from(row: Row) -> tuple[Rollout, Attempt | None]:
    """Build a rollout and its latest attempt, if it has one, from :data:`RECORD_COLUMNS`."""
    attempt = None if row[_ROLLOUT_WIDTH] is None else attempt_from(row[_ROLLOUT_WIDTH:])
    return rollout_from(row), attempt


def worker_from(row: Row) -> Worker:
    """Build a worker from a row of :data:`WORKER_COLUMNS`."""
    values = dict(zip(WORKER_FIELDS, row, strict=True))
    values["heartbeat_stats"] = _decoded(values["heartbeat_stats"])
    return construct(Worker, values)


def resources_from(row: Row) -> ResourcesUpdate:
    """Build a snapshot from a row of :data:`RESOURCES_COLUMNS`."""
    return construct(
        ResourcesUpdate,
        {
            "resources_id": row[0],
            "create_time": row[1],
            "update_time": row[2],
            "version": row[3],
            "resources": _decoded(row[4], _resources.validate_json),
        },
    )
