r"""The parts of the tables' columns that are specific to PostgreSQL.

Columns of JSON are ``bytea``: ``json`` and ``jsonb`` refuse NaN, and ``jsonb`` refuses ``\u0000``.
"""

from __future__ import annotations

from typing import Final

from agl_store_kit.rows import ROLLOUT_FIELDS, columns

__all__ = ["LATEST_RESOURCES", "NO_PAYLOAD_COLUMNS", "searchable"]

LATEST_RESOURCES: Final = "WHERE touched > 0 ORDER BY touched DESC LIMIT 1"
"""``touched`` orders snapshots by their last write; it is negative if one was never the latest."""
NO_PAYLOAD_COLUMNS: Final = (
    columns(ROLLOUT_FIELDS, "r.")
    .replace("r.input", "NULL::bytea")
    .replace("r.metadata", "NULL::bytea")
)
"""A rollout without its input and metadata, which may be large: both are None."""


def searchable(text: str | None) -> str | None:
    """Return a span's text for a column: PostgreSQL's text has no null character."""
    return text.replace("\0", "\ufffd") if text else text
