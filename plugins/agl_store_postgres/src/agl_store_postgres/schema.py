"""The tables, their migrations, and the partitions of spans.

``@`` in a statement is replaced by the schema: ``@rollouts``. Names are qualified, because
a search path is state of a connection, which a pooler in transaction mode does not keep.

* ``rollouts.ordinal`` is the insertion order, and what attempts and spans refer to.
  ``queue_position`` is set exactly while the rollout is in the queue.
* ``attempts.spans`` and ``attempts.span_bytes`` count an attempt's spans: counting 10 million rows
  takes PostgreSQL seconds, and one counter for all would make writers wait for each other.
* ``spans`` is partitioned by the rollout's ordinal. All spans of a rollout are in one partition, so
  a query reads one table, and old rollouts go as whole tables. Statements name the partition, so
  their cost does not grow with the number of partitions.
* ``requests`` holds results by idempotency key, so that a claim or a snapshot that is repeated
  after a crash of the server happens once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from psycopg import AsyncConnection

from agl_core.errors import StoreDataError

__all__ = ["OLDEST_SERVER", "SCHEMA_VERSION", "create_partition", "migrate", "partition_of"]

logger = logging.getLogger(__name__)

OLDEST_SERVER: Final = 130000
"""The oldest supported version: 13 has ``pg_current_xact_id``."""
ROLLOUTS_PER_PARTITION: Final = 10_000
"""A few gigabytes of spans: dropping them at once is quick, and hundreds of partitions are few."""

_V1: Final = """
CREATE TABLE @rollouts (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rollout_id text COLLATE "C" NOT NULL UNIQUE,
    status text COLLATE "C" NOT NULL,
    mode text COLLATE "C",
    resources_id text COLLATE "C",
    start_time double precision NOT NULL,
    end_time double precision,
    input bytea NOT NULL,
    config bytea NOT NULL,
    metadata bytea NOT NULL,
    attempts bigint NOT NULL DEFAULT 0,
    watched boolean NOT NULL DEFAULT false,
    queue_position bigint
) WITH (fillfactor = 80);
CREATE INDEX ON @rollouts (status, start_time DESC, ordinal);
CREATE INDEX ON @rollouts (start_time DESC, ordinal);
CREATE INDEX ON @rollouts (queue_position) WHERE queue_position IS NOT NULL;
CREATE INDEX ON @rollouts (ordinal) WHERE watched;
CREATE SEQUENCE @queue_tail;

CREATE TABLE @attempts (
    rollout bigint NOT NULL,
    sequence_id bigint NOT NULL,
    rollout_id text COLLATE "C" NOT NULL,
    attempt_id text COLLATE "C" NOT NULL,
    start_time double precision NOT NULL,
    end_time double precision,
    status text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C",
    last_heartbeat_time double precision,
    metadata bytea NOT NULL,
    spans bigint NOT NULL DEFAULT 0,
    span_bytes bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (rollout, sequence_id)
) WITH (fillfactor = 80);

CREATE TABLE @workers (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker_id text COLLATE "C" NOT NULL UNIQUE,
    status text COLLATE "C" NOT NULL,
    heartbeat_stats bytea NOT NULL,
    last_heartbeat_time double precision,
    last_dequeue_time double precision,
    last_busy_time double precision,
    last_idle_time double precision,
    current_rollout_id text COLLATE "C",
    current_attempt_id text COLLATE "C"
) WITH (fillfactor = 50);

CREATE TABLE @resources (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resources_id text COLLATE "C" NOT NULL UNIQUE,
    create_time double precision NOT NULL,
    update_time double precision NOT NULL,
    version bigint NOT NULL,
    resources bytea NOT NULL,
    touched bigint NOT NULL
);
CREATE INDEX ON @resources (touched);

CREATE SEQUENCE @span_ordinals;
CREATE TABLE @spans (
    ordinal bigint NOT NULL DEFAULT nextval('@span_ordinals'),
    rollout bigint NOT NULL,
    attempt_id text COLLATE "C" NOT NULL,
    sequence_id bigint NOT NULL,
    trace_id text COLLATE "C" NOT NULL,
    span_id text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C",
    name text COLLATE "C" NOT NULL,
    start_time double precision,
    end_time double precision,
    payload bytea NOT NULL
) PARTITION BY RANGE (rollout);
CREATE UNIQUE INDEX ON @spans (rollout, span_id, attempt_id);
CREATE INDEX ON @spans (rollout, sequence_id, ordinal);

