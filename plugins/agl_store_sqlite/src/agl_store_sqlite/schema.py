"""The tables, and how an older file becomes a newer one.

``PRAGMA user_version`` holds the schema's version. Migrations are applied one by one, each in a
transaction; a file written by a newer version is refused, never guessed at.

* ``rollouts.ordinal`` is the insertion order, and what spans refer to. ``queue_position`` is set
  exactly while the rollout is in the queue.
* ``spans`` holds each span as the JSON it arrived as, with the fields that queries look at beside
  it. ``spans.ordinal`` is the rollout's ordinal times 2**32, plus a number that grows within the
  rollout: so a rollout's spans lie together in the file however many rollouts write at a time, and
  reading them reads few pages. A query by rollout is one range of ``spans_order``.
* ``attempts.rollout`` is the rollout's ordinal, too, so that the attempts that run at a time lie
  together.
* ``counters`` holds what would take long to count; ``rollouts.running`` is how many have that
  status.
* ``changes`` and ``peers`` let several processes wake each other (:mod:`agl_store_sqlite.peers`).
* ``requests`` remembers creating calls by idempotency key, so that a retry after a crash of the
  server does not do them twice.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from agl_core.errors import StoreDataError

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "SPANS_PER_ROLLOUT", "migrate"]

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x61676C31
"""Written into the file's header ("agl1"), so that a foreign database is not taken for ours."""

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
"""Puts the spans of a rollout together; until then they lay in the order they came in."""

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
"""Puts the attempts of neighbouring rollouts together, and their sequence ids: what is under way at
a time changes few pages. A rollout has few attempts, so that none needs an index by its id."""

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
"""Counts rollouts by status as they change, and keeps the indexes as the newest are listed first:
equal times in the order of insertion."""

_MIGRATIONS: Final = (_V1, _V2, _V3, _V4)
_REWRITES_SPANS: Final = 2
SCHEMA_VERSION: Final = len(_MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring a file to this version's schema.

    Args:
        connection: In autocommit mode.
        path: The file's name, for errors.

    Raises:
        StoreDataError: The file is another program's, or was written by a newer version.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again under the lock: another process may just have done it.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        _check_origin(connection, path, version)
        if 0 < version < SCHEMA_VERSION:
            logger.warning(
                "%s has schema version %d and is brought to %d%s",
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


def _check_origin(connection: sqlite3.Connection, path: str, version: int) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreDataError(f"{path} is a database of another program; choose another path")
    if version > SCHEMA_VERSION:
        raise StoreDataError(
            f"{path} has schema version {version}, this agl-store-sqlite knows up to "
            f"{SCHEMA_VERSION}: pip install -U agl-store-sqlite"
        )
