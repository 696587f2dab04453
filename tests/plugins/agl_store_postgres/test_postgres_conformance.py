"""The PostgreSQL store under the conformance suite, on a real server."""

import pickle
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from agl_store_postgres import PostgresLightningStore
from agl_testing import StoreSuite


# The random histories make thousands of calls to the database server.
@pytest.mark.timeout(600)
class TestPostgresStore(StoreSuite):
    flags = frozenset(
        {"thread_safe", "durable", "processes", "events", "ends", "fails_commits", "scans"}
    )

    @pytest_asyncio.fixture
    async def store(self, server, schema):
        store = PostgresLightningStore(server.uri, schema_name=schema, scan_debounce_seconds=0)
        yield store
        await store.close()

    async def reopen(self, store: Any):
        return pickle.loads(pickle.dumps(store))

    @asynccontextmanager
    async def failing_commits(self, store: Any):
        """Raise in a trigger that runs at the commit, with the code of a full disk."""
        schema = sql.Identifier(store._config.schema_name)
        with psycopg.connect(store._config.uri, autocommit=True) as other:
            other.execute(
                sql.SQL(
                    "CREATE FUNCTION {0}.fail() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN RAISE 'no space left on device' USING ERRCODE = '53100'; END $$"
                ).format(schema)
            )
            other.execute(
                sql.SQL(
                    "CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON {0}.rollouts "
                    "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {0}.fail()"
                ).format(schema)
            )
            yield
            other.execute(sql.SQL("DROP FUNCTION {0}.fail CASCADE").format(schema))

    def connection(self, store: Any):
        return partial(pickle.loads, pickle.dumps(store))