CREATE TABLE @sequence_ids (
    rollout_id text COLLATE "C" PRIMARY KEY,
    last bigint NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE @requests (
    key text COLLATE "C" PRIMARY KEY,
    time double precision NOT NULL,
    result bytea NOT NULL
);
CREATE INDEX ON @requests (time);
INSERT INTO @meta VALUES ('last_scan', 0);
"""

_V2: Final = r"""
ALTER TABLE @rollouts ADD COLUMN reward double precision, ADD COLUMN duration double precision;
UPDATE @rollouts r SET
    duration = a.end_time - a.start_time,
    reward = (SELECT substring(convert_from(s.payload, 'UTF8')
            FROM '"agentlightning\.reward\.0\.value":\s*(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)'
        )::double precision
        FROM @spans s WHERE s.rollout = r.ordinal AND s.attempt_id = a.attempt_id
            AND s.name = 'agentlightning.annotation'
        ORDER BY s.sequence_id DESC LIMIT 1)
    FROM @attempts a WHERE a.rollout = r.ordinal AND a.sequence_id = r.attempts;
CREATE INDEX ON @rollouts (mode, start_time DESC, ordinal);
CREATE INDEX ON @rollouts (reward DESC NULLS LAST, ordinal);
CREATE INDEX ON @rollouts (duration DESC NULLS LAST, ordinal);
"""
"""Keeps the figures that rollouts are sorted by (:func:`agl_store_kit.changed_figures`), and
finds rollouts by mode."""

_MIGRATIONS: Final = (_V1, _V2)
SCHEMA_VERSION: Final = len(_MIGRATIONS)

Qualify = Callable[[str], bytes]
"""Puts the schema into a statement."""


async def migrate(connection: AsyncConnection[Any], qualify: Qualify, address: str) -> None:
    """Create the tables, or migrate those of an older version. Any number of processes at once.

    Args:
        connection: In autocommit mode.
        qualify: Puts the schema into a statement.
        address: The server's address, for errors.

    Raises:
        StoreDataError: The server is too old, the database is not in UTF-8, or the tables are those
            of a newer version.
    """
    server = connection.info.server_version
    if server < OLDEST_SERVER:
        raise StoreDataError(
            f"PostgreSQL at {address} has version {server // 10000}; the store needs "
            f"{OLDEST_SERVER // 10000} or later"
        )
    if await _version(connection, qualify) == SCHEMA_VERSION:
        return
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreDataError(
            f"the database at {address} is in {encoding}; create one in UTF-8: "
            "createdb --encoding UTF8 --template template0 agl"
        )
    async with connection.transaction():
        # One process migrates, the others wait and then find the tables migrated.
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (qualify("@").decode(),)
        )
        version = await _version(connection, qualify)
        if version > SCHEMA_VERSION:
            raise StoreDataError(
                f"the tables at {address} have schema version {version}, this agl-store-postgres "
                f"knows up to {SCHEMA_VERSION}: upgrade agl-store-postgres"
            )
        if version == 0:
            schema = qualify("@").rstrip(b".")
            # IF NOT EXISTS asks for the right to create even if the schema exists.
            name = schema.decode().strip('"')
            if not await _exists(connection, b"SELECT FROM pg_namespace WHERE nspname = %s", name):
                await connection.execute(b"CREATE SCHEMA " + schema)
            await connection.execute(
                qualify("CREATE TABLE @meta (name text PRIMARY KEY, value double precision)")
            )
            await connection.execute(qualify("INSERT INTO @meta VALUES ('schema_version', 0)"))
        elif version < SCHEMA_VERSION:
            logger.warning(
                "The tables at %s have schema version %d and are migrated to %d",
                *(address, version, SCHEMA_VERSION),
            )
        for number in range(version, SCHEMA_VERSION):
            await connection.execute(qualify(_MIGRATIONS[number]))
        await connection.execute(
            qualify("UPDATE @meta SET value = %s WHERE name = 'schema_version'"), (SCHEMA_VERSION,)
        )


async def _version(connection: AsyncConnection[Any], qualify: Qualify) -> int:
    """Return the version of the tables; 0 if there are none."""
    if not await _table_exists(connection, qualify("@meta")):
        return 0
    cursor = await connection.execute(
        qualify("SELECT value FROM @meta WHERE name = 'schema_version'")
    )
    row = await cursor.fetchone()
    return 0 if row is None else int(row[0])


async def _table_exists(connection: AsyncConnection[Any], table: bytes) -> bool:
    schema, _, name = table.decode().partition(".")
    # Not to_regclass: its cache can be older than the lock that this transaction waited for.
    return await _exists(
        connection,
        b"SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        b"WHERE n.nspname = %s AND c.relname = %s",
        *(schema.strip('"'), name),
    )


async def _exists(connection: AsyncConnection[Any], statement: bytes, *values: str) -> bool:
    return await (await connection.execute(statement, values)).fetchone() is not None


def partition_of(ordinal: int) -> str:
    """Return the name of the partition with the spans of a rollout."""
    return f"@spans_{ordinal // ROLLOUTS_PER_PARTITION}"


async def create_partition(
    connection: AsyncConnection[Any], qualify: Qualify, partition: str
) -> None:
    """Create a partition unless it exists. Any number of processes at once."""
    first = int(partition.rpartition("_")[2]) * ROLLOUTS_PER_PARTITION
    name = qualify(partition)
    async with connection.transaction():
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name.decode(),)
        )
        if await _table_exists(connection, name):
            return
        # ATTACH lets other connections read and write meanwhile; PARTITION OF does not.
        await connection.execute(
            qualify(f"CREATE TABLE {partition} (LIKE @spans INCLUDING DEFAULTS INCLUDING INDEXES)")
        )
        await connection.execute(
            qualify(
                f"ALTER TABLE @spans ATTACH PARTITION {partition} "
                f"FOR VALUES FROM ({first}) TO ({first + ROLLOUTS_PER_PARTITION})"
            )
        )
