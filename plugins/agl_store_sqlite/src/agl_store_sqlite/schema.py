"""The tables, and the migrations of files of older versions.

``PRAGMA user_version`` holds the schema's version. Migrations are applied one by one, each in a
transaction. A file of a newer version is refused.

* ``rollouts.ordinal`` is the insertion order, and what spans refer to. ``queue_position`` is set
  exactly while the rollout is in the queue.
* ``spans`` holds each span as the JSON that came in, and the fields that queries use as columns.
  ``spans.ordinal`` is the rollout's ordinal times 2**32, plus a number that grows within the
  rollout. So a rollout's spans are neighbours in the file, also when many rollouts write at the
  same time, and reading them reads few pages. A query by rollout is one range of ``spans_order``.
* ``attempts.rollout`` is the rollout's ordinal, so that attempts that run at the same time are
  neighbours.
* ``counters`` holds counts that would take long to compute; ``rollouts.running`` is the number of
  rollouts of that status.
* ``changes`` and ``peers`` let processes wake each other (:mod:`agl_store_sqlite.remote`).
* ``requests`` holds results by idempotency key, so that a claim or a snapshot that is repeated
  after a crash of the server happens once.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from agl_core.errors import StoreDataError

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "SPANS_PER_ROLLOUT", "migrate"]

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x61676C31
"""Written into the file's header ("agl1"). It tells this store's files from other databases."""

SPANS_PER_ROLLOUT: Final = 2**32
"""Distance between the ordinals of the first spans of two rollouts."""

_V1: Final = """
CREATE TABLE rollouts (
    ordinal INTEGER PRIMARY KEY,
    rollout_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    mode TEXT,
    resources_id TEXT,
    start_time REAL NOT NULL,
    end_time REAL,
    input BLOB NOT NULL,
    config BLOB NOT NULL,
    metadata BLOB NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    watched INTEGER NOT NULL DEFAULT 0,
    queue_position INTEGER
);
CREATE INDEX rollouts_status ON rollouts (status, start_time);
CREATE INDEX rollouts_start ON rollouts (start_time);
CREATE UNIQUE INDEX rollouts_queue ON rollouts (queue_position) WHERE queue_position IS NOT NULL;
CREATE INDEX rollouts_watched ON rollouts (ordinal) WHERE watched = 1;

