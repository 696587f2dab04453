"""Spans: stored with the attempts' counters under the locks of their rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from agl_core.store import EncodedSpan
from agl_core.types import Rollout, Worker
from agl_store_kit import (
    HIGHEST_COUNTED_SEQUENCE_ID,
    Decide,
    RolloutState,
    attempt_not_found,
    rollout_not_found,
)
from agl_store_kit.lifecycle import Change
from agl_store_kit.rows import SPAN_FIELDS, columns
from agl_store_postgres.columns import searchable
from agl_store_postgres.schema import partition_of
from agl_store_postgres.transaction import (
    StoredState,
    Transaction,
    state_columns,
    stored_state,
)

__all__ = ["append_spans", "draw_sequence_ids"]

_COPIED: Final = 16
"""From this number of spans on, COPY costs less than a statement per span."""
_COLUMNS: Final = f"rollout, {columns((*SPAN_FIELDS, 'payload'))}"
_TYPES: Final = (
    *("int8", "text", "int8", "text", "text", "text", "text", "float8", "float8", "bytea"),
)
_NOTHING: Final = Change()

Ids = tuple[str, str]
Key = tuple[int, str, str]


async def append_spans(
    tx: Transaction, spans: Sequence[EncodedSpan], arrived: Decide, *, look: bool
) -> list[EncodedSpan]:
    """Store spans; see :meth:`agl_store_kit.StorageBackend.append_spans`.

    Args:
        tx: The transaction.
        spans: The spans.
        arrived: Decides what their arrival changes.
        look: Look for stored spans with the same keys first. False saves a round trip.

    Raises:
        psycopg.errors.UniqueViolation: A span is stored already, and ``look`` is False.
    """
    states = await _states(tx, spans)
    keys = [_key(span, states) for span in spans]
    known = await _stored_keys(tx, keys) if look else set[Key]()
    added: dict[Key, EncodedSpan] = {}
    for key, span in zip(keys, spans, strict=True):
        if key not in known:
            added.setdefault(key, span)
    stored = list(added.values())
    by_partition: dict[str, list[tuple[Any, ...]]] = {}
    # A rollout's spans are neighbours in the table, so that reading them takes few pages.
    for (ordinal, _, _), span in sorted(added.items(), key=lambda item: item[0][0]):
        by_partition.setdefault(partition_of(ordinal), []).append(_values(ordinal, span))
    for partition, rows in by_partition.items():
        await _insert(tx, partition, rows)
    _raise_counters(tx, spans)
    numbers: Counter[Ids] = Counter()
    sizes: Counter[Ids] = Counter()
    for span in stored:
        ids = (span.rollout_id, span.attempt_id)
        numbers[ids] += 1
        sizes[ids] += len(span.payload)
    rollouts: dict[str, Rollout] = {}
    workers: dict[str, Worker] = {}
    for ids, number in numbers.items():
        before = _updated(states[ids], rollouts, workers)
        change = arrived(before.state) or _NOTHING
        rollouts[ids[0]], _ = tx.apply(before, change, spans=number, span_bytes=sizes[ids])
        if change.worker is not None:
            workers[change.worker.worker_id] = change.worker
    return stored


def _updated(
    stored: StoredState, rollouts: dict[str, Rollout], workers: dict[str, Worker]
) -> StoredState:
    """Return a state with the changes that earlier attempts of the same call made."""
    rollout, count, attempt, worker = stored.state
    rollout = rollouts.get(rollout.rollout_id, rollout)
    if worker is not None:
        worker = workers.get(worker.worker_id, worker)
    return stored._replace(state=RolloutState(rollout, count, attempt, worker))


async def _states(tx: Transaction, spans: Sequence[EncodedSpan]) -> dict[Ids, StoredState]:
    """Lock the rollouts of spans and read their attempts.

    Raises:
        RolloutNotFoundError: A rollout does not exist.
        AttemptNotFoundError: An attempt does not exist.
    """
    wanted = list(dict.fromkeys((span.rollout_id, span.attempt_id) for span in spans))
    rollout_ids = [ids[0] for ids in wanted]
    attempt_ids = [ids[1] for ids in wanted]
    _, _, rows = await tx.read(
        (
            "SELECT 1 FROM @rollouts WHERE rollout_id = ANY(%s) ORDER BY ordinal FOR UPDATE",
            (rollout_ids,),
        ),
        (_LOCK_WORKERS, (rollout_ids, attempt_ids)),
        (_STATES, (rollout_ids, attempt_ids)),
    )
    found: dict[Ids, StoredState] = {}
    for row in rows:
        ids = wanted[row[0] - 1]
        found[ids] = stored = stored_state(row[1:])
        if stored.state.attempt is None:
            raise attempt_not_found(*ids)
    for ids in wanted:
        if ids not in found:
            raise rollout_not_found(ids[0])
    return found


_WANTED: Final = (
    "unnest(%s::text[], %s::text[]) WITH ORDINALITY AS wanted (rollout_id, attempt_id, place) "
    "JOIN @rollouts r ON r.rollout_id = wanted.rollout_id"
)
_ATTEMPT: Final = "@attempts a ON a.rollout = r.ordinal AND a.attempt_id = wanted.attempt_id"
# The arrival of a span changes a worker only if its attempt was given up.
_LOCK_WORKERS: Final = (
    "SELECT pg_advisory_xact_lock(key) FROM (SELECT DISTINCT "
    f"hashtextextended('@' || a.worker_id, 0) AS key FROM {_WANTED} JOIN {_ATTEMPT} "
    "WHERE a.status = 'unresponsive' AND a.worker_id IS NOT NULL ORDER BY key) AS keys"
)
_STATES: Final = (
    f"SELECT wanted.place, {state_columns(payload=False)} FROM {_WANTED} LEFT JOIN {_ATTEMPT} "
    "LEFT JOIN @workers w ON a.status = 'unresponsive' AND w.worker_id = a.worker_id "
    "ORDER BY wanted.place"
)


def _key(span: EncodedSpan, states: dict[Ids, StoredState]) -> Key:
    ordinal = states[span.rollout_id, span.attempt_id].ordinal
    return ordinal, span.attempt_id, searchable(span.span_id) or ""


async def _stored_keys(tx: Transaction, keys: Sequence[Key]) -> set[Key]:
    by_partition: dict[str, list[Key]] = {}
    for key in keys:
        by_partition.setdefault(partition_of(key[0]), []).append(key)
    tx.partitions |= by_partition.keys()
    found: set[Key] = set()
    for partition, wanted in by_partition.items():
        (rows,) = await tx.read(
            (
                (
                    f"SELECT rollout, attempt_id, span_id FROM {partition} "
                    "WHERE (rollout, span_id, attempt_id) IN "
                    "(SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[]))"
                ),
                ([k[0] for k in wanted], [k[2] for k in wanted], [k[1] for k in wanted]),
            )
        )
        found |= {(ordinal, attempt_id, span_id) for ordinal, attempt_id, span_id in rows}
    return found


def _values(ordinal: int, span: EncodedSpan) -> tuple[Any, ...]:
    return (
        ordinal,
        span.attempt_id,
        span.sequence_id,
        searchable(span.trace_id),
        searchable(span.span_id),
        searchable(span.parent_id),
        searchable(span.name),
        span.start_time,
        span.end_time,
        span.payload,
    )


async def _insert(tx: Transaction, partition: str, rows: Sequence[tuple[Any, ...]]) -> None:
    tx.partitions.add(partition)
    if len(rows) >= _COPIED:
        await tx.copy(f"{partition} ({_COLUMNS})", _TYPES, rows)
        return
    for row in rows:
        tx.write(
            f"INSERT INTO {partition} ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            *row,
        )


def _raise_counters(tx: Transaction, spans: Sequence[EncodedSpan]) -> None:
    """Raise the rollouts' counters to the highest sequence id of their spans."""
    highest: dict[str, int] = {}
    for span in spans:
        if span.sequence_id <= HIGHEST_COUNTED_SEQUENCE_ID:
            last = highest.get(span.rollout_id, 0)
            highest[span.rollout_id] = max(last, span.sequence_id)
    for rollout_id in sorted(highest):
        if highest[rollout_id] > 0:
            tx.write(
                "INSERT INTO @sequence_ids AS s VALUES (%s, %s) ON CONFLICT (rollout_id) "
                "DO UPDATE SET last = excluded.last WHERE s.last < excluded.last",
                rollout_id,
                highest[rollout_id],
            )


async def draw_sequence_ids(tx: Transaction, rollout_ids: Sequence[str]) -> list[int]:
    """Draw the next sequence id of each rollout, in the order given."""
    numbers = Counter(rollout_ids)
    names = sorted(numbers)
    drawn = await tx.read(
        *(
            (
                (
                    "INSERT INTO @sequence_ids AS s VALUES (%s, %s) ON CONFLICT (rollout_id) "
                    "DO UPDATE SET last = s.last + excluded.last RETURNING last"
                ),
                (name, numbers[name]),
            )
            for name in names
        )
    )
    following = {name: rows[0][0] - numbers[name] for name, rows in zip(names, drawn, strict=True)}
    result: list[int] = []
    for name in rollout_ids:
        following[name] += 1
        result.append(following[name])
    return result
