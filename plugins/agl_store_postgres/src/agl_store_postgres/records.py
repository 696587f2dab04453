r"""Rows and records: the columns of each record, and records built from rows.

Records are built without validation, because the rows were written from validated records. Columns
of JSON are ``bytea``: ``json`` and ``jsonb`` refuse NaN, and ``jsonb`` refuses ``\u0000``.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from agl_store_kit import RolloutRecord

__all__ = [
    "ATTEMPT_FIELDS",
    "LATEST_RESOURCES",
    "NO_PAYLOAD_COLUMNS",
    "RESOURCES_FIELDS",
    "ROLLOUT_FIELDS",
    "SPAN_FIELDS",
    "WORKER_FIELDS",
    "attempt_from",
    "columns",
    "encode",
    "optional_attempt",
    "record_from",
    "resources_from",
    "resources_json",
    "rollout_from",
    "searchable",
    "worker_from",
]

Row = Sequence[Any]

ROLLOUT_FIELDS: Final = (
    "rollout_id",
    "input",
    "start_time",
    "end_time",
    "mode",
    "resources_id",
    "status",
    "config",
    "metadata",
)
ATTEMPT_FIELDS: Final = (
    "rollout_id",
    "attempt_id",
    "sequence_id",
    "start_time",
    "end_time",
    "status",
    "worker_id",
    "last_heartbeat_time",
    "metadata",
)
WORKER_FIELDS: Final = tuple(Worker.model_fields)
RESOURCES_FIELDS: Final = ("resources_id", "create_time", "update_time", "version", "resources")
SPAN_FIELDS: Final = (
    "attempt_id",
    "sequence_id",
    "trace_id",
    "span_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
    "payload",
)
LATEST_RESOURCES: Final = "WHERE touched > 0 ORDER BY touched DESC LIMIT 1"
"""``touched`` orders snapshots by their last write; below 0 is one that was never the latest."""
NO_PAYLOAD_COLUMNS: Final = (
    "r.rollout_id, NULL::bytea, r.start_time, r.end_time, r.mode, r.resources_id, r.status, "
    "r.config, NULL::bytea"
)
"""A rollout without its input and metadata, which may be large: both are None."""

_WIDTH: Final = len(ROLLOUT_FIELDS)
_resources: Final = TypeAdapter(NamedResources)
resources_json: Final = _resources.dump_json


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


def searchable(text: str | None) -> str | None:
    """Return a span's text for a column: PostgreSQL's text has no null character."""
    return text.replace("\0", "\ufffd") if text else text


def _decode(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """Replace JSON by its value; ``config`` becomes a model.

    Raises:
        StoreDataError: The row is damaged; the message names it.
    """
    name = ""
    try:
        for name in names:
            if values[name] is not None:
                values[name] = from_json(values[name])
            if name == "config":
                values[name] = RolloutConfig.model_validate(values[name])
    except ValueError as error:
        row_id = next(iter(values.values()))
        message = f"the stored {name} of {row_id} cannot be read: {error}"
        raise StoreDataError(message) from error
    return values


def rollout_from(row: Row) -> Rollout:
    """Build a rollout from a row that begins with :data:`ROLLOUT_FIELDS`."""
    values: dict[str, Any] = dict(zip(ROLLOUT_FIELDS, row, strict=False))
    return construct(Rollout, _decode(values, "input", "config", "metadata"))


def attempt_from(row: Row) -> Attempt:
    """Build an attempt from a row that begins with :data:`ATTEMPT_FIELDS`."""
    return construct(Attempt, _decode(dict(zip(ATTEMPT_FIELDS, row, strict=False)), "metadata"))


def optional_attempt(row: Row) -> Attempt | None:
    """Build an attempt from the columns of an outer join."""
    return None if row[0] is None else attempt_from(row)


def record_from(row: Row) -> RolloutRecord:
    """Build a rollout and its latest attempt from the columns of both."""
    return rollout_from(row), optional_attempt(row[_WIDTH:])


def worker_from(row: Row) -> Worker:
    """Build a worker from a row of :data:`WORKER_FIELDS`."""
    return construct(Worker, _decode(dict(zip(WORKER_FIELDS, row, strict=True)), "heartbeat_stats"))


def resources_from(row: Row) -> ResourcesUpdate:
    """Build a snapshot from a row of :data:`RESOURCES_FIELDS`."""
    values: dict[str, Any] = dict(zip(RESOURCES_FIELDS, row, strict=True))
    try:
        values["resources"] = _resources.validate_json(values["resources"])
    except ValueError as error:
        raise StoreDataError(f"snapshot {row[0]} cannot be read: {error}") from error
    return construct(ResourcesUpdate, values)