CREATE TABLE attempts (
    rollout_id TEXT NOT NULL,
    sequence_id INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    start_time REAL NOT NULL,
    end_time REAL,
    status TEXT NOT NULL,
    worker_id TEXT,
    last_heartbeat_time REAL,
    metadata BLOB NOT NULL,
    PRIMARY KEY (rollout_id, sequence_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX attempts_id ON attempts (rollout_id, attempt_id);

CREATE TABLE workers (
    ordinal INTEGER PRIMARY KEY,
    worker_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    heartbeat_stats BLOB NOT NULL,
    last_heartbeat_time REAL,
    last_dequeue_time REAL,
    last_busy_time REAL,
    last_idle_time REAL,
    current_rollout_id TEXT,
    current_attempt_id TEXT
);

CREATE TABLE resources (
    ordinal INTEGER PRIMARY KEY,
    resources_id TEXT NOT NULL UNIQUE,
    create_time REAL NOT NULL,
    update_time REAL NOT NULL,
    version INTEGER NOT NULL,
    resources BLOB NOT NULL,
    touched INTEGER NOT NULL
);
CREATE UNIQUE INDEX resources_touched ON resources (touched);

CREATE TABLE spans (
    ordinal INTEGER PRIMARY KEY,
    rollout INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    sequence_id INTEGER NOT NULL,
    trace_id TEXT NOT NULL,
    span_id TEXT NOT NULL,
    parent_id TEXT,
    name TEXT NOT NULL,
    start_time REAL,
    end_time REAL,
    payload BLOB NOT NULL
);
CREATE UNIQUE INDEX spans_key ON spans (rollout, span_id, attempt_id);
CREATE INDEX spans_order ON spans (rollout, sequence_id);

CREATE TABLE sequence_ids (rollout_id TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES
    ('rollouts', 0), ('attempts', 0), ('spans', 0), ('span_bytes', 0), ('last_scan', 0),
    ('queue_tail', 0);

CREATE TABLE requests (key TEXT PRIMARY KEY, time REAL NOT NULL, result BLOB NOT NULL)
    WITHOUT ROWID;
CREATE INDEX requests_time ON requests (time);
CREATE TABLE peers (port INTEGER PRIMARY KEY, pid INTEGER NOT NULL, started REAL NOT NULL);
CREATE TABLE changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, peer INTEGER NOT NULL, time REAL NOT NULL,
    event BLOB NOT NULL
);
"""

_V2: Final = """
CREATE TABLE clustered (
    ordinal INTEGER PRIMARY KEY,
    rollout INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    sequence_id INTEGER NOT NULL,
    trace_id TEXT NOT NULL,
    span_id TEXT NOT NULL,
    parent_id TEXT,
    name TEXT NOT NULL,
    start_time REAL,
    end_time REAL,
    payload BLOB NOT NULL
);
INSERT INTO clustered SELECT (rollout << 32) + ordinal, rollout, attempt_id, sequence_id, trace_id,
    span_id, parent_id, name, start_time, end_time, payload FROM spans;
DROP TABLE spans;
ALTER TABLE clustered RENAME TO spans;
CREATE UNIQUE INDEX spans_key ON spans (rollout, span_id, attempt_id);
CREATE INDEX spans_order ON spans (rollout, sequence_id);
"""
"""Clusters spans by rollout; before, they were stored in the order of arrival."""

_V3: Final = """
CREATE TABLE clustered (
    rollout INTEGER NOT NULL,
    sequence_id INTEGER NOT NULL,
    rollout_id TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    start_time REAL NOT NULL,
    end_time REAL,
    status TEXT NOT NULL,
    worker_id TEXT,
    last_heartbeat_time REAL,
    metadata BLOB NOT NULL,
    PRIMARY KEY (rollout, sequence_id)
) WITHOUT ROWID;
INSERT INTO clustered SELECT r.ordinal, a.sequence_id, a.rollout_id, a.attempt_id, a.start_time,
    a.end_time, a.status, a.worker_id, a.last_heartbeat_time, a.metadata
    FROM attempts a JOIN rollouts r ON r.rollout_id = a.rollout_id;
DROP TABLE attempts;
ALTER TABLE clustered RENAME TO attempts;
CREATE TABLE numbered (
    ordinal INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL UNIQUE, last INTEGER NOT NULL
);
INSERT INTO numbered (rollout_id, last) SELECT rollout_id, last FROM sequence_ids;
DROP TABLE sequence_ids;
ALTER TABLE numbered RENAME TO sequence_ids;
"""
"""Clusters attempts and sequence ids by rollout: concurrent rollouts then change few pages. A
rollout has few attempts, so an index by attempt id is not needed."""

_V4: Final = """
DROP INDEX rollouts_status;
CREATE INDEX rollouts_status ON rollouts (status, start_time DESC);
DROP INDEX rollouts_start;
CREATE INDEX rollouts_start ON rollouts (start_time DESC);
INSERT INTO counters
    SELECT 'rollouts.' || value, (SELECT count(*) FROM rollouts WHERE status = value)
    FROM json_each('["queuing", "preparing", "running", "failed", "succeeded", "cancelled",
        "requeuing"]');
"""
"""Counts rollouts by status, and orders the indexes for pages of the newest rollouts: descending by
time, and equal times in the order of insertion."""

_V5: Final = """
ALTER TABLE rollouts ADD COLUMN reward REAL;
ALTER TABLE rollouts ADD COLUMN duration REAL;
UPDATE rollouts SET
    duration = (SELECT a.end_time - a.start_time FROM attempts a
        WHERE a.rollout = rollouts.ordinal AND a.sequence_id = rollouts.attempts),
    reward = (SELECT json_extract(CAST(s.payload AS TEXT),
            '$.attributes."agentlightning.reward.0.value"')
        FROM spans s JOIN attempts a ON a.rollout = s.rollout AND a.attempt_id = s.attempt_id
        WHERE s.rollout = rollouts.ordinal AND a.sequence_id = rollouts.attempts
            AND s.name = 'agentlightning.annotation'
            AND instr(s.payload, CAST('"agentlightning.reward.0.value"' AS BLOB)) > 0
            AND json_valid(CAST(s.payload AS TEXT))
        ORDER BY s.sequence_id DESC LIMIT 1);
UPDATE rollouts SET reward = NULL WHERE typeof(reward) <> 'real';
DROP INDEX rollouts_status;
CREATE INDEX rollouts_status ON rollouts (status, start_time DESC, ordinal, mode);
CREATE INDEX rollouts_mode ON rollouts (mode, start_time DESC);
CREATE INDEX rollouts_reward ON rollouts (reward DESC, ordinal, mode);
CREATE INDEX rollouts_duration ON rollouts (duration DESC, ordinal, mode);
"""
"""Keeps the figures that rollouts are sorted by (:func:`agl_store_kit.changed_figures`), and
finds rollouts by mode. NULL sorts as the smallest value, as a missing figure does."""

_V6: Final = """
DROP TABLE peers;
CREATE TABLE peers (port INTEGER PRIMARY KEY, time REAL NOT NULL);
"""
"""Tells dead processes by the time of their last renewal; before, by their ids."""

_MIGRATIONS: Final = (_V1, _V2, _V3, _V4, _V5, _V6)
_REWRITES_SPANS: Final = 2
"""The migration that takes minutes on a large file, and says so."""
SCHEMA_VERSION: Final = len(_MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Migrate a file to this version's schema.

    Args:
        connection: In autocommit mode.
        path: The file's name, for errors.

    Raises:
        StoreDataError: The file belongs to another program, or to a newer version.
    """
    _refuse_programs(connection, path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again under the lock: another process may have migrated the file meanwhile.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        _check_origin(connection, path, version)
        if 0 < version < SCHEMA_VERSION:
            logger.warning(
                "%s has schema version %d and is migrated to %d%s",
                path,
                version,
                SCHEMA_VERSION,
                "; this rewrites all spans" if version < _REWRITES_SPANS else "",
            )
        for number in range(version, SCHEMA_VERSION):
            for statement in _MIGRATIONS[number].split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _refuse_programs(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that makes its reader compute: a view in the place of a table may never end.

    This store's files hold tables and indexes of columns only
    (https://www.sqlite.org/security.html, "Untrusted SQLite Database Files").
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    found = connection.execute(
        "SELECT name, type FROM sqlite_master WHERE type NOT IN ('table', 'index') "
        "OR sql LIKE '%GENERATED%' OR sql LIKE '% AS (%' OR sql LIKE '%VIRTUAL%' "
        "OR sql LIKE '%CHECK%' LIMIT 1"
    ).fetchone()
    if found is not None:
        raise StoreDataError(
            f"{path} holds {found[1]} {found[0]!r:.80} that no store of agl has; do not open files "
            "that you do not trust"
        )


def _check_origin(connection: sqlite3.Connection, path: str, version: int) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreDataError(f"{path} is a database of another program; choose another path")
    if version > SCHEMA_VERSION:
        raise StoreDataError(
            f"{path} has schema version {version}, this agl-store-sqlite knows up to "
            f"{SCHEMA_VERSION}: upgrade agl-store-sqlite"
        )
