"""Records as rows: the fields of each record, the JSON in them, and records built from rows.

For back ends of databases. Input, config, metadata, heartbeat statistics and resources are stored
as JSON, in bytes or text. Records are built without validation, because they were valid when they
were written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json

from agl_core.errors import InvalidArgumentError, StoreDataError
from agl_core.types import (
    Attempt,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Worker,
    construct,
)
from agl_store_kit.backend import RolloutRecord, RolloutState

__all__ = [
    "ATTEMPT_FIELDS",
    "NULLABLE_STRINGS",
    "RESOURCES_FIELDS",
    "ROLLOUT_FIELDS",
    "SPAN_FIELDS",
    "WORKER_FIELDS",
    "Row",
    "UnreadableRecordError",
    "attempt_from",
    "columns",
    "encode",
    "encode_resources",
    "optional_attempt",
    "record_from",
    "resources_from",
    "rollout_from",
    "state_from",
    "worker_from",
]

Row = Sequence[Any]

ROLLOUT_FIELDS: Final = tuple(Rollout.model_fields)
ATTEMPT_FIELDS: Final = tuple(Attempt.model_fields)
WORKER_FIELDS: Final = tuple(Worker.model_fields)
RESOURCES_FIELDS: Final = tuple(ResourcesUpdate.model_fields)
SPAN_FIELDS: Final = (
    "attempt_id",
    "sequence_id",
    "trace_id",
    "span_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
)
"""The fields of a span that queries look at, besides its rollout. The span itself is a payload."""
NULLABLE_STRINGS: Final = frozenset(
    {
        "mode",
        "resources_id",
        "worker_id",
        "current_rollout_id",
        "current_attempt_id",
        "parent_id",
    }
)
"""Fields of which a missing value sorts as an empty string."""
_ATTEMPT: Final = 1 + len(ROLLOUT_FIELDS)
_WORKER: Final = _ATTEMPT + len(ATTEMPT_FIELDS)
"""Where attempt and worker begin in a row of :func:`state_from`."""
_resources: Final = TypeAdapter(NamedResources)


class UnreadableRecordError(StoreDataError):
    """A stored value cannot be read; the message names the record and the field."""


def columns(fields: Sequence[str], table: str = "") -> str:
    """Return fields as a list of columns; ``table`` is the alias of their table, with a dot."""
    return ", ".join(table + field for field in fields)


def encode(name: str, value: Any) -> bytes:
    """Return the JSON of a field's value.

    Raises:
        InvalidArgumentError: The value has no JSON form; the message names the field.
    """
    try:
        return to_json(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(f"{name} cannot be stored as JSON: {error}") from error


encode_resources: Final = _resources.dump_json
"""Return the JSON of a snapshot's resources."""


def _decoded(
    name: str, owner: str, value: bytes | str | None, decode: Callable[[Any], Any] = from_json
) -> Any:
    """Return the value that :func:`encode` was called with; None for a column that was left out."""
    if value is None:
        return None
    try:
        return decode(value)
    except ValueError as error:
        message = f"the stored {name} of {owner} cannot be read: {error}"
        raise UnreadableRecordError(message) from error


def _config_from(value: bytes | str) -> RolloutConfig:
    return RolloutConfig.model_validate(from_json(value))


def rollout_from(row: Row) -> Rollout:
    """Build a rollout from a row that begins with :data:`ROLLOUT_FIELDS`.

    Input and metadata may be NULL where the caller does not look at them.

    Raises:
        UnreadableRecordError: The row is damaged.
    """
    rollout_id = row[0]
    return construct(
        Rollout,
        {
            "rollout_id": rollout_id,
            "input": _decoded("input", rollout_id, row[1]),
            "start_time": row[2],
            "end_time": row[3],
            "mode": row[4],
            "resources_id": row[5],
            "status": row[6],
            "config": _decoded("config", rollout_id, row[7], _config_from),
            "metadata": _decoded("metadata", rollout_id, row[8]),
        },
    )


def attempt_from(row: Row) -> Attempt:
    """Build an attempt from a row that begins with :data:`ATTEMPT_FIELDS`.

    Raises:
        UnreadableRecordError: The row is damaged.
    """
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
            "metadata": _decoded("metadata", row[1], row[8]),
        },
    )


def optional_attempt(row: Row) -> Attempt | None:
    """Build an attempt from the columns of an outer join, which are NULL if there is none."""
    return None if row[0] is None else attempt_from(row)


def record_from(row: Row) -> RolloutRecord:
    """Build a rollout and its latest attempt from the columns of both."""
    return rollout_from(row), optional_attempt(row[len(ROLLOUT_FIELDS) :])


def worker_from(row: Row) -> Worker:
    """Build a worker from a row of :data:`WORKER_FIELDS`.

    Raises:
        UnreadableRecordError: The row is damaged.
    """
    values = dict(zip(WORKER_FIELDS, row, strict=True))
    values["heartbeat_stats"] = _decoded("heartbeat_stats", row[0], values["heartbeat_stats"])
    return construct(Worker, values)


def state_from(row: Row) -> RolloutState:
    """Build what a decision is based on: the number of attempts, a rollout, an attempt, a worker.

    The columns of the attempt and of the worker are NULL if there is none.
    """
    return RolloutState(
        rollout_from(row[1:_ATTEMPT]),
        row[0],
        optional_attempt(row[_ATTEMPT:_WORKER]),
        None if row[_WORKER] is None else worker_from(row[_WORKER:]),
    )


def resources_from(row: Row) -> ResourcesUpdate:
    """Build a snapshot from a row of :data:`RESOURCES_FIELDS`.

    Raises:
        UnreadableRecordError: The row is damaged.
    """
    values = dict(zip(RESOURCES_FIELDS, row, strict=True))
    values["resources"] = _decoded("resources", row[0], row[4], _resources.validate_json)
    return construct(ResourcesUpdate, values)
