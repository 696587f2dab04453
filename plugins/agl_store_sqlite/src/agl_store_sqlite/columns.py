"""The columns of each record, as statements name them."""

from __future__ import annotations

from typing import Final

from agl_store_kit.rows import (
    ATTEMPT_FIELDS,
    RESOURCES_FIELDS,
    ROLLOUT_FIELDS,
    SPAN_FIELDS,
    WORKER_FIELDS,
    columns,
)

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
]

ROLLOUT_COLUMNS: Final = columns(ROLLOUT_FIELDS, "r.")
NO_PAYLOAD_COLUMNS: Final = ROLLOUT_COLUMNS.replace("r.input", "NULL").replace("r.metadata", "NULL")
"""A rollout without its input and metadata, which may be large: both are None."""
ATTEMPT_COLUMNS: Final = columns(ATTEMPT_FIELDS, "a.")
RECORD_COLUMNS: Final = f"{ROLLOUT_COLUMNS}, {ATTEMPT_COLUMNS}"
WORKER_COLUMNS: Final = columns(WORKER_FIELDS, "w.")
RESOURCES_COLUMNS: Final = columns(RESOURCES_FIELDS)
SPAN_COLUMNS: Final = columns((*SPAN_FIELDS, "payload"))
LATEST_RESOURCES: Final = "WHERE touched > 0 ORDER BY touched DESC LIMIT 1"
"""``touched`` orders snapshots by their last write; below 0 is one that was never the latest."""
LATEST_ATTEMPT: Final = "attempts a ON a.rollout = r.ordinal AND a.sequence_id = r.attempts"
