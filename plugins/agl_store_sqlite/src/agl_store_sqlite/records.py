"""Rows and records: how each record is kept in columns, and made of them again.

Records are built without validation: the rows come from validated ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json

from agl_core.errors import InvalidArgumentError
from agl_core.store import EncodedSpan
from agl_core.types import (
    Attempt,
    AttemptedRollout,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Worker,
)
from agl_core.types._copying import construct
from agl_store_sqlite.errors import damaged

__all__ = [
    "ATTEMPTED",
    "ATTEMPTED_COLUMNS",
    "ATTEMPT_COLUMNS",
    "ROLLOUT_COLUMNS",
    "SPAN_COLUMNS",
    "STANDING_COLUMNS",
    "WORKER_COLUMNS",
    "WORKER_FIELDS",
    "attempt_from",
    "attempted_from",
    "encode",
    "joined",
    "named_resources",
    "resources_from",
    "rollout_from",
    "span_from",
    "worker_from",
]

ROLLOUT_COLUMNS: Final = (
    "r.rollout_id, r.input, r.start_time, r.end_time, r.mode, r.resources_id, r.status, r.config, "
    "r.metadata"
)
STANDING_COLUMNS: Final = (
    "r.rollout_id, 'null', r.start_time, r.end_time, r.mode, r.resources_id, r.status, r.config, "
    "'{}'"
)
ATTEMPT_COLUMNS: Final = (
    "a.rollout_id, a.attempt_id, a.sequence_id, a.start_time, a.end_time, a.status, a.worker_id, "
    "a.last_heartbeat_time, a.metadata"
)
ATTEMPTED_COLUMNS: Final = f"{ROLLOUT_COLUMNS}, {ATTEMPT_COLUMNS}"
ATTEMPTED: Final = (
    "rollouts r LEFT JOIN attempts a ON a.rollout = r.ordinal AND a.sequence_id = r.attempts"
)
"""Rollouts with their latest attempts."""
WORKER_COLUMNS: Final = (
    "worker_id, status, heartbeat_stats, last_heartbeat_time, last_dequeue_time, last_busy_time, "
    "last_idle_time, current_rollout_id, current_attempt_id"
)
SPAN_COLUMNS: Final = (
    "attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, payload"
)

_WIDTH: Final = ROLLOUT_COLUMNS.count(",") + 1
WORKER_FIELDS: Final = tuple(Worker.model_fields)
named_resources: Final = TypeAdapter(NamedResources)

Row = Sequence[Any]


def encode(name: str, value: Any) -> bytes:
    """Return a payload's JSON.

    Raises:
        InvalidArgumentError: It has no JSON form; the message names the field.
    """
    try:
        return to_json(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"{name} cannot be stored as JSON: {error}") from error


def _decoded(value: bytes, decode: Callable[[bytes], Any] = from_json) -> Any:
    """Return what :func:`encode` was given.

    Raises:
        sqlite3.DatabaseError: It did not make this.
    """
    try:
        return decode(value)
    except ValueError as error:
        raise damaged(error) from error


def rollout_from(row: Row) -> Rollout:
    """Build a rollout from a row of :data:`ROLLOUT_COLUMNS`."""
    return construct(Rollout, _rollout_values(row))


def _rollout_values(row: Row) -> dict[str, Any]:
    return {
        "rollout_id": row[0],
        "input": _decoded(row[1]),
        "start_time": row[2],
        "end_time": row[3],
        "mode": row[4],
        "resources_id": row[5],
        "status": row[6],
        "config": construct(RolloutConfig, _decoded(row[7])),
        "metadata": _decoded(row[8]),
    }


def attempt_from(row: Row) -> Attempt:
    """Build an attempt from a row of :data:`ATTEMPT_COLUMNS`."""
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


def attempted_from(row: Row) -> Rollout | AttemptedRollout:
    """Build a rollout with its latest attempt, if any, from :data:`ATTEMPTED_COLUMNS`."""
    values = _rollout_values(row)
    if row[_WIDTH] is None:
        return construct(Rollout, values)
    values["attempt"] = attempt_from(row[_WIDTH:])
    return construct(AttemptedRollout, values)


def joined(rollout: Rollout, attempt: Attempt) -> AttemptedRollout:
    """Return both as one record that shares their values; for records that nobody else has."""
    return construct(AttemptedRollout, {**rollout.__dict__, "attempt": attempt})


def worker_from(row: Row) -> Worker:
    """Build a worker from a row of :data:`WORKER_COLUMNS`."""
    values = dict(zip(WORKER_FIELDS, row, strict=True))
    values["heartbeat_stats"] = _decoded(values["heartbeat_stats"])
    return construct(Worker, values)


def resources_from(row: Row) -> ResourcesUpdate:
    """Build a snapshot from a row of the resources table, ordinal aside."""
    return construct(
        ResourcesUpdate,
        {
            "resources_id": row[0],
            "create_time": row[1],
            "update_time": row[2],
            "version": row[3],
            "resources": _decoded(row[4], named_resources.validate_json),
        },
    )


def span_from(rollout_id: str, row: Row) -> EncodedSpan:
    """Build an encoded span from a row of :data:`SPAN_COLUMNS`."""
    attempt_id, sequence_id, trace_id, span_id, parent_id, name, start, end, payload = row
    return EncodedSpan(
        rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, start, end, payload
    )
