"""Writing spans, and the sequence ids that they carry."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agl_core.store import EncodedSpan
from agl_store_kit import HIGHEST_COUNTED_SEQUENCE_ID, Decide, attempt_not_found
from agl_store_kit.lifecycle import Change
from agl_store_sqlite.columns import SPAN_COLUMNS
from agl_store_sqlite.schema import SPANS_PER_ROLLOUT
from agl_store_sqlite.transaction import StoredState, Transaction

__all__ = ["append_spans", "draw_sequence_ids"]

_NOTHING: Final = Change()


def append_spans(
    tx: Transaction, spans: Sequence[EncodedSpan], arrived: Decide
) -> list[EncodedSpan]:
    """Store spans; see :meth:`agl_store_kit.StorageBackend.append_spans`."""
    states: dict[tuple[str, str], StoredState] = {}
    ordinals: dict[str, int] = {}
    for span in spans:
        ids = span.rollout_id, span.attempt_id
        if ids not in states:
            states[ids] = stored = tx.state(*ids, payload=False)
            if stored.state.attempt is None:
                raise attempt_not_found(*ids)
            ordinals[span.rollout_id] = stored.ordinal
    added = _insert_spans(tx, spans, ordinals)
    if len(added) < len(spans):
        # The counter is above all stored spans, not above the skipped ones.
        for span in spans:
            _raise_sequence_id(tx, span.rollout_id, span.sequence_id)
    for ids in dict.fromkeys((span.rollout_id, span.attempt_id) for span in added):
        stored = states[ids]
        if len(states) > len(ordinals):  # another attempt may have changed the rollout
            stored = tx.state(*ids, payload=False)
        tx.apply(stored, arrived(stored.state) or _NOTHING)
    return added


def _insert_spans(
    tx: Transaction, spans: Sequence[EncodedSpan], ordinals: Mapping[str, int]
) -> list[EncodedSpan]:
    """Add spans; skip those whose primary key is stored.

    Args:
        tx: The transaction.
        spans: The spans.
        ordinals: Ordinals of their rollouts, by id.

    Returns:
        The spans that were added.
    """
    last = {ordinal: _last_span(tx, ordinal) for ordinal in ordinals.values()}
    rows: list[tuple[Any, ...]] = []
    for span in spans:
        ordinal = ordinals[span.rollout_id]
        last[ordinal] += 1
        rows.append(_row(last[ordinal], ordinal, span))
    connection = tx.connection
    added: list[EncodedSpan] = []
    start = 0
    while start < len(rows):
        before = connection.total_changes
        try:
            connection.executemany(_INSERT, rows[start:] if start else rows)
            end = len(rows)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorname != "SQLITE_CONSTRAINT_UNIQUE":
                raise
            # An error takes back only its own row: the rows before it are in the table
            # (https://www.sqlite.org/lang_conflict.html, ABORT).
            end = start + connection.total_changes - before
        added += spans[start:end]
        start = end + 1
    if added:
        tx.count("spans", len(added))
        tx.count("span_bytes", sum(len(span.payload) for span in added))
    return added


def _last_span(tx: Transaction, ordinal: int) -> int:
    """Return the ordinal of a rollout's newest span, or the one before its first."""
    first = ordinal * SPANS_PER_ROLLOUT
    (last,) = tx.one(
        "SELECT max(ordinal) FROM spans WHERE ordinal > ? AND ordinal < ?",
        first,
        first + SPANS_PER_ROLLOUT,
    )
    return first if last is None else last


def draw_sequence_ids(tx: Transaction, rollout_id: str, number: int) -> int:
    """Draw this many ids of a rollout, above the ids of its spans; return the last one."""
    return tx.one(
        "INSERT INTO sequence_ids (rollout_id, last) VALUES (?1, ?2 + max(0, coalesce("
        "(SELECT max(sequence_id) FROM spans WHERE sequence_id <= ?3 AND rollout = "
        "(SELECT ordinal FROM rollouts WHERE rollout_id = ?1)), 0))) "
        "ON CONFLICT (rollout_id) DO UPDATE SET last = max(last + ?2, excluded.last) "
        "RETURNING last",
        rollout_id,
        number,
        HIGHEST_COUNTED_SEQUENCE_ID,
    )[0]


def _raise_sequence_id(tx: Transaction, rollout_id: str, least: int) -> None:
    """Make every id drawn of a rollout from now on higher than ``least``, if that counts."""
    if least > HIGHEST_COUNTED_SEQUENCE_ID:
        return
    tx.execute(
        "INSERT INTO sequence_ids (rollout_id, last) VALUES (?, ?) "
        "ON CONFLICT (rollout_id) DO UPDATE SET last = max(last, excluded.last)",
        (rollout_id, least),
    )


_INSERT: Final = (
    f"INSERT INTO spans (ordinal, rollout, {SPAN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _row(span_ordinal: int, ordinal: int, span: EncodedSpan) -> tuple[Any, ...]:
    return (
        span_ordinal,
        ordinal,
        span.attempt_id,
        span.sequence_id,
        span.trace_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.start_time,
        span.end_time,
        span.payload,
    )
